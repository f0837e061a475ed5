package gateway_test

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/metadata"

	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// exchanges is an observer, and what it was told.
func exchanges() (gateway.Option, <-chan gateway.Exchange) {
	c := make(chan gateway.Exchange, 100)
	return gateway.WithObserver(func(_ context.Context, e gateway.Exchange) { c <- e }), c
}

// odd is an instance that answers as the path says.
func odd(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/fails":
		http.Error(w, "no", http.StatusInternalServerError)
	case "/hints":
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	case "/breaks":
		_, _ = io.WriteString(w, "he")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "/dies":
		panic(http.ErrAbortHandler)
	case "/hangs":
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	case "/hangs/early", "/late":
		<-r.Context().Done()
	default:
		_, _ = io.WriteString(w, "hello")
	}
}

func TestExchangesAreObserved(t *testing.T) {
	reg := memory.New()
	for _, version := range []string{"", "v2.1.0"} {
		upstream(t, reg, "order", version, http.HandlerFunc(odd))
	}
	upstream(t, reg, "chat", "", websocketEcho(t, &recorder{}))
	observer, told := exchanges()
	g := newGateway(t, engine(t, whitelist), reg, observer, gateway.WithRoutes(
		gateway.Route{Service: "order"}, gateway.Route{Prefix: "/late", Service: "order", Timeout: 20 * time.Millisecond},
		gateway.Route{Prefix: "/none", Service: "none"}, gateway.Route{Host: "chat.example", Service: "chat"},
		gateway.Route{Prefix: "/network", Service: "order"}))
	url := "http://" + serve(t, g)
	client := newClient(t, "")

	for path, want := range map[string]gateway.Exchange{
		"/":       {Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: subset.Matched, Status: 200},
		"/fails":  {Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: subset.Matched, Status: 500},
		"/hints":  {Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: subset.Matched, Status: 204},
		"/none":   {Service: "none", Wanted: "v2.1.0", Outcome: subset.Unavailable, Reason: subset.Missing, Status: 503},
		"/late":   {Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: subset.Matched, Status: 504},
		"/breaks": {Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: subset.Matched, Status: 200},
	} {
		req, err := http.NewRequest(http.MethodGet, url+path, nil)
		require.NoError(t, err)
		req.Header.Set("X-User-ID", "10086")
		resp, err := client.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		got := <-told
		assert.Positive(t, got.Duration, path)
		switch path {
		case "/breaks":
			require.Error(t, err)
			assert.ErrorContains(t, got.Err, "broke off")
		case "/none", "/late":
			assert.Error(t, got.Err, path)
		default:
			assert.NoError(t, got.Err, path)
		}
		assert.False(t, got.Canceled, path)
		if path == "/late" {
			assert.GreaterOrEqual(t, got.Duration, 20*time.Millisecond)
		}
		want.GRPCStatus = -1
		got.Duration, got.Err = 0, nil
		assert.Equal(t, want, got, path)
	}

	_, _ = get(t, client, url+"/dies")
	got := <-told
	assert.Equal(t, http.StatusBadGateway, got.Status)
	assert.Error(t, got.Err)
	_, _ = get(t, client, url+"/", "X-Forwarded-For", "1.2.3.4")
	got = <-told
	assert.Equal(t, gateway.Exchange{Service: "order", Outcome: subset.Stable, Status: 200, GRPCStatus: -1, Duration: got.Duration}, got)

	for _, path := range []string{"/hangs", "/hangs/early"} {
		for _, c := range []*http.Client{client, newH2C(t)} {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+path, nil)
			require.NoError(t, err)
			resp, err := c.Do(req)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			require.Error(t, err)
			cancel()
			got = <-told
			assert.True(t, got.Canceled, path)
			assert.Error(t, got.Err)
			assert.Equal(t, subset.Stable, got.Outcome)
		}
	}

	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: chat.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	got = <-told // while the tunnel is open
	assert.Equal(t, gateway.Exchange{Service: "chat", Outcome: subset.Stable, Status: 101, GRPCStatus: -1, Duration: got.Duration}, got)
	_ = conn.Close()
	_ = g.Close()
	assert.Empty(t, told, "each once")
}

func TestExchangesOfGRPC(t *testing.T) {
	reg := memory.New()
	startService(t, reg, "order", "v2.1.0")
	observer, told := exchanges()
	url := start(t, reg, observer)
	client := dial(t, url)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "10086")
	expect := func(code int) {
		t.Helper()
		got := <-told
		assert.Equal(t, code, got.GRPCStatus)
		assert.Equal(t, "v2.1.0", got.Wanted)
		assert.Equal(t, http.StatusOK, got.Status)
	}
	_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
	require.NoError(t, err)
	expect(0)
	_, err = client.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: -1})
	require.Error(t, err)
	expect(5) // NOT_FOUND, without a body
	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Error(t, err)
	expect(15) // DATA_LOSS, in a trailer
	_, err = client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
	require.Error(t, err)
	got := <-told
	assert.Equal(t, 14, got.GRPCStatus, "of the gateway")
	assert.Error(t, got.Err)
}

