package grayhttp_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// testers sends the users whose uid ends in 9999 to v2.
const testers = `{"rules": [{"id": "testers", "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"}]}`

func newEngine(t testing.TB, document string) *rule.Engine {
	t.Helper()
	engine, err := rule.NewEngine(parse(t, document))
	require.NoError(t, err)
	return engine
}

func parse(t testing.TB, document string) *rule.Set {
	t.Helper()
	set, err := rule.Parse([]byte(document))
	require.NoError(t, err)
	return set
}

// enter wraps h in an edge.
func enter(t testing.TB, engine *rule.Engine, h http.Handler, opts ...grayhttp.EdgeOption) http.Handler {
	t.Helper()
	wrap, err := grayhttp.Edge(engine, opts...)
	require.NoError(t, err)
	return wrap(h)
}

// exchange sends a request byte by byte as it stands, and returns the answer.
func exchange(t testing.TB, address string, lines ...string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	lines = append(lines, "Host: shop.example.com", "Connection: close", "", "")
	_, err = io.WriteString(conn, strings.Join(lines, "\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

// forgery is what W1 sends: each line claims a tag.
var forgery = []string{
	"X-Gray-Tag: version=v2", "x-gRaY-tAg: version=v3;uid=1", "X-GRAY-TRACE: 1", "X-Gray-Trace: 1",
	"bAgGaGe: tenant=acme,gray.version=v2", "Baggage: gray.uid=1 , Gray.version=v2,gray%2Eversion=v2,plan=gold",
	"x-gray-version: v2", "X-CANARY: canary", "Gray: true",
}

func compatible(t testing.TB, opts ...propagation.Option) *propagation.Propagator {
	t.Helper()
	p, err := propagation.New(append(opts,
		propagation.WithVersionHeader("X-Gray-Version"), propagation.WithCanaryHeader("X-Canary"), propagation.WithFlagHeader("gray"))...)
	require.NoError(t, err)
	return p
}

// clean holds what was seen against what W1 wants.
func clean(t *testing.T, s seen) {
	t.Helper()
	assert.True(t, s.scope)
	assert.True(t, s.tag.IsZero(), s.tag)
	for _, name := range []string{"X-Gray-Tag", "X-Gray-Trace", "X-Gray-Version", "X-Canary", "Gray"} {
		assert.NotContains(t, s.header, name)
	}
	foreign := map[string]string{"tenant": "acme", "plan": "gold"}
	assert.Equal(t, foreign, members(t, s.header["Baggage"]))
	got := map[string]string{}
	for _, m := range baggage.FromContext(s.ctx).Members() {
		got[m.Key()] = m.Value()
	}
	assert.Equal(t, foreign, got, "of the context")
}

func TestW1_NothingForgedComesIn(t *testing.T) {
	loopback := []string{"127.0.0.0/8", "::1"}
	for name, c := range map[string]struct {
		opts []grayhttp.EdgeOption
		otel bool
		more []string
	}{
		"direct":                  {},
		"through a trusted proxy": {opts: []grayhttp.EdgeOption{grayhttp.WithTrustedProxies(loopback...)}, more: []string{"X-Forwarded-For: 203.0.113.7"}},
		"otelhttp outside":        {otel: true},
		"the peer it claims to be is a trusted gateway": {
			opts: []grayhttp.EdgeOption{grayhttp.WithTrustedProxies(loopback...), grayhttp.WithTrustedGateways("10.0.0.1", "203.0.113.7")},
			more: []string{"X-Forwarded-For: 10.0.0.1"}, otel: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			provider, sum := meter(t)
			reg := memory.New()
			var upstream, handler recorder
			register(t, reg, "inventory", "i1", "", serveBare(t, &upstream))
			register(t, reg, "inventory", "i2", "v2", serveBare(t, http.NotFoundHandler()))
			client := newClient(t, reg, grayhttp.WithPropagator(compatible(t)))
			h := enter(t, newEngine(t, testers), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				handler.record(r)
				// As careless as can be: all that came in goes on.
				out, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://inventory/", nil)
				assert.NoError(t, err)
				out.Header = r.Header.Clone()
				assert.NoError(t, send(client, out))
			}), append(c.opts, grayhttp.WithMeterProvider(provider),
				grayhttp.WithPropagator(compatible(t, propagation.WithMeterProvider(provider))))...)
			if c.otel {
				h = otelHandler(h)
			}
			address := serveBare(t, h)
			for range 2 {
				resp := exchange(t, address, append(append([]string{"GET /items HTTP/1.1"}, forgery...), c.more...)...)
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.Equal(t, []string{"stable"}, resp.Header["X-Version"])
				clean(t, handler.one(t))
				up := upstream.one(t)
				assert.NotContains(t, up.header, "X-Gray-Tag")
				assert.Equal(t, map[string]string{"tenant": "acme", "plan": "gold"}, members(t, up.header["Baggage"]))
			}
			assert.Equal(t, map[string]int64{"header": 2, "baggage": 2, "compatibility": 2, "trace": 2}, sum("graylane.edge.forged", "carrier"))
			assert.Empty(t, sum("graylane.propagation.malformed"), "what is not read is not malformed")

			resp := exchange(t, address, "GET / HTTP/1.1", "Baggage: tenant=acme")
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, "tenant=acme", handler.one(t).header.Get("Baggage"))
			upstream.one(t)
			assert.Equal(t, int64(2), sum("graylane.edge.forged", "carrier")["baggage"])
		})
	}
}

