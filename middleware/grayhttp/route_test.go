package grayhttp_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

type hop = propagation.Hop

// chain starts services: order calls inventory before its header and user after it,
// inventory calls coupon, which only stable has. Each has v2 but coupon.
func chain(t testing.TB) (reg *memory.Registry, client *http.Client) {
	t.Helper()
	reg = memory.New()
	client = newClient(t, reg)
	start := func(service, version string, h http.HandlerFunc) {
		i := registry.Instance{ID: service + "-" + version, Service: service}
		if version != "" {
			i.Metadata = map[string]string{"version": version}
		}
		i.Address = server(t, mustHandler(t, h, grayhttp.WithSelf(i))).Listener.Addr().String()
		_, err := reg.Register(context.Background(), i)
		require.NoError(t, err)
	}
	call := func(r *http.Request, service string) {
		assert.NoError(t, get(r.Context(), client, "http://"+service+"/"))
	}
	for _, version := range []string{"", "v2"} {
		start("order", version, func(w http.ResponseWriter, r *http.Request) {
			call(r, "inventory")
			if r.URL.Path == "/late" {
				_, _ = io.WriteString(w, "he")
				call(r, "user")
				_, _ = io.WriteString(w, "llo")
			}
		})
		start("inventory", version, func(_ http.ResponseWriter, r *http.Request) { call(r, "coupon") })
		start("user", version, func(http.ResponseWriter, *http.Request) {})
	}
	start("coupon", "", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	return reg, client
}

var (
	toOrder     = hop{Depth: 0, Service: "order", Instance: "order-v2", Wanted: "v2", Got: "v2", Outcome: "matched"}
	toInventory = hop{Depth: 1, Service: "inventory", Instance: "inventory-v2", Wanted: "v2", Got: "v2", Outcome: "matched"}
	toCoupon    = hop{Depth: 2, Service: "coupon", Instance: "coupon-", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "missing"}
	toUser      = hop{Depth: 1, Service: "user", Instance: "user-v2", Wanted: "v2", Got: "v2", Outcome: "matched"}
)

func v2() context.Context {
	return graytag.NewContext(context.Background(), graytag.MustParse("version=v2"))
}

func TestTheWayOfARequest(t *testing.T) {
	_, client := chain(t)
	for path, want := range map[string][]hop{
		"/":     {toOrder, toInventory, toCoupon},
		"/late": {toOrder, toInventory, toCoupon, toUser},
	} {
		ctx, trace := propagation.TraceRoute(v2())
		require.NoError(t, get(ctx, client, "http://order"+path))
		got, more := trace.Hops()
		assert.Equal(t, want, got, path)
		assert.Zero(t, more)
		trace.End()
	}
}

// A user asks by hand, and the first service tells over HTTP/1 and HTTP/2, in the
// header and, what came later, in a trailer.
func TestTheWayOverTheWire(t *testing.T) {
	reg, _ := chain(t)
	address := find(t, reg, "order", "order-v2")
	for _, client := range []*http.Client{{Transport: plain(t)}, h2c(t)} {
		for _, path := range []string{"/", "/late"} {
			req, err := http.NewRequest(http.MethodGet, "http://"+address+path, nil)
			require.NoError(t, err)
			req.Header.Set(graytag.Header, "version=v2")
			resp, err := client.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			_ = resp.Body.Close()
			assert.Empty(t, resp.Header.Get(propagation.RouteHeader), "nobody asked")
			assert.Empty(t, resp.Trailer)

			req.Header.Set(propagation.TraceHeader, "1")
			resp, err = client.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			_ = resp.Body.Close()
			got, _, err := propagation.ParseRoute(resp.Header.Get(propagation.RouteHeader))
			require.NoError(t, err)
			assert.Equal(t, []hop{toOrder, toInventory, toCoupon}, got)
			if path == "/" {
				assert.Empty(t, resp.Trailer)
				continue
			}
			got, _, err = propagation.ParseRoute(resp.Trailer.Get(propagation.RouteHeader))
			require.NoError(t, err)
			assert.Equal(t, []hop{toOrder, toInventory, toCoupon, toUser}, got)
		}
	}
}

func find(t testing.TB, reg *memory.Registry, service, id string) (address string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for set, err := range reg.Watch(ctx, service) {
		require.NoError(t, err)
		for _, i := range set {
			if i.ID == id {
				return i.Address
			}
		}
		break
	}
	t.Fatalf("no instance %q", id)
	return ""
}

// Both tries of a request that was refused are on its way.
func TestTheWayOfARefusedRequest(t *testing.T) {
	first := hop{Service: "order", Instance: "g1", Wanted: "v2", Got: "v3", Outcome: "misrouted"}
	rejecting := func(t *testing.T, version string) string {
		return serve(t, &recorder{}, self(version), grayhttp.WithRejectMisrouted(), quiet)
	}
	for name, c := range map[string]struct {
		stable func(*testing.T) string // its address
		status int
		want   []hop
	}{
		"nobody else": {nil, http.StatusMisdirectedRequest, []hop{first}},
		"stable takes it": {func(t *testing.T) string { return rejecting(t, "") }, http.StatusOK,
			[]hop{first, {Service: "order", Instance: "s1", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "unhealthy"}}},
		"refused once more": {func(t *testing.T) string { return rejecting(t, "v4") }, http.StatusMisdirectedRequest,
			[]hop{first, {Service: "order", Instance: "s1", Wanted: "v2", Got: "v4", Outcome: "misrouted", Reason: "unhealthy"}}},
		"stable cannot be dialled": {func(*testing.T) string { return "127.0.0.1:1" }, http.StatusMisdirectedRequest, []hop{first}},
	} {
		t.Run(name, func(t *testing.T) {
			reg := memory.New()
			register(t, reg, "order", "g1", "v2", rejecting(t, "v3"))
			if c.stable != nil {
				register(t, reg, "order", "s1", "", c.stable(t))
			}
			ctx, trace := propagation.TraceRoute(v2())
			defer trace.End()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://order/", nil)
			require.NoError(t, err)
			resp, err := newClient(t, reg).Do(req)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			_ = resp.Body.Close()
			require.Equal(t, c.status, resp.StatusCode)
			if c.status != http.StatusOK {
				assert.Contains(t, string(body), "421", "the refusal as it came")
			}
			got, _ := trace.Hops()
			assert.Equal(t, c.want, got)
		})
	}
}

// Outside the scope nobody learns that there is a way to be known.
func TestTheWayEndsAtTheScope(t *testing.T) {
	var rec recorder
	outside := serveBare(t, &rec)
	transport := newTransport(t)
	client := &http.Client{Transport: wrap(t, dialTo(t, outside))}
	for _, header := range []string{"X-Gray-Trace", "x-gray-trace"} {
		ctx, trace := propagation.TraceRoute(v2())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+offsite+"/", nil)
		require.NoError(t, err)
		req.Header[header] = []string{"1"}
		require.NoError(t, send(client, req))
		assert.NotContains(t, rec.one(t).header, "X-Gray-Trace")
		got, _ := trace.Hops()
		assert.Empty(t, got)
		trace.End()
	}
	// Inside, it goes on as it is, and is set where there is a trace.
	req, err := http.NewRequestWithContext(v2(), http.MethodGet, "http://"+outside+"/", nil)
	require.NoError(t, err)
	req.Header.Set("X-Gray-Trace", "1")
	require.NoError(t, send(&http.Client{Transport: transport}, req))
	assert.Equal(t, "1", rec.one(t).header.Get("X-Gray-Trace"))
	require.NoError(t, get(v2(), &http.Client{Transport: transport}, "http://"+outside+"/"))
	assert.NotContains(t, rec.one(t).header, "X-Gray-Trace")

	// Twice wrapped, it is one call.
	ctx, trace := propagation.TraceRoute(v2())
	defer trace.End()
	require.NoError(t, get(ctx, &http.Client{Transport: wrap(t, transport)}, "http://"+outside+"/"))
	got, _ := trace.Hops()
	assert.Equal(t, []hop{{Outcome: "answered"}}, got)
	assert.Equal(t, []string{"1"}, rec.one(t).header["X-Gray-Trace"])
}