// The gateway's decisions are counted once, and its answers are measured by the
// instances alone: both together would count every request twice.
func TestWhatTheGatewayMeasures(t *testing.T) {
	reg := memory.New()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	own := registry.Instance{Service: "order", Metadata: map[string]string{"version": "v2.1.0"}}
	h, err := grayhttp.NewHandler(http.HandlerFunc(odd), grayhttp.WithSelf(own), grayhttp.WithMeterProvider(provider))
	require.NoError(t, err)
	upstream(t, reg, "order", "v2.1.0", h)
	url := start(t, reg, gateway.WithMeterProvider(provider))
	for range 3 {
		_, body := get(t, newClient(t, ""), url, "X-User-ID", "10086")
		require.Equal(t, "hello", body)
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	seen := map[string]int{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					seen[m.Name] += int(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					seen[m.Name] += int(p.Count)
				}
			}
		}
	}
	assert.Equal(t, map[string]int{"graylane.route.decisions": 3, "graylane.server.requests": 3, "graylane.server.duration": 3}, seen)
}

// The gateway is no hop: it answers a gateway that it trusts with what it called,
// and tells strangers nothing.
func TestTheWayThroughTheGateway(t *testing.T) {
	reg := memory.New()
	client, err := grayhttp.NewClient(reg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Transport.(*grayhttp.Transport).Close() })
	call := func(r *http.Request, to string) {
		req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+to+"/", nil)
		assert.NoError(t, err)
		resp, err := client.Do(req)
		if assert.NoError(t, err) {
			_ = resp.Body.Close()
		}
	}
	instance := func(service, version string, h http.HandlerFunc) {
		i := registry.Instance{ID: service, Service: service, Metadata: map[string]string{"version": version}}
		wrapped, err := grayhttp.NewHandler(h, grayhttp.WithSelf(i), grayhttp.WithRejectMisrouted(), grayhttp.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		i.Address = serve(t, wrapped)
		_, err = reg.Register(context.Background(), i)
		require.NoError(t, err)
	}
	instance("order", "v2.1.0", func(w http.ResponseWriter, r *http.Request) {
		call(r, "user")
		_, _ = io.WriteString(w, "he")
		_ = http.NewResponseController(w).Flush()
		call(r, "cart")
		// What a service says unasked is for the inside as well.
		if r.Header.Get(propagation.TraceHeader) == "" {
			w.Header().Set(http.TrailerPrefix+propagation.RouteHeader, "depth=0;service=leak")
			w.Header().Set(http.TrailerPrefix+"X-Other", "kept")
		}
	})
	for _, s := range []string{"user", "cart"} {
		instance(s, "v2.1.0", func(http.ResponseWriter, *http.Request) {})
	}
	// This one has become gray, and says so.
	moved := serve(t, func() http.Handler {
		h, err := grayhttp.NewHandler(http.NotFoundHandler(), grayhttp.WithSelf(registry.Instance{Service: "moved", Metadata: map[string]string{"version": "v9"}}),
			grayhttp.WithRejectMisrouted(), grayhttp.WithLogger(slog.New(slog.DiscardHandler)))
		require.NoError(t, err)
		return h
	}())
	register(t, reg, "moved", "", moved)

	routes := gateway.WithRoutes(gateway.Route{Service: "order"}, gateway.Route{Prefix: "/moved", Service: "moved"})
	run := func(opts ...gateway.Option) string {
		return "http://" + serve(t, newGateway(t, engine(t, whitelist), reg, append(opts, routes)...))
	}
	trusting := run(gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.1")))
	closed := run()
	for _, c := range []*http.Client{newClient(t, ""), newH2C(t)} {
		for _, headers := range [][]string{{"X-Gray-Trace", "1"}, nil} {
			resp, body := get(t, c, closed+"/", append(headers, "X-User-ID", "10086")...)
			assert.Equal(t, "he", body)
			assert.NotContains(t, resp.Header, "X-Gray-Route")
			assert.NotContains(t, resp.Trailer, "X-Gray-Route")
			assert.Equal(t, "kept", resp.Trailer.Get("X-Other"))
			resp, _ = get(t, c, closed+"/moved", headers...)
			assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
			assert.NotContains(t, resp.Header, "X-Gray-Misrouted")
			assert.NotContains(t, resp.Header, "X-Gray-Route")
		}
		resp, _ := get(t, c, trusting+"/", "X-Gray-Tag", "version=v2.1.0", "X-Gray-Trace", "1")
		hop := func(depth int, service string) propagation.Hop {
			return propagation.Hop{Depth: depth, Service: service, Instance: service, Wanted: "v2.1.0", Got: "v2.1.0", Outcome: "matched"}
		}
		got, _, err := propagation.ParseRoute(resp.Header.Get("X-Gray-Route"))
		require.NoError(t, err)
		assert.Equal(t, []propagation.Hop{hop(0, "order"), hop(1, "user")}, got)
		got, _, err = propagation.ParseRoute(resp.Trailer.Get("X-Gray-Route"))
		require.NoError(t, err)
		assert.Equal(t, []propagation.Hop{hop(0, "order"), hop(1, "user"), hop(1, "cart")}, got)
		resp, _ = get(t, c, trusting+"/", "X-Gray-Tag", "version=v2.1.0")
		assert.NotContains(t, resp.Header, "X-Gray-Route", "not asked")
		assert.NotContains(t, resp.Trailer, "X-Gray-Route")
	}
}