// Other middleware of graylane outside the edge has believed what came.
func TestTheInboundMiddlewareOutsideDoesNotHelpForgers(t *testing.T) {
	var rec recorder
	outside, err := grayhttp.NewHandler(enter(t, newEngine(t, testers), &rec))
	require.NoError(t, err)
	address := serveBare(t, otelHandler(outside))
	exchange(t, address, append([]string{"GET / HTTP/1.1"}, forgery[:6]...)...)
	clean(t, rec.one(t))
	exchange(t, address, append([]string{"GET / HTTP/1.1", "X-User-ID: 9999"}, forgery[:6]...)...)
	assert.Equal(t, "version=v2", rec.one(t).tag.String())
}

// A baggage header past the limits of readers is no way round.
func TestNothingForgedHidesBehindALimit(t *testing.T) {
	var rec recorder
	address := serveBare(t, otelHandler(enter(t, newEngine(t, testers), &rec)))
	long := "tenant=" + strings.Repeat("x", 9000)
	exchange(t, address, "GET / HTTP/1.1", "Baggage: "+long+",gray.version=v2", "Baggage: gray.version=v2")
	got := rec.one(t)
	assert.Equal(t, []string{long}, got.header["Baggage"])
	assert.True(t, got.tag.IsZero())
}

func TestRulesReadTheRequestAsItCame(t *testing.T) {
	engine := newEngine(t, `{"rules": [
		{"id": "old-clients", "match": [{"attr": "header:X-Gray-Version", "op": "equals", "values": ["v2"]}], "tag": "version=v7"}]}`)
	var rec recorder
	address := serveBare(t, enter(t, engine, &rec, grayhttp.WithPropagator(compatible(t))))
	resp := exchange(t, address, "GET / HTTP/1.1", "X-Gray-Version: v2", "X-Gray-Tag: version=v9")
	got := rec.one(t)
	assert.Equal(t, "version=v7", got.tag.String())
	assert.NotContains(t, got.header, "X-Gray-Version")
	assert.Equal(t, "v7", resp.Header.Get("X-Version"))
}

