package grayhttp_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry/memory"
)

// relay calls the next service with the context of its request.
func relay(t testing.TB, rec *recorder, client *http.Client, next string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.record(r)
		if next != "" {
			assert.NoError(t, get(r.Context(), client, next))
		}
	})
}

func TestT2_FiveHopsChangeNothing(t *testing.T) {
	sent, err := graytag.New(map[string]string{"channel": "灰度 a+b%", "version": "v2"})
	require.NoError(t, err)
	reg := memory.New()
	client := newClient(t, reg)
	var rec recorder
	names := []string{"one", "two", "three", "four", "five"}
	for i, name := range names {
		next := ""
		if i+1 < len(names) {
			next = "http://" + names[i+1] + "/"
		}
		register(t, reg, name, name, "v2", serve(t, relay(t, &rec, client, next)))
	}
	require.NoError(t, get(graytag.NewContext(context.Background(), sent), client, "http://one/"))
	all := rec.take()
	require.Len(t, all, 5)
	for _, s := range all {
		assert.Equal(t, "灰度 a+b%", s.tag.Get("channel"))
		assert.Equal(t, all[0].header[graytag.Header], s.header[graytag.Header], "the same bytes on every hop")
		assert.Equal(t, all[0].header["Baggage"], s.header["Baggage"])
		assert.NotContains(t, s.header.Get("Baggage"), "%25E7")
	}

	req, err := http.NewRequest(http.MethodGet, "http://"+serve(t, &rec), nil)
	require.NoError(t, err)
	req.Header.Set(graytag.Header, "channel=%ff")
	require.NoError(t, send(&http.Client{Transport: plain(t)}, req))
	assert.True(t, rec.one(t).tag.IsZero())
}

func TestT3_SeveralValues(t *testing.T) {
	var rec recorder
	provider, sum := meter(t)
	url := "http://" + serve(t, &rec, grayhttp.WithMeterProvider(provider))
	client := &http.Client{Transport: plain(t)}
	for name, c := range map[string]struct {
		header http.Header
		want   string
		bad    int64
	}{
		"two lines that differ": {http.Header{graytag.Header: {"version=v1", "version=v2"}}, "", 1},
		"joined with a comma":   {http.Header{graytag.Header: {"version=v1,version=v2"}}, "", 1},
		"the same line twice":   {http.Header{graytag.Header: {"version=v1", "version=v1"}}, "version=v1", 0},
		"the next carrier is asked": {
			http.Header{graytag.Header: {"version=v1", "version=v2"}, "Baggage": {"gray.version=v3"}}, "version=v3", 1,
		},
		"both baggage lines are read": {
			http.Header{"Baggage": {"gray.version=v3", "gray.uid=1"}}, "uid=1;version=v3", 0,
		},
	} {
		before := sum("graylane.propagation.malformed")[""]
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header = c.header
		require.NoError(t, send(client, req))
		assert.Equal(t, c.want, rec.one(t).tag.String(), name)
		assert.Equal(t, c.bad, sum("graylane.propagation.malformed")[""]-before, name)
	}
}

func TestT5_FanOut(t *testing.T) {
	reg := memory.New()
	client := newClient(t, reg)
	var rec recorder
	register(t, reg, "c", "c1", "", serve(t, &rec))
	register(t, reg, "d", "d1", "", serve(t, &rec))
	register(t, reg, "b", "b1", "", serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"c", "d", "c"} {
			assert.NoError(t, get(r.Context(), client, "http://"+name+"/"))
		}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				assert.NoError(t, get(r.Context(), client, "http://"+[]string{"c", "d"}[i%2]+"/"))
			})
		}
		wg.Wait()
	})))
	require.NoError(t, get(tagged(), client, "http://b/"))
	all := rec.take()
	require.Len(t, all, 13)
	for _, s := range all {
		assert.True(t, s.tag.Equal(tag))
	}
}

func TestT7_DetachedWorkAfterTheHandlerReturned(t *testing.T) {
	reg := memory.New()
	client := newClient(t, reg)
	var rec recorder
	register(t, reg, "c", "c1", "", serve(t, &rec))
	detached := make(chan context.Context, 1)
	ended := make(chan struct{})
	register(t, reg, "b", "b1", "", serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		detached <- propagation.Detach(r.Context())
		context.AfterFunc(r.Context(), func() { close(ended) })
	})))
	require.NoError(t, get(tagged(), client, "http://b/"))
	<-ended
	<-time.After(100 * time.Millisecond)
	ctx := <-detached
	_, deadline := ctx.Deadline()
	assert.False(t, deadline)
	require.NoError(t, get(ctx, client, "http://c/"))
	assert.True(t, rec.one(t).tag.Equal(tag))
}

