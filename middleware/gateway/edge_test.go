package gateway_test

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/baggage"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
)

// claims are what a stranger may send to look gray.
var claims = map[string][]string{
	"a tag":                  {"X-Gray-Tag", "version=v2.1.0"},
	"a tag in odd case":      {"x-gRaY-tAg", "version=v2.1.0"},
	"two tags":               {"X-Gray-Tag", "version=v2.1.0", "X-Gray-Tag", "version=v2.1.0"},
	"baggage":                {"Baggage", "gray.version=v2.1.0,tenant=7"},
	"baggage in odd case":    {"bAgGaGe", "tenant=7,GRAY.version=v2.1.0, Gray.uid=1"},
	"baggage on two lines":   {"Baggage", "tenant=7", "Baggage", "gray.version=v2.1.0"},
	"baggage with an escape": {"Baggage", "gr%61y.version=v2.1.0,tenant=7"},
	"everything":             {"X-Gray-Tag", "version=v2.1.0", "Baggage", "gray.version=v2.1.0,tenant=7", "X-Gray-Trace", "1"},
}

func TestW1_ClaimsFromOutside(t *testing.T) {
	reg, rec := orders(t)
	reader := sdkmetric.NewManualReader()
	meter := gateway.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	trusted := gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.9"))
	otel := func(h http.Handler) http.Handler {
		return otelhttp.NewHandler(h, "test",
			otelhttp.WithPropagators(otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})),
			otelhttp.WithTracerProvider(sdktrace.NewTracerProvider()),
			otelhttp.WithMeterProvider(sdkmetric.NewMeterProvider()))
	}
	route := gateway.WithRoutes(gateway.Route{Service: "order"})
	bare := "http://" + serve(t, newGateway(t, engine(t, whitelist), reg, route, meter, trusted))
	traced := "http://" + serve(t, otel(newGateway(t, engine(t, whitelist), reg, route, meter, trusted)))

	for name, c := range map[string]struct{ url, from string }{
		"directly":                        {bare, ""},
		"through a trusted proxy":         {bare, "127.0.0.9"},
		"otelhttp outside":                {traced, ""},
		"otelhttp outside, trusted proxy": {traced, "127.0.0.9"},
	} {
		client := newClient(t, c.from)
		for claim, headers := range claims {
			_, body := get(t, client, c.url, append([]string{"X-Forwarded-For", "198.51.100.1"}, headers...)...)
			s := rec.one(t)
			what := name + ", " + claim
			assert.Equal(t, "", body, what)
			assert.True(t, s.tag.IsZero(), what)
			assert.NotContains(t, s.Header, graytag.Header, what)
			assert.NotContains(t, s.Header, "X-Gray-Trace", what)
			lines := strings.ToLower(strings.Join(s.Header["Baggage"], ","))
			assert.NotContains(t, lines, "gray.", what)
			assert.NotContains(t, lines, "%61", what)
			if strings.Contains(strings.Join(headers, " "), "tenant") {
				assert.Contains(t, lines, "tenant=7", "%s: members of others go on", what)
			}
		}
	}
	assert.GreaterOrEqual(t, count(t, reader, "graylane.edge.forged"), int64(4*len(claims)))
}

// count sums a counter up.
func count(t *testing.T, reader *sdkmetric.ManualReader, name string) (n int64) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			if m.Name == name {
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					n += p.Value
				}
			}
		}
	}
	return n
}

