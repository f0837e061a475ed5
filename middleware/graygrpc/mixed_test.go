package graygrpc_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"google.golang.org/grpc"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// hop is one service of a chain over both protocols, as its handler saw the
// newest request.
type hop struct {
	tag     string
	header  []string
	members []string
}

// httpHop serves HTTP and hands on what it is given; it returns what calls it.
func httpHop(t *testing.T, seen *hop, otel bool, next func(context.Context) error) func(context.Context) error {
	t.Helper()
	handler, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.tag = graytag.FromContext(r.Context()).String()
		seen.header = r.Header.Values("X-Gray-Tag")
		seen.members = nil
		for _, line := range r.Header.Values("Baggage") {
			seen.members = append(seen.members, strings.Split(line, ",")...)
		}
		if next != nil {
			if err := next(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
			}
		}
	}))
	require.NoError(t, err)
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	var inner http.RoundTripper = base
	if otel {
		handler = otelhttp.NewHandler(handler, "hop", otelhttp.WithPropagators(w3c))
		inner = otelhttp.NewTransport(base, otelhttp.WithPropagators(w3c))
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	transport, err := grayhttp.NewTransport(inner)
	require.NoError(t, err)
	client := &http.Client{Transport: transport}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", res.Status, text)
		}
		return err
	}
}

// grpcHop serves gRPC and hands on what it is given; it returns what calls it.
func grpcHop(t *testing.T, seen *hop, kind string, otel bool, next func(context.Context) error) func(context.Context) error {
	t.Helper()
	server, client := serverOptions(t), bare(t)
	if otel {
		server, client = append(server, otelServer()), append(client, otelClient())
	}
	n := &node{}
	n.next = func(ctx context.Context) error {
		v := n.last(t)
		*seen = hop{v.tag, v.md.Get("x-gray-tag"), memberLines(v.md)}
		if next == nil {
			return nil
		}
		return next(ctx)
	}
	conn := dial(t, "passthrough:///"+serve(t, n, server...), client...)
	return func(ctx context.Context) error {
		return kinds[kind](ctx, conn, graytag.FromContext(ctx).String(), 3)
	}
}

func TestT2_FiveHopsOverBoth(t *testing.T) {
	sent, err := tag.With("channel", "灰度 a+b%")
	require.NoError(t, err)
	for _, otel := range []bool{false, true} {
		t.Run(fmt.Sprintf("otel=%v", otel), func(t *testing.T) {
			var hops [5]hop
			call := httpHop(t, &hops[4], otel, nil)
			call = grpcHop(t, &hops[3], "unary", otel, call)
			call = httpHop(t, &hops[2], otel, call)
			call = grpcHop(t, &hops[1], "unary", otel, call)
			call = httpHop(t, &hops[0], otel, call)
			require.NoError(t, call(graytag.NewContext(context.Background(), sent)))
			require.Len(t, hops[0].members, 3)
			for i, h := range hops {
				assert.Equal(t, sent.String(), h.tag, "hop %d", i)
				assert.Equal(t, []string{sent.String()}, h.header, "hop %d", i)
				assert.ElementsMatch(t, hops[0].members, h.members, "hop %d", i)
			}
			got, err := graytag.Parse(hops[4].tag)
			require.NoError(t, err)
			assert.Equal(t, "灰度 a+b%", got.Get("channel"))
		})
	}
}

// A -HTTP-> B -unary-> C -bidi-> D -HTTP-> E.
func TestT6_NoCallOfOursInTheHandlers(t *testing.T) {
	var b, c, d, e hop
	call := httpHop(t, &e, false, nil)
	call = grpcHop(t, &d, "bidi", false, call)
	call = grpcHop(t, &c, "unary", false, call)
	call = httpHop(t, &b, false, call)
	require.NoError(t, call(graytag.NewContext(context.Background(), tag)))
	for _, h := range []hop{b, c, d, e} {
		assert.Equal(t, tag.String(), h.tag)
	}
	require.NoError(t, call(graytag.NewContext(context.Background(), graytag.Tag{})))
	for _, h := range []hop{b, c, d, e} {
		assert.Empty(t, h.tag)
		assert.Empty(t, h.header)
	}
}

// Both middlewares at once: a server for gRPC over net/http has the tag in its
// context before the interceptor runs.
func TestGRPCBehindAnHTTPHandler(t *testing.T) {
	n := &node{}
	server := grpc.NewServer(serverOptions(t, graygrpc.WithSelf(instance("v2.1.0")))...)
	registerNode(server, n)
	handler, err := grayhttp.NewHandler(server)
	require.NoError(t, err)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := httptest.NewUnstartedServer(handler)
	s.Config.Protocols = &protocols
	s.Start()
	t.Cleanup(s.Close)
	conn := dial(t, "passthrough:///"+s.Listener.Addr().String(), bare(t)...)
	for kind, call := range kinds {
		require.NoError(t, call(graytag.NewContext(context.Background(), tag), conn, tag.String(), 3), kind)
		assert.Equal(t, "v2.1.0", n.last(t).arrival.Wanted)
		require.NoError(t, call(graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 3), kind)
	}
}