// The edge's half of W2: what the client names in Connection takes nothing away
// from a proxy behind the edge, of the good kind or the old.
func TestW2_ConnectionTakesNoTagAway(t *testing.T) {
	reg := memory.New()
	var stable, gray, seen recorder
	register(t, reg, "inventory", "i1", "", serveBare(t, &stable))
	register(t, reg, "inventory", "i2", "v2", serveBare(t, &gray))
	target, err := url.Parse("http://inventory")
	require.NoError(t, err)
	client := newClient(t, reg)
	for name, proxy := range map[string]*httputil.ReverseProxy{
		"Rewrite":  {Transport: client.Transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }},
		"Director": {Transport: client.Transport, Director: func(r *http.Request) { r.URL.Scheme, r.URL.Host = "http", "inventory" }},
		"by hand": {Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: gray.address(t)})
			r.Out.Header.Set("X-Gray-Tag", graytag.FromContext(r.In.Context()).String())
		}},
	} {
		address := serveBare(t, enter(t, newEngine(t, testers), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.record(r)
			proxy.ServeHTTP(w, r)
		})))
		resp := exchange(t, address, "GET / HTTP/1.1", "X-User-ID: 9999", "X-Gray-Tag: version=v1", "Baggage: tenant=acme",
			"X-Hop: 1", "Connection: keep-alive, X-Gray-Tag , BAGGAGE,x-hop", "Connection: X-Gray-Trace")
		require.Equal(t, http.StatusOK, resp.StatusCode, name)
		got := gray.one(t)
		assert.Equal(t, []string{"version=v2"}, got.header["X-Gray-Tag"], name)
		assert.NotContains(t, got.header, "X-Hop", "what is not ours is the client's to say")
		if name != "by hand" {
			assert.Equal(t, "v2", members(t, got.header["Baggage"])["gray.version"], name)
		}
		assert.Equal(t, []string{"keep-alive, x-hop, close"}, seen.one(t).header["Connection"])
	}
	assert.Empty(t, stable.take())
}

// address starts a server for r.
func (r *recorder) address(t testing.TB) string { return serveBare(t, r) }

func TestW3_TheAddressOfTheClient(t *testing.T) {
	engine := newEngine(t, `{"carry": ["address"], "attributes": {"address": ["ip"]}, "rules": []}`)
	ip := func(h http.Handler, rec *recorder, remote string, lines ...string) string {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = remote
		r.Header["X-Forwarded-For"] = lines
		h.ServeHTTP(httptest.NewRecorder(), r)
		return rec.one(t).tag.Get("address")
	}
	var rec recorder
	h := enter(t, engine, &rec, grayhttp.WithTrustedProxies("10.0.0.0/8"))
	assert.Equal(t, "203.0.113.7", ip(h, &rec, "10.0.0.9:1234", "192.168.1.5", "203.0.113.7"))
	assert.Equal(t, "198.51.100.1", ip(h, &rec, "198.51.100.1:1234", "203.0.113.7"), "not a trusted peer")
	assert.Equal(t, "10.0.0.9", ip(h, &rec, "[::ffff:10.0.0.9]:1234"))
	assert.Empty(t, ip(h, &rec, "@", "203.0.113.7"), "a Unix socket")

	// The same over sockets: the peer is what the connection says.
	address := serveBare(t, enter(t, engine, &rec, grayhttp.WithTrustedProxies("127.0.0.1"), grayhttp.WithTrustedGateways("203.0.113.7")))
	exchange(t, address, "GET / HTTP/1.1", "X-Forwarded-For: 192.168.1.5", "X-FORWARDED-FOR: 203.0.113.7", "X-Gray-Tag: version=v2")
	got := rec.one(t)
	assert.Equal(t, "address=203.0.113.7", got.tag.String(), "an address to be trusted in X-Forwarded-For is no peer")
	entry, ok := grayhttp.EntryFromContext(got.ctx)
	require.True(t, ok)
	assert.Equal(t, "203.0.113.7", entry.Client.String())
	assert.True(t, entry.Proxied)
	assert.False(t, entry.Passed)

	address = serveBare(t, enter(t, engine, &rec, grayhttp.WithTrustedGateways("127.0.0.1")))
	exchange(t, address, "GET / HTTP/1.1", "X-Forwarded-For: 203.0.113.7")
	assert.Equal(t, "127.0.0.1", rec.one(t).tag.Get("address"), "a trusted gateway is not a trusted proxy")
}