func TestW1_TrustedGatewaysAreBelieved(t *testing.T) {
	reg, rec := orders(t)
	url := start(t, reg, gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.8"), grayhttp.WithTrustedProxies("127.0.0.9")))
	for from, want := range map[string]string{"127.0.0.8": "uid=1;version=v2.1.0", "127.0.0.9": ""} {
		resp, _ := get(t, newClient(t, from), url, graytag.Header, "uid=1;version=v2.1.0")
		assert.Equal(t, want, rec.one(t).tag.String(), from)
		assert.Equal(t, map[string]string{"127.0.0.8": "v2.1.0", "127.0.0.9": "stable"}[from], resp.Header.Get("X-Version"))
	}
}

func TestW2_ConnectionNamesOurHeaders(t *testing.T) {
	reg, rec := orders(t)
	url := start(t, reg)
	answer := raw(t, url, "GET /orders/1 HTTP/1.1\r\nHost: shop.example\r\nX-User-ID: 10086\r\n"+
		"Connection: close, X-Gray-Tag, Baggage\r\nX-Gray-Tag: version=v3.0.0\r\nBaggage: gray.version=v3.0.0,tenant=7\r\n\r\n")
	s := rec.one(t)
	assert.Equal(t, "v2.1.0", s.version)
	assert.Equal(t, []string{grayTag}, s.Header[graytag.Header])
	assert.Equal(t, grayTag, s.tag.String())
	assert.Equal(t, []string{"tenant=7,gray.channel=app,gray.version=v2.1.0"}, s.Header["Baggage"])
	assert.NotContains(t, s.Header, "Connection")
	assert.Contains(t, answer, "X-Version: v2.1.0\r\n")

	raw(t, url, "GET / HTTP/1.1\r\nHost: shop.example\r\nX-User-ID: 10086\r\nConnection: close, X-User-ID\r\n\r\n")
	s = rec.one(t)
	assert.Equal(t, grayTag, s.tag.String(), "rules have read it")
	assert.NotContains(t, s.Header, "X-User-Id")
}

func TestW3_WhoTheClientIs(t *testing.T) {
	reg, rec := orders(t)
	url := start(t, reg, gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.9/32")))
	for name, c := range map[string]struct {
		from         string
		headers      []string
		version      string
		forwardedFor string
	}{
		"a trusted proxy": {
			"127.0.0.9", []string{"X-Forwarded-For", "192.168.1.5", "X-Forwarded-For", "203.0.113.7"},
			"v3.0.0", "192.168.1.5, 203.0.113.7, 127.0.0.9",
		},
		"what stands further left is a claim": {
			"127.0.0.9", []string{"X-Forwarded-For", "203.0.113.7, 192.168.1.5"},
			"", "203.0.113.7, 192.168.1.5, 127.0.0.9",
		},
		"somebody else":         {"127.0.0.1", []string{"X-Forwarded-For", "203.0.113.7"}, "", "127.0.0.1"},
		"a proxy without claim": {"127.0.0.9", nil, "", "127.0.0.9"},
	} {
		resp, _ := get(t, newClient(t, c.from), url, c.headers...)
		s := rec.one(t)
		assert.Equal(t, c.version, s.version, name)
		assert.Equal(t, []string{c.forwardedFor}, s.Header["X-Forwarded-For"], name)
		assert.Equal(t, map[bool]string{true: "stable", false: c.version}[c.version == ""], resp.Header.Get("X-Version"), name)
	}
}

func TestForwardedHeaders(t *testing.T) {
	reg, rec := orders(t)
	url := start(t, reg, gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.9")))
	sent := []string{
		"X-Forwarded-Host", "shop.example", "X-Forwarded-Proto", "https", "X-Forwarded-Port", "443",
		"X-Forwarded-Prefix", "/x", "X-Real-IP", "203.0.113.7", "Forwarded", "for=203.0.113.7",
	}
	own := strings.TrimPrefix(url, "http://")

	get(t, newClient(t, "127.0.0.9"), url, sent...)
	h := rec.one(t).Header
	assert.Equal(t, "shop.example", h.Get("X-Forwarded-Host"))
	assert.Equal(t, "https", h.Get("X-Forwarded-Proto"))
	assert.Equal(t, "443", h.Get("X-Forwarded-Port"))
	assert.Equal(t, "203.0.113.7", h.Get("X-Real-IP"))

	get(t, newClient(t, "127.0.0.1"), url, sent...)
	s := rec.one(t)
	h = s.Header
	assert.Equal(t, "order", s.Host)
	assert.Equal(t, own, h.Get("X-Forwarded-Host"))
	assert.Equal(t, "http", h.Get("X-Forwarded-Proto"))
	for _, name := range []string{"X-Forwarded-Port", "X-Forwarded-Prefix", "X-Real-Ip", "Forwarded"} {
		assert.NotContains(t, h, name)
	}
}

func TestTheAnswerSaysWhatWasDecided(t *testing.T) {
	reg, _ := orders(t)
	boast := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["X-Version"] = []string{"v7", "v8"}
		w.Header().Set(gateway.ReasonHeader, "order")
		w.Header().Set("X-Canary-Group", "mine")
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "1"})
	})
	upstream(t, reg, "cart", "", boast)
	e := engine(t, `{"rules": [
		{"id": "lane", "services": ["order"], "match": [{"attr": "uid", "op": "equals", "values": ["1"]}], "tag": "version=v2.1.0"},
		{"id": "all", "priority": -1, "match": [{"attr": "uid", "op": "equals", "values": ["2"]}], "tag": "version=v2 beta"},
		{"id": "half", "match": [{"attr": "path", "op": "prefix", "values": ["/cart/half"]}], "percent": 50, "hashBy": ["uid", "group"], "tag": "version=v2"}
	]}`)
	g := newGateway(t, e, reg,
		gateway.WithRoutes(gateway.Route{Prefix: "/order", Service: "order"}, gateway.Route{Prefix: "/cart", Service: "cart"}),
		gateway.WithEdge(grayhttp.WithStickyCookie(grayhttp.StickyCookie{})))
	url, client := "http://"+serve(t, g), newClient(t, "")

	for path, want := range map[string]string{"/order": "v2.1.0", "/cart": "stable"} {
		resp, _ := get(t, client, url+path, "X-User-ID", "1")
		assert.Equal(t, []string{want}, resp.Header["X-Version"], "of the service that the route is for: %s", path)
		assert.Empty(t, resp.Header.Get(gateway.ReasonHeader), "nothing failed here")
		assert.NotContains(t, resp.Header, "X-Canary-Group", path)
	}
	resp, _ := get(t, client, url+"/order", "X-User-ID", "2")
	assert.Equal(t, "v2%20beta", resp.Header.Get("X-Version"))

	resp, _ = get(t, client, url+"/cart/half")
	assert.Len(t, resp.Header["X-Version"], 1)
	require.Len(t, resp.Cookies(), 2, "ours and the service's")
	group := resp.Cookies()[0]
	assert.Equal(t, grayhttp.GroupCookie, group.Name)
	assert.Equal(t, []string{group.Value}, resp.Header["X-Canary-Group"])
	again, _ := get(t, client, url+"/cart/half", "Cookie", group.Name+"="+group.Value)
	assert.Equal(t, resp.Header["X-Version"], again.Header["X-Version"])
	assert.Len(t, again.Cookies(), 1)
}