// TestBesideOTel runs a chain of three services with otelhttp at either side of
// ours, on handlers and transports, and with a service in the middle that has
// nothing but otelhttp.
func TestBesideOTel(t *testing.T) {
	type handlers func(http.Handler) http.Handler
	type transports func(http.RoundTripper) http.RoundTripper
	gray := func(h http.Handler) http.Handler { return mustHandler(t, h) }
	grayRT := func(rt http.RoundTripper) http.RoundTripper { return wrap(t, rt) }
	for name, c := range map[string]struct {
		handler   handlers
		transport transports
		traced    bool
	}{
		"alone":           {gray, grayRT, false},
		"otelhttp inside": {func(h http.Handler) http.Handler { return gray(otelHandler(h)) }, func(rt http.RoundTripper) http.RoundTripper { return grayRT(otelTransport(rt)) }, true},
		"otelhttp outside": {
			func(h http.Handler) http.Handler { return otelHandler(gray(h)) },
			func(rt http.RoundTripper) http.RoundTripper { return otelTransport(grayRT(rt)) }, true,
		},
		"otelhttp alone": {otelHandler, otelTransport, true},
	} {
		t.Run(name, func(t *testing.T) {
			var first, middle, last recorder
			end := serve(t, &last)
			between := serveBare(t, c.handler(relay(t, &middle, &http.Client{Transport: c.transport(plain(t))}, "http://"+end)))
			start := serve(t, relay(t, &first, &http.Client{Transport: otelTransport(newTransport(t))}, "http://"+between))
			client := &http.Client{Transport: newTransport(t)}

			for range 2 {
				require.NoError(t, get(withMember(t, tagged(), "tenant", "7"), client, "http://"+start))
				for _, s := range []seen{first.one(t), middle.one(t), last.one(t)} {
					assert.Equal(t, tag.String(), s.tag.String())
					assert.Equal(t, with(tagMembers(tag), "tenant", "7"), members(t, s.header["Baggage"]))
					assert.LessOrEqual(t, len(s.header[graytag.Header]), 1)
				}
				// Untagged stays untagged, and known to be so.
				require.NoError(t, get(graytag.NewContext(context.Background(), graytag.Tag{}), client, "http://"+start))
				first.take()
				middle.take()
				got := last.one(t)
				assert.True(t, got.tag.IsZero())
				assert.NotContains(t, got.header, graytag.Header)
				if c.traced {
					assert.NotEmpty(t, got.header.Get("Traceparent"))
				}
			}
		})
	}
}

// TestOTelKeepsWhatItLooksFor: the span of otelhttp outside ours is named by the
// pattern that a mux inside ours has found.
func TestOTelKeepsWhatItLooksFor(t *testing.T) {
	mux := http.NewServeMux()
	var span trace.SpanContext
	mux.HandleFunc("GET /items/{id}", func(_ http.ResponseWriter, r *http.Request) {
		span = trace.SpanContextFromContext(r.Context())
	})
	var pattern string
	handler := mustHandler(t, mux)
	url := "http://" + serveBare(t, otelHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		pattern = r.Pattern
	})))
	require.NoError(t, get(context.Background(), &http.Client{Transport: plain(t)}, url+"/items/1"))
	assert.Equal(t, "GET /items/{id}", pattern)
	assert.True(t, span.IsValid())
}

func TestClientRoutesByTheTag(t *testing.T) {
	reg := memory.New()
	recs := map[string]*recorder{}
	for id, version := range map[string]string{"s1": "", "g1": "v2.1.0"} {
		recs[id] = &recorder{}
		register(t, reg, "inventory", id, version, serve(t, recs[id]))
	}
	register(t, reg, "payment", "p1", "", serve(t, &recorder{}))
	provider, sum := meter(t)
	client := newClient(t, reg, grayhttp.WithMeterProvider(provider), grayhttp.WithPolicyFor("payment", subset.Policy{Strict: true}))
	require.NoError(t, get(tagged(), client, "http://inventory/"))
	assert.True(t, recs["g1"].one(t).tag.Equal(tag))
	require.NoError(t, get(graytag.NewContext(context.Background(), graytag.MustParse("version=v9")), client, "http://inventory/"))
	assert.Equal(t, "v9", recs["s1"].one(t).tag.Get("version"), "the tag does not change on a fallback")
	err := get(tagged(), client, "http://payment/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable, "through http.Client, too")
	assert.Equal(t, map[string]int64{
		"inventory matched": 1, "inventory fallback_stable": 1, "payment unavailable": 1,
	}, sum("graylane.route.decisions", "service", "outcome"))

	transport := client.Transport.(*grayhttp.Transport)
	client.CloseIdleConnections()
	require.NoError(t, transport.Close())
	require.Error(t, get(tagged(), client, "http://inventory/"))
	require.NoError(t, newTransport(t).Close())
}