func TestR11_TheOfficeNetworkInAnySpelling(t *testing.T) {
	engine := newEngine(t, `{"rules": [{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["10.0.0.0/8"]}], "tag": "version=v2"}]}`)
	var rec recorder
	h := enter(t, engine, &rec, grayhttp.WithTrustedProxies("127.0.0.0/8"))
	address := serveBare(t, h)
	for forwarded, want := range map[string]string{
		"[::ffff:10.1.2.3]:5555": "v2", "::ffff:10.1.2.3": "v2", "10.1.2.3:5555": "v2", "10.1.2.3": "v2",
		"[::ffff:11.1.2.3]:5555": "stable", "10.1.2.3.4": "stable", "10.1.2.3, 203.0.113.7": "stable",
	} {
		resp := exchange(t, address, "GET / HTTP/1.1", "X-Forwarded-For: "+forwarded)
		assert.Equal(t, want, resp.Header.Get("X-Version"), forwarded)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = "[::ffff:10.1.2.3]:5555"
	h.ServeHTTP(w, r)
	assert.Equal(t, "v2", w.Header().Get("X-Version"))
}

func TestTrustedGateways(t *testing.T) {
	const local, other = "127.0.0.0/8", "10.0.0.0/8"
	for _, c := range []struct {
		name     string
		gateways []string
		lines    []string
		tag      string // that the handler sees
		header   string // X-Gray-Tag, in its header
		version  string
		passed   bool
		trace    bool
		forged   int64
	}{
		{"a valid tag passes, no rule is asked", []string{other, local}, []string{"X-Gray-Tag: version=v7;uid=1", "X-User-ID: 9999"}, "uid=1;version=v7", "version=v7;uid=1", "v7", true, false, 0},
		{"in baggage alone", []string{local}, []string{"Baggage: gray.version=v7,tenant=acme"}, "version=v7", "", "v7", true, false, 0},
		{"in a compatibility header alone", []string{local}, []string{"X-Gray-Version: v7"}, "version=v7", "", "v7", true, false, 0},
		{"with the question for the way", []string{local}, []string{"X-Gray-Tag: version=v7", "X-Gray-Trace: 1"}, "version=v7", "version=v7", "v7", true, true, 0},
		{"the question alone", []string{local}, []string{"X-Gray-Trace: 1"}, "", "", "stable", false, true, 0},
		{"no tag: the rules decide", []string{local}, []string{"X-User-ID: 9999"}, "version=v2", "", "v2", false, false, 0},
		{"a malformed one is none", []string{local}, []string{"X-Gray-Tag: version", "X-User-ID: 9999"}, "version=v2", "", "v2", false, false, 1},
		{"two that differ are none", []string{local}, []string{"X-Gray-Tag: version=v7", "X-Gray-Tag: version=v8"}, "", "", "stable", false, false, 1},
		{"another peer", []string{other}, []string{"X-Gray-Tag: version=v7", "X-Forwarded-For: 10.0.0.1", "X-Gray-Trace: 1"}, "", "", "stable", false, false, 2},
		{"nobody is trusted", nil, []string{"X-Gray-Tag: version=v7"}, "", "", "stable", false, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			provider, sum := meter(t)
			var rec recorder
			address := serveBare(t, enter(t, newEngine(t, testers), &rec,
				grayhttp.WithTrustedGateways(c.gateways...), grayhttp.WithPropagator(compatible(t)), grayhttp.WithMeterProvider(provider)))
			resp := exchange(t, address, append([]string{"GET / HTTP/1.1"}, c.lines...)...)
			got := rec.one(t)
			assert.True(t, got.scope)
			assert.Equal(t, c.tag, got.tag.String())
			assert.Equal(t, c.header, got.header.Get("X-Gray-Tag"))
			assert.Equal(t, c.version, resp.Header.Get("X-Version"))
			assert.Equal(t, c.trace, got.header.Get("X-Gray-Trace") != "")
			entry, ok := grayhttp.EntryFromContext(got.ctx)
			require.True(t, ok)
			assert.Equal(t, c.passed, entry.Passed)
			assert.Equal(t, "version", entry.Decision.Key)
			assert.Equal(t, c.forged, sum("graylane.edge.forged")[""])
			if c.tag == "version=v7" && c.name == "in baggage alone" {
				assert.Equal(t, "acme", baggage.FromContext(got.ctx).Member("tenant").Value())
			}
		})
	}
}

// What a proxy says of a request that it asks about is decided, never believed.
func TestADescribedRequestIsNotBelieved(t *testing.T) {
	var rec recorder
	described := enter(t, newEngine(t, testers), &rec, grayhttp.WithTrustedGateways("127.0.0.0/8"), grayhttp.WithTrustedProxies("127.0.0.0/8"))
	address := serveBare(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, err := edge.Describe(r, edge.Described{Method: http.MethodPut, URI: r.Header.Get("X-Original-URI"), Host: "shop.example.com"})
		assert.NoError(t, err)
		described.ServeHTTP(w, in)
	}))
	resp := exchange(t, address, "GET /auth HTTP/1.1", "X-Original-URI: /cart?uid=9999", "X-Gray-Tag: version=v7",
		"X-Gray-Trace: 1", "X-Forwarded-For: 203.0.113.7", "X-Forwarded-Proto: https")
	got := rec.one(t)
	assert.Equal(t, "version=v2", got.tag.String())
	assert.Equal(t, "v2", resp.Header.Get("X-Version"))
	assert.NotContains(t, got.header, "X-Gray-Trace")
	entry, ok := grayhttp.EntryFromContext(got.ctx)
	require.True(t, ok)
	assert.Equal(t, "203.0.113.7", entry.Client.String())
	assert.True(t, entry.Secure)
	assert.False(t, entry.Passed)
}

