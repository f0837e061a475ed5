package gateway_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
)

// authRules sends user 10086 and the office to v2, where he may name himself in
// each way that there is.
const authRules = `{"rules": [
	{"id": "user", "match": [{"attr": "uid", "op": "equals", "values": ["10086"]}], "tag": "lane=a;version=v2"},
	{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v3"}
]}`

// seenByRules carries all that rules see into the tag.
const seenByRules = `{
	"attributes": {"m": ["method"], "p": ["path"], "h": ["host"], "q": ["query:color"], "c": ["cookie:user_id"], "x": ["header:X-User-ID"], "i": ["ip"]},
	"carry": ["m", "p", "h", "q", "c", "x", "i"]
}`

func authEngine(t testing.TB, document string) *rule.Engine {
	t.Helper()
	set, err := rule.Parse([]byte(document))
	require.NoError(t, err)
	e, err := rule.NewEngine(set)
	require.NoError(t, err)
	return e
}

func authHandler(t testing.TB, document string, opts ...gateway.ForwardAuthOption) http.Handler {
	t.Helper()
	opts = append([]gateway.ForwardAuthOption{gateway.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	h, err := gateway.ForwardAuth(authEngine(t, document), opts...)
	require.NoError(t, err)
	return h
}

// authServer serves the endpoint and returns its address.
func authServer(t testing.TB, document string, opts ...gateway.ForwardAuthOption) (address string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = gateway.NewServer("", authHandler(t, document, opts...))
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// ask sends a request byte by byte as it stands, and returns the answer.
func ask(t testing.TB, address string, lines ...string) http.Header {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, strings.Join(append(lines, "Connection: close", "", ""), "\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Empty(t, body)
	assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	return resp.Header
}

// asProxies is one request, POST http://shop.example.com/orders/1?color=red, as
// each kind of proxy tells of it.
var asProxies = map[string]struct {
	convention gateway.Convention
	lines      []string
}{
	"nginx": {gateway.Nginx(), []string{
		"GET /_graylane HTTP/1.1", "Host: shop.example.com:8080",
		"X-Original-Method: POST", "X-Original-URI: /orders/1?color=red&color=blue",
	}},
	"ingress-nginx": {gateway.IngressNginx(), []string{
		"GET / HTTP/1.1", "Host: graylane.default.svc.cluster.local", "X-Sent-From: nginx-ingress-controller",
		"X-Original-Method: POST", "X-Original-URL: http://shop.example.com/orders/1?color=red",
	}},
	"traefik, caddy, apisix": {gateway.Forwarded(), []string{
		"GET / HTTP/1.1", "Host: graylane:8081",
		"X-Forwarded-Method: POST", "X-Forwarded-Host: shop.example.com", "X-Forwarded-Uri: /orders/1?color=red",
	}},
	"envoy": {gateway.Envoy("/graylane"), []string{
		"POST /graylane/orders/1?color=red HTTP/1.1", "Host: shop.example.com", "Content-Length: 0",
	}},
}

func TestForwardAuthConventions(t *testing.T) {
	const rest = ";m=POST;p=/orders/1;q=red;x=7"
	client := []string{"Cookie: a=b; user_id=42", "x-uSeR-iD: 7", "X-Forwarded-For: 1.1.1.1, 203.0.113.7"}
	for name, c := range asProxies {
		t.Run(name, func(t *testing.T) {
			lines := append(c.lines, client...)
			trusting := authServer(t, seenByRules, gateway.WithConvention(c.convention), gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.1")))
			assert.Equal(t, "c=42;h=shop.example.com;i=203.0.113.7"+rest, ask(t, trusting, lines...).Get("X-Gray-Tag"))
			distrusting := authServer(t, seenByRules, gateway.WithConvention(c.convention), gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.1")))
			assert.Equal(t, "c=42;h=shop.example.com;i=127.0.0.1"+rest, ask(t, distrusting, lines...).Get("X-Gray-Tag"))

			// What another proxy would say is the client's word.
			for other, o := range asProxies {
				if other == name {
					continue
				}
				for _, line := range o.lines {
					if key, _, _ := strings.Cut(line, ": "); strings.HasPrefix(key, "X-") && !strings.Contains(strings.Join(lines, "\n"), key+":") {
						lines = append(lines, key+": /forged?color=black")
					}
				}
			}
			assert.Equal(t, "c=42;h=shop.example.com;i=203.0.113.7"+rest, ask(t, trusting, lines...).Get("X-Gray-Tag"))
		})
	}
}

// TestForwardAuthIsTheLastToSpeak: a proxy that adds its header to the client's
// comes last.
func TestForwardAuthIsTheLastToSpeak(t *testing.T) {
	address := authServer(t, seenByRules)
	h := ask(t, address, "GET / HTTP/1.1", "Host: graylane", "X-Forwarded-Uri: /forged", "X-Forwarded-Uri: /orders", "x-forwarded-method: PUT", "X-Forwarded-Method: PATCH")
	assert.Equal(t, "h=graylane;i=127.0.0.1;m=PATCH;p=/orders", h.Get("X-Gray-Tag"))
}

func TestForwardAuthReadsWhatCanBeRead(t *testing.T) {
	for _, c := range []struct{ uri, path string }{
		{"//evil.example.com/orders", "p=//evil.example.com/orders"},
		{"/a%2Fb/%E7%81%B0", "p=/a/b/%E7%81%B0"},
		{"*", "p=%2A"},
		{"/orders?%zz&color=red", "p=/orders;q=red"},
		// What nobody can read, no rule is asked about; the others are.
		{"/%zz?color=red", "p=/"},
		{"orders", "p=/"},
		{"/" + strings.Repeat("a", 65<<10), ""},
		{"", "p=/asked"},
	} {
		h := http.Header{"X-Forwarded-Uri": {c.uri}, "X-Forwarded-Host": {"shop"}, "X-User-Id": {"10086"}}
		r := httptest.NewRequest(http.MethodGet, "/asked", nil)
		r.Header = h
		w := httptest.NewRecorder()
		authHandler(t, seenByRules).ServeHTTP(w, r)
		assert.Equal(t, http.StatusOK, w.Code)
		want := "h=shop;i=192.0.2.1;m=GET;" + c.path + ";x=10086"
		if c.path == "" {
			want = "h=shop;i=192.0.2.1;m=GET;p=/;x=10086"
		}
		assert.True(t, graytag.MustParse(want).Equal(graytag.MustParse(w.Header().Get("X-Gray-Tag"))), "%.40q: %s", c.uri, w.Header().Get("X-Gray-Tag"))
	}

	// The prefix of Envoy is a matter of its configuration.
	for asked, path := range map[string]string{"/graylane": "p=/", "/graylane?color=red": "p=/;q=red", "/other": "p=/other", "/graylane//x": "p=//x"} {
		r := httptest.NewRequest(http.MethodGet, asked, nil)
		w := httptest.NewRecorder()
		authHandler(t, seenByRules, gateway.WithConvention(gateway.Envoy("/graylane"))).ServeHTTP(w, r)
		assert.Equal(t, "h=example.com;i=192.0.2.1;m=GET;"+path, w.Header().Get("X-Gray-Tag"))
	}
}

// authClaims is what W1 sends: each line claims a tag.
var authClaims = []string{
	"X-Gray-Tag: version=v2", "x-gRaY-tAg: version=v3;uid=1", "X-GRAY-TRACE: 1", "X-Gray-Trace: 1",
	"bAgGaGe: tenant=acme,gray.version=v2", "Baggage: gray.uid=1 , Gray.version=v2,gray%2Eversion=v2,plan=gold;p=1",
	"x-gray-version: v2", "X-CANARY: canary", "Gray: true",
}

func TestW1_ForwardAuthBelievesNoTag(t *testing.T) {
	prop, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"), propagation.WithFlagHeader("gray"), propagation.WithCanaryHeader("X-Canary"))
	require.NoError(t, err)
	ours := []string{"X-Gray-Tag", "X-Gray-Version", "Gray", "X-Canary"}
	for name, c := range asProxies {
		t.Run(name, func(t *testing.T) {
			address := authServer(t, authRules, gateway.WithPropagator(prop), gateway.WithConvention(c.convention),
				gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.0/8"), grayhttp.WithTrustedProxies("127.0.0.0/8")))
			removed := func(h http.Header) []string {
				if v := h.Get("X-Envoy-Auth-Headers-To-Remove"); v != "" {
					return strings.Split(v, ",")
				}
				return nil
			}

			h := ask(t, address, append(c.lines, authClaims...)...)
			for _, name := range append(ours, "X-Gray-Trace") {
				assert.Equal(t, []string{""}, h[name], name)
			}
			require.Len(t, h["Baggage"], 1)
			assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold;p=1"}, strings.Split(h.Get("Baggage"), ","))
			assert.Equal(t, "stable", h.Get("X-Version"))
			if name == "envoy" {
				assert.ElementsMatch(t, append(ours, "X-Gray-Trace"), removed(h))
			} else {
				assert.Nil(t, removed(h))
			}

			// Whom a rule wants gets his tag, and nothing of what he claims.
			h = ask(t, address, append(append(c.lines, authClaims...), "X-User-ID: 10086")...)
			assert.Equal(t, []string{"lane=a;version=v2"}, h["X-Gray-Tag"])
			assert.Equal(t, []string{"v2"}, h["X-Gray-Version"])
			assert.Equal(t, []string{""}, h["X-Canary"])
			require.Len(t, h["Baggage"], 1)
			assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold;p=1", "gray.lane=a", "gray.version=v2"}, strings.Split(h.Get("Baggage"), ","))
			assert.Equal(t, "v2", h.Get("X-Version"))
			if name == "envoy" {
				assert.NotContains(t, removed(h), "X-Gray-Tag")
				assert.NotContains(t, removed(h), "Baggage")
			}
		})
	}
}

func TestForwardAuthAnswers(t *testing.T) {
	get := append([]string{}, asProxies["nginx"].lines...)
	address := authServer(t, authRules, gateway.WithConvention(gateway.Nginx()), nil)

	h := ask(t, address, get...)
	for _, name := range []string{"X-Gray-Tag", "Baggage", "X-Gray-Trace"} {
		assert.Equal(t, []string{""}, h[name], "an untagged request: %s", name)
	}
	assert.Equal(t, "stable", h.Get("X-Version"))
	assert.NotContains(t, h, "X-Canary-Group")
	assert.NotContains(t, h, "Set-Cookie")

	h = ask(t, address, append(get, "Cookie: user_id=10086")...)
	assert.Equal(t, []string{"lane=a;version=v2"}, h["X-Gray-Tag"])
	assert.Equal(t, []string{"gray.lane=a,gray.version=v2"}, h["Baggage"])
	assert.Equal(t, []string{""}, h["X-Gray-Trace"])
	assert.Equal(t, "v2", h.Get("X-Version"))

	// W2: what Connection names is of no importance here.
	h = ask(t, address, append(get, "Connection: X-Gray-Tag, Baggage", "X-User-ID: 10086")...)
	assert.Equal(t, []string{"lane=a;version=v2"}, h["X-Gray-Tag"])

	// X-Version may tell of one service.
	services := `{"rules": [{"id": "a", "services": ["order"], "tag": "version=v7"}], "default": "version=v1"}`
	assert.Equal(t, "v1", ask(t, authServer(t, services), get...).Get("X-Version"))
	assert.Equal(t, "v7", ask(t, authServer(t, services, gateway.WithService("order")), get...).Get("X-Version"))

	// Code may know the user better than the client does.
	user := gateway.WithEdge(grayhttp.WithAttr("uid", func(r *http.Request) (string, bool) {
		v := r.URL.Query().Get("signed")
		return v, v != ""
	}))
	address = authServer(t, authRules, user)
	assert.Equal(t, "v2", ask(t, address, "GET / HTTP/1.1", "Host: graylane", "X-Forwarded-Uri: /?signed=10086").Get("X-Version"))
	assert.Equal(t, "stable", ask(t, address, "GET / HTTP/1.1", "Host: graylane", "X-Forwarded-Uri: /", "X-User-ID: 10086").Get("X-Version"))
}

func TestW3_ForwardAuthClientAddress(t *testing.T) {
	get := []string{"GET / HTTP/1.1", "Host: graylane"}
	forged := append(get, "X-Forwarded-For: 203.0.113.7, 198.51.100.9")
	real := append(get, "X-Forwarded-For: 198.51.100.9", "X-Forwarded-For: 203.0.113.7")
	address := authServer(t, authRules, gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.1")))
	assert.Equal(t, "v3", ask(t, address, real...).Get("X-Version"))
	assert.Equal(t, "stable", ask(t, address, forged...).Get("X-Version"))
	address = authServer(t, authRules, gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.1"), grayhttp.WithTrustedProxies("10.0.0.0/8")))
	assert.Equal(t, "stable", ask(t, address, real...).Get("X-Version"))
}

func TestForwardAuthStickyCookie(t *testing.T) {
	const half = `{"rules": [{"id": "half", "percent": 50, "hashBy": ["uid", "group"], "tag": "version=v2"}]}`
	for name, c := range asProxies {
		t.Run(name, func(t *testing.T) {
			address := authServer(t, half, gateway.WithConvention(c.convention),
				gateway.WithEdge(grayhttp.WithStickyCookie(grayhttp.StickyCookie{}), grayhttp.WithTrustedProxies("127.0.0.1")))
			h := ask(t, address, c.lines...)
			cookie, err := http.ParseSetCookie(h.Get("Set-Cookie"))
			require.NoError(t, err)
			assert.Equal(t, "gray_group", cookie.Name)
			assert.Equal(t, cookie.Value, h.Get("X-Canary-Group"))
			assert.True(t, cookie.HttpOnly)
			assert.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
			assert.Equal(t, "/", cookie.Path)
			assert.False(t, cookie.Secure)

			again := ask(t, address, append(c.lines, "Cookie: gray_group="+cookie.Value)...)
			assert.NotContains(t, again, "Set-Cookie")
			assert.Equal(t, h.Get("X-Version"), again.Get("X-Version"))
			assert.Equal(t, cookie.Value, again.Get("X-Canary-Group"))

			assert.NotContains(t, ask(t, address, append(c.lines, "X-User-ID: 1")...), "Set-Cookie")

			// Behind TLS it is Secure. The controller of Kubernetes says so in the URL alone.
			tls := append(c.lines, "X-Forwarded-Proto: https")
			if name == "ingress-nginx" {
				tls = nil
				for _, line := range c.lines {
					tls = append(tls, strings.Replace(line, "http://", "https://", 1))
				}
				claimed := ask(t, address, append(c.lines, "X-Forwarded-Proto: https")...).Get("Set-Cookie")
				assert.NotContains(t, claimed, "Secure", "the client's word")
				tls = append(tls, "X-Forwarded-Proto: http")
			}
			assert.Contains(t, ask(t, address, tls...).Get("Set-Cookie"), "; Secure")
		})
	}
}

func TestForwardAuthOptions(t *testing.T) {
	engine := authEngine(t, authRules)
	for want, opt := range map[string]gateway.ForwardAuthOption{
		`path prefix "graylane" of the convention, want one that starts with /`: gateway.WithConvention(gateway.Envoy("graylane")),
		`WithTrustedProxies: range "office"`:                                    gateway.WithEdge(grayhttp.WithTrustedProxies("office")),
	} {
		h, err := gateway.ForwardAuth(engine, opt)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "gateway: ")
		assert.Nil(t, h)
	}
	_, err := gateway.ForwardAuth(nil)
	assert.EqualError(t, err, "gateway: engine is nil")
}

// Whatever a client sends, the answer is a good one, and holds nothing of a tag
// that the client made up.
func FuzzForwardAuth(f *testing.F) {
	f.Add("/orders?x=1", "shop", "version=v2", "gray.version=v2,a=b", "203.0.113.7")
	f.Add("http://[::1/", "", ";", "gray%2eversion=v2", "unknown")
	f.Add("*", "a b", "%ff", ", ,=;=", ",,,")
	const office = `{"rules": [{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v2"}]}`
	h := authHandler(f, office, gateway.WithEdge(grayhttp.WithTrustedGateways("192.0.2.1"), grayhttp.WithTrustedProxies("192.0.2.1")))
	f.Fuzz(func(t *testing.T, uri, host, tag, bag, forwarded string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header = http.Header{
			"X-Forwarded-Uri": {uri}, "X-Forwarded-Host": {host}, "X-Gray-Tag": {tag}, "X-Gray-Trace": {tag},
			"Baggage": {bag}, "X-Forwarded-For": {forwarded, "198.51.100.1"},
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("X-Version") != "stable" {
			t.Fatalf("%d %v", w.Code, w.Header())
		}
		for _, name := range []string{"X-Gray-Tag", "X-Gray-Trace"} {
			if v := w.Header()[name]; len(v) != 1 || v[0] != "" {
				t.Fatalf("%s: %q", name, v)
			}
		}
		if v := w.Header()["Baggage"]; len(v) != 1 || edge.HasForged(v) {
			t.Fatalf("Baggage: %q", v)
		}
	})
}