// An entrance tells the way to a gateway that it trusts, and to nobody else, and
// hands on nothing that came from further inside.
func TestTheWayThroughAnEdge(t *testing.T) {
	reg, client := chain(t)
	_, err := reg.Register(context.Background(), registry.Instance{ID: "gray", Service: "moved", Address: serve(t, &recorder{}, grayhttp.WithSelf(registry.Instance{Service: "moved", Metadata: map[string]string{"version": "v9"}}), grayhttp.WithRejectMisrouted(), quiet)})
	require.NoError(t, err)
	leaks := serveBare(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, h := range []string{"X-Gray-Route", "X-Gray-Misrouted"} {
			w.Header().Set(h, "depth=0;service=leak")
			w.Header().Set(http.TrailerPrefix+h, "depth=0;service=leak")
		}
	}))
	leaksMore := serveBare(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Gray-Route, X-Other")
		w.WriteHeader(200)
		_, _ = io.WriteString(w, "x")
		w.Header().Set("X-Gray-Route", "depth=0;service=leak")
		w.Header().Set("X-Other", "kept")
	}))
	for id, address := range map[string]string{"leaks": leaks, "leaksmore": leaksMore} {
		register(t, reg, id, id, "", address)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: p.In.URL.Query().Get("to")})
		},
		Transport: client.Transport,
	}
	ask := func(url string, trace bool) (*http.Response, []hop) {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header.Set("X-User-ID", "9999")
		if trace {
			req.Header.Set(propagation.TraceHeader, "1")
		}
		resp, err := (&http.Client{Transport: plain(t)}).Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Empty(t, resp.Header.Get("X-Gray-Misrouted"))
		assert.NotContains(t, resp.Trailer, "X-Gray-Misrouted")
		got, _, err := propagation.ParseRoute(resp.Header.Get(propagation.RouteHeader))
		require.NoError(t, err)
		return resp, got
	}
	stranger := "http://" + serveBare(t, enter(t, newEngine(t, testers), proxy))
	for _, to := range []string{"order", "leaks", "leaksmore", "moved"} {
		for _, trace := range []bool{false, true} {
			resp, _ := ask(stranger+"/late?to="+to, trace)
			assert.NotContains(t, resp.Header, "X-Gray-Route", to)
			assert.NotContains(t, resp.Trailer, "X-Gray-Route", to)
			if to == "leaksmore" {
				assert.Equal(t, "kept", resp.Trailer.Get("X-Other"))
			}
			if to == "moved" {
				assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
			}
		}
	}
	own := grayhttp.WithSelf(registry.Instance{ID: "e1", Service: "web"})
	trusted := "http://" + serveBare(t, enter(t, newEngine(t, testers), proxy, grayhttp.WithTrustedGateways("127.0.0.1"), own))
	resp, got := ask(trusted+"/late?to=order", false)
	assert.Empty(t, got)
	assert.Empty(t, resp.Trailer)
	_, got = ask(trusted+"/?to=order", true)
	require.Len(t, got, 4)
	assert.Equal(t, hop{Service: "web", Instance: "e1", Wanted: "v2", Got: "stable", Outcome: "fallback"}, got[0])
	assert.Equal(t, []string{"order", "inventory", "coupon"}, []string{got[1].Service, got[2].Service, got[3].Service})
}