func TestCompatibilityFormats(t *testing.T) {
	reg, rec := orders(t)
	prop, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"))
	require.NoError(t, err)
	url := start(t, reg, gateway.WithPropagator(prop))
	get(t, newClient(t, ""), url, "X-User-ID", "10086", "X-Gray-Version", "v3.0.0")
	assert.Equal(t, []string{"v2.1.0"}, rec.one(t).Header["X-Gray-Version"])
	get(t, newClient(t, ""), url, "X-Gray-Version", "v3.0.0")
	s := rec.one(t)
	assert.NotContains(t, s.Header, "X-Gray-Version")
	assert.Empty(t, s.version)
}

// TestOtherBaggageGoesOn sends baggage of others along with a tag of ours.
func TestOtherBaggageGoesOn(t *testing.T) {
	reg, rec := orders(t)
	get(t, newClient(t, ""), start(t, reg), "X-User-ID", "10086", "Baggage", "tenant=7;p=1")
	s := rec.one(t)
	b, err := baggage.Parse(strings.Join(s.Header["Baggage"], ","))
	require.NoError(t, err)
	assert.Equal(t, "7", b.Member("tenant").Value())
	assert.Equal(t, "v2.1.0", b.Member("gray.version").Value())
}

// Middleware outside the gateway may write keys into the header as it likes; net/http
// would send them beside ours.
func TestKeysThatNetHTTPWouldNotHaveWritten(t *testing.T) {
	canary, err := propagation.New(propagation.WithCanaryHeader("X-Canary"))
	require.NoError(t, err)
	reg, rec := orders(t)
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}), gateway.WithPropagator(canary))
	url := "http://" + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header["x-gray-tag"] = []string{"version=v3.0.0"}
		r.Header["x-canary"] = []string{"true"}
		r.Header["x-gray-trace"] = []string{"1"}
		r.Header["baggage"] = []string{"tenant=7"}
		g.ServeHTTP(w, r)
	}))
	for user, want := range map[string]string{"1": "", "10086": "v2.1.0"} {
		for name, headers := range map[string][]string{
			"plain":  {"Cookie", "user_id=" + user},
			"tunnel": {"Cookie", "user_id=" + user, "Connection", "Upgrade", "Upgrade", "websocket"},
		} {
			_, body := get(t, newClient(t, ""), url, headers...)
			s := rec.one(t)
			what := user + ", " + name
			assert.Equal(t, want, body, what)
			assert.Equal(t, want, s.tag.Route("version", "order"), what)
			assert.NotContains(t, s.Header, "X-Gray-Trace", what)
			assert.LessOrEqual(t, len(s.Header[graytag.Header]), 1, what)
			assert.LessOrEqual(t, len(s.Header["X-Canary"]), 1, what)
			if want == "" {
				assert.NotContains(t, s.Header, graytag.Header, what)
				assert.NotEqual(t, []string{"true"}, s.Header["X-Canary"], what)
			}
			assert.Contains(t, s.Header.Get("Baggage"), "tenant=7", what)
		}
	}
}