type userKey struct{}

func TestTheAuthenticatedUserCounts(t *testing.T) {
	engine := newEngine(t, `{"rules": [
		{"id": "testers", "match": [{"attr": "uid", "op": "equals", "values": ["9999"]}], "tag": "version=v2"},
		{"id": "raw", "match": [{"attr": "header:X-User-ID", "op": "equals", "values": ["7"]}], "tag": "version=v3"}]}`)
	var rec recorder
	h := enter(t, engine, &rec,
		grayhttp.WithAttr("uid", func(*http.Request) (string, bool) { return "1", true }), // the last one counts
		grayhttp.WithAttr("uid", func(r *http.Request) (string, bool) {
			user, ok := r.Context().Value(userKey{}).(string)
			return user, ok
		}), grayhttp.WithAttr("channel", nil))
	authenticated := func(user string, claims ...string) string {
		r := httptest.NewRequest(http.MethodGet, "/?uid=9999", nil)
		r.Header["X-User-Id"] = claims
		r.AddCookie(&http.Cookie{Name: "user_id", Value: "9999"})
		if user != "" {
			r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
		}
		h.ServeHTTP(httptest.NewRecorder(), r)
		return rec.one(t).tag.Get("version")
	}
	assert.Equal(t, "v2", authenticated("9999", "1"))
	assert.Empty(t, authenticated("1", "9999"), "a header is a claim")
	assert.Empty(t, authenticated("", "9999"), "nobody is nobody, whatever is claimed")
	assert.Equal(t, "v3", authenticated("1", "7"), "a rule that names the header reads it")
}

func TestAnEdgeIsAnInboundMiddleware(t *testing.T) {
	provider, sum := meter(t)
	engine := newEngine(t, `{"rules": [
		{"id": "order", "services": ["order"], "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"}]}`)
	var rec recorder
	address := serveBare(t, enter(t, engine, &rec, self("v2"), grayhttp.WithMeterProvider(provider), grayhttp.WithExempt("/healthz")))

	resp := exchange(t, address, "GET / HTTP/1.1", "X-User-ID: 9999")
	got := rec.one(t)
	arrival, ok := grayhttp.ArrivalFromContext(got.ctx)
	require.True(t, ok)
	assert.Equal(t, grayhttp.Arrival{Service: "order", Version: "v2", Wanted: "v2", Outcome: subset.Matched}, arrival)
	assert.Equal(t, "v2", resp.Header.Get("X-Version"), "for the service that answers")
	entry, ok := grayhttp.EntryFromContext(got.ctx)
	require.True(t, ok)
	assert.Equal(t, []string{"order"}, entry.Decision.Rules)
	assert.False(t, entry.Secure)

	exchange(t, address, "GET / HTTP/1.1")
	arrival, ok = grayhttp.ArrivalFromContext(rec.one(t).ctx)
	require.True(t, ok)
	assert.Equal(t, subset.Misrouted, arrival.Outcome)

	resp = exchange(t, address, "GET /healthz HTTP/1.1", "X-User-ID: 9999", "X-Gray-Tag: version=v2")
	got = rec.one(t)
	_, ok = grayhttp.ArrivalFromContext(got.ctx)
	assert.False(t, ok)
	assert.True(t, got.scope)
	assert.True(t, got.tag.IsZero())
	assert.NotContains(t, got.header, "X-Gray-Tag", "exempt from decisions, not from cleaning")
	assert.NotContains(t, resp.Header, "X-Version")
	assert.Equal(t, map[string]int64{"v2 matched": 1, "stable misrouted": 1}, sum("graylane.server.requests", "wanted", "outcome"))

	_, ok = grayhttp.EntryFromContext(context.Background())
	assert.False(t, ok)
}