// A handler of ours within another counts nothing twice, and what the inner one's
// handler calls is in the route that the outer one answers.
func TestHandlersWithinOthers(t *testing.T) {
	_, client := chain(t)
	measured, collect := histogram(t)
	counted, sum := meter(t)
	for _, provider := range []*sdkmetric.MeterProvider{measured, counted} {
		var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NoError(t, get(r.Context(), client, "http://user/"))
			_, _ = io.WriteString(w, "he")
			assert.NoError(t, get(r.Context(), client, "http://user/"))
		})
		for range 3 {
			h = mustHandler(t, h, grayhttp.WithSelf(registry.Instance{Service: "order", ID: "order-v2", Metadata: map[string]string{"version": "v2"}}), grayhttp.WithMeterProvider(provider))
		}
		srv := server(t, h)
		ctx, trace := propagation.TraceRoute(v2())
		require.NoError(t, get(ctx, &http.Client{Transport: newTransport(t)}, srv.URL))
		srv.Close()
		trace.End()
		route, _ := trace.Hops()
		assert.Equal(t, []hop{toOrder, toUser, toUser}, route)
	}
	logger, log := logTo(slog.LevelWarn)
	me := grayhttp.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"version": "v2"}})
	inner := mustHandler(t, http.NotFoundHandler(), me, grayhttp.WithLogger(logger))
	srv := server(t, mustHandler(t, inner, me, grayhttp.WithLogger(logger)))
	require.NoError(t, get(context.Background(), &http.Client{Transport: plain(t)}, srv.URL))
	assert.Len(t, log.lines(), 1)

	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v2 v2 200": 1}, counts)
	assert.Equal(t, map[string]int64{"v2 matched": 1}, sum("graylane.server.requests", "wanted", "outcome"))
}