func TestTheAnswerNamesTheVersion(t *testing.T) {
	engine := newEngine(t, `{"key": "lane", "rules": [
		{"id": "odd", "match": [{"attr": "uid", "op": "equals", "values": ["1"]}], "tag": "lane=%E7%81%B0 b"}]}`)
	var rec recorder
	address := serveBare(t, enter(t, engine, &rec))
	resp := exchange(t, address, "GET / HTTP/1.1", "X-User-ID: 1")
	assert.Equal(t, "%E7%81%B0%20b", resp.Header.Get("X-Version"))
	assert.Equal(t, "灰 b", rec.one(t).tag.Get("lane"))
	resp = exchange(t, address, "GET / HTTP/1.1")
	assert.Equal(t, "stable", resp.Header.Get("X-Version"))
	assert.NotContains(t, resp.Header, "X-Canary-Group")
	assert.NotContains(t, resp.Header, "Vary")
}

func TestWrongEdgeOptions(t *testing.T) {
	engine := newEngine(t, testers)
	value := func(*http.Request) (string, bool) { return "", false }
	for want, opt := range map[string]grayhttp.EdgeOption{
		`WithTrustedGateways: range "10.0.0.0/33"`: grayhttp.WithTrustedGateways("10.0.0.0/8", "10.0.0.0/33"),
		`WithTrustedProxies: range "office"`:       grayhttp.WithTrustedProxies("office"),
		`WithAttr: attribute "ip" is built in`:     grayhttp.WithAttr("ip", value),
		`WithAttr: attribute "header:X-User-ID"`:   grayhttp.WithAttr("header:X-User-ID", value),
		`WithAttr: attribute ""`:                   grayhttp.WithAttr("", value),
		`WithStickyCookie: MaxAge -1s`:             grayhttp.WithStickyCookie(grayhttp.StickyCookie{MaxAge: -1e9}),
		`WithStickyCookie: domain "a b"`:           grayhttp.WithStickyCookie(grayhttp.StickyCookie{Domain: "a b"}),
		"without a service":                        grayhttp.WithSelf(registry.Instance{}),
		"minReady -1":                              grayhttp.WithPolicy(subset.Policy{MinReady: -1}),
		`exempt path "x"`:                          grayhttp.WithExempt("x"),
	} {
		wrap, err := grayhttp.Edge(engine, opt)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "grayhttp: ")
		assert.Nil(t, wrap)
	}
	_, err := grayhttp.Edge(nil)
	require.EqualError(t, err, "grayhttp: engine is nil")
	_, err = grayhttp.Edge(engine, nil, grayhttp.WithAttr("uid", nil))
	require.NoError(t, err)
}

func TestRulesChangeWhileRequestsComeIn(t *testing.T) {
	engine := newEngine(t, testers)
	var rec recorder
	address := serveBare(t, enter(t, engine, &rec))
	for i, c := range []struct{ document, want string }{
		{testers, "v2"},
		{strings.Replace(testers, "v2", "v3", 1), "v3"},
		{`{"stop": true, ` + testers[1:], "stable"},
		{testers, "v2"},
	} {
		require.NoError(t, engine.Load(parse(t, c.document)))
		resp := exchange(t, address, "GET / HTTP/1.1", "X-User-ID: 9999")
		assert.Equal(t, c.want, resp.Header.Get("X-Version"), fmt.Sprint("step ", i))
	}
}

// Work that outlives a request may keep its context, which must not keep the request.
func TestAContextThatIsKeptKeepsNoRequest(t *testing.T) {
	var kept context.Context
	h := enter(t, newEngine(t, testers), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		kept = context.WithoutCancel(r.Context())
	}))
	gone := make(chan struct{})
	func() {
		body := &struct{ io.ReadCloser }{http.NoBody}
		runtime.AddCleanup(body, func(c chan struct{}) { close(c) }, gone)
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Body = body
		h.ServeHTTP(httptest.NewRecorder(), r)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		select {
		case <-gone:
			return true
		default:
			return false
		}
	}, 10*time.Second, 10*time.Millisecond)
	_, ok := grayhttp.EntryFromContext(kept)
	assert.True(t, ok)
}
