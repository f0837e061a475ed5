package gateway_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestRoutes(t *testing.T) {
	reg, rec := memory.New(), &recorder{}
	for _, name := range []string{"any", "api", "orders", "shop", "shop-api", "wild", "deep", "v6", "shop.Orders"} {
		upstream(t, reg, name, "", rec.instance(name))
	}
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(
		gateway.Route{Service: "any"},
		gateway.Route{Prefix: "/api/", Service: "api"},
		gateway.Route{Prefix: "/api/orders", Service: "orders", StripPrefix: true},
		gateway.Route{Prefix: "/shop.Orders", Service: "shop.Orders"},
		gateway.Route{Host: "Shop.Example", Prefix: "/", Service: "shop", PreserveHost: true},
		gateway.Route{Host: "shop.example", Prefix: "/api", Service: "shop-api"},
		gateway.Route{Host: "*.example", Prefix: "/", Service: "wild"},
		gateway.Route{Host: "*.deep.example", Prefix: "/only", Service: "deep"},
		gateway.Route{Host: "[::1]", Service: "v6"},
	))
	address := serve(t, g)
	client := newClient(t, "")
	for _, c := range []struct{ host, path, service, sent string }{
		{"x", "/", "any", "/"},
		{"x", "/apix", "any", "/apix"},
		{"x", "/api", "api", "/api"},
		{"x", "/api/", "api", "/api/"},
		{"x", "/api/ordersheet", "api", "/api/ordersheet"},
		{"x", "/api/orders", "orders", "/"},
		{"x", "/api/orders/", "orders", "/"},
		{"x", "/api/orders/1?a=b", "orders", "/1?a=b"},
		{"x", "/api/orders//1", "orders", "//1"},
		{"x", "/%61pi/orders/a%2Fb", "orders", "/a%2Fb"},
		{"x", "/api%2Forders/1", "any", "/api%2Forders/1"}, // one segment
		{"x", "/api/orders%2f1", "api", "/api/orders%2f1"},
		{"x", "/API/orders", "any", "/API/orders"},
		{"x", "/shop.Orders/Get", "shop.Orders", "/shop.Orders/Get"},
		{"shop.example", "/api/orders/1", "shop-api", "/api/orders/1"},
		{"SHOP.example.:8080", "/x", "shop", "/x"},
		{"a.shop.example", "/api", "wild", "/api"},
		{"a.deep.example", "/only/this", "deep", "/only/this"},
		{"a.deep.example", "/other", "wild", "/other"}, // the next less exact host
		{"example", "/", "any", "/"},
		{"[::1]:80", "/", "v6", "/"},
	} {
		req, err := http.NewRequest(http.MethodGet, "http://"+address+c.path, nil)
		require.NoError(t, err)
		req.Host = c.host
		_, body := send(t, client, req)
		s := rec.one(t)
		what := c.host + " " + c.path
		assert.Equal(t, c.service, body, what)
		assert.Equal(t, c.sent, s.RequestURI, what)
		if c.service == "shop" {
			assert.Equal(t, c.host, s.Host, what)
		} else {
			assert.Equal(t, c.service, s.Host, what)
		}
		if c.service == "orders" {
			assert.Equal(t, "/api/orders", s.Header.Get("X-Forwarded-Prefix"), what)
		}
		assert.Equal(t, c.host, s.Header.Get("X-Forwarded-Host"), what)
	}
}

func TestWrongRoutesAreErrors(t *testing.T) {
	for want, r := range map[string]gateway.Route{
		`prefix "api", want one that starts with /`:               {Prefix: "api", Service: "s"},
		`prefix "//", want one whose segments are not empty`:      {Prefix: "//", Service: "s"},
		`prefix "/a//b", want one whose segments are not empty`:   {Prefix: "/a//b", Service: "s"},
		`prefix "/a/../b", want one whose segments are not empty`: {Prefix: "/a/../b", Service: "s"},
		`prefix "/a%2Fb", want a path in plain text`:              {Prefix: "/a%2Fb", Service: "s"},
		`prefix "/a?b", want a path in plain text`:                {Prefix: "/a?b", Service: "s"},
		`host "x:80", want it without a port`:                     {Host: "x:80", Service: "s"},
		`host "::1", want it without a port`:                      {Host: "::1", Service: "s"},
		`host "*", want a name, or *. and a name`:                 {Host: "*", Service: "s"},
		`host "*.", want a name, or *. and a name`:                {Host: "*.", Service: "s"},
		`host "a.*.b", want a name, or *. and a name`:             {Host: "a.*.b", Service: "s"},
		`host "a/b", want a name as it stands`:                    {Host: "a/b", Service: "s"},
		`invalid Service ""`:                                      {Prefix: "/"},
		`invalid Service "a/b"`:                                   {Service: "a/b"},
		`service "a@b", want a name that can be the host`:         {Service: "a@b"},
		`both TLS and H2C`:                                        {Service: "s", TLS: true, H2C: true},
	} {
		g, err := gateway.New(engine(t, whitelist), memory.New(), gateway.WithRoutes(gateway.Route{Prefix: "/fine", Service: "s"}, r))
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "gateway: route 1 (")
		assert.Nil(t, g)
	}
	_, err := gateway.New(engine(t, whitelist), memory.New(), gateway.WithRoutes(
		gateway.Route{Host: "a.example", Prefix: "/x/", Service: "one"},
		gateway.Route{Host: "*.example", Prefix: "/x", Service: "two"},
		gateway.Route{Host: "A.EXAMPLE.", Prefix: "/x", Service: "three"},
		gateway.Route{Prefix: "nonsense", Service: "four"},
	))
	assert.ErrorContains(t, err, `gateway: route 2 (host "A.EXAMPLE.", prefix "/x", service "three"): route 0 (host "a.example", prefix "/x/", service "one") takes the same requests`)
	assert.ErrorContains(t, err, "gateway: route 3", "every fault is told")
	assert.NotContains(t, err.Error(), "gateway: route 1")
}

var (
	trustX  = grayhttp.WithTrustedProxies("x")
	exemptX = grayhttp.WithExempt("x")
)

func TestWrongOptionsAreErrors(t *testing.T) {
	route := gateway.WithRoutes(gateway.Route{Service: "order"})
	e, reg := engine(t, whitelist), memory.New()
	_, err := gateway.New(nil, reg, route)
	assert.EqualError(t, err, "gateway: engine is nil")
	_, err = gateway.New(e, nil, route)
	assert.EqualError(t, err, "gateway: discovery is nil")
	_, err = gateway.New(e, reg)
	assert.EqualError(t, err, "gateway: no route, want WithRoutes with one or more")
	for want, o := range map[string]gateway.Option{
		"timeout -1s":                   gateway.WithTimeout(-time.Second),
		`WithTrustedProxies: range "x"`: gateway.WithEdge(trustX),
		"exempt path":                   gateway.WithClient(exemptX),
	} {
		_, err := gateway.New(e, reg, route, o)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "gateway: ")
	}
	newGateway(t, e, reg, route, nil, gateway.WithEdge(nil), gateway.WithPropagator(nil), gateway.WithMeterProvider(nil),
		gateway.WithLogger(nil), gateway.WithTransport(nil), gateway.WithErrorHandler(nil))
}

// TestOverTLS verifies instances by the name of their service.
func TestOverTLS(t *testing.T) {
	reg, rec := memory.New(), &recorder{}
	srv := httptest.NewUnstartedServer(rec.instance("v2.1.0"))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	register(t, reg, "example.com", "v2.1.0", srv.Listener.Addr().String()) // what httptest's certificate is for
	register(t, reg, "order", "v2.1.0", srv.Listener.Addr().String())
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	g := newGateway(t, engine(t, whitelist), reg,
		gateway.WithRoutes(gateway.Route{Prefix: "/good", Service: "example.com", TLS: true}, gateway.Route{Prefix: "/bad", Service: "order", TLS: true}),
		gateway.WithTransport(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}))
	address := "http://" + serve(t, g)
	get(t, newClient(t, ""), address+"/good", "X-User-ID", "10086")
	s := rec.one(t)
	assert.Equal(t, "HTTP/2.0", s.Proto)
	assert.Equal(t, grayTag, s.tag.String())
	resp, _ := get(t, newClient(t, ""), address+"/bad")
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
}

// TestNewServer speaks what it says.
func TestNewServer(t *testing.T) {
	srv := gateway.NewServer("127.0.0.1:1", http.NotFoundHandler())
	assert.Equal(t, "127.0.0.1:1", srv.Addr)
	assert.True(t, srv.Protocols.HTTP1() && srv.Protocols.HTTP2() && srv.Protocols.UnencryptedHTTP2())
	assert.Positive(t, srv.ReadHeaderTimeout)
	assert.Positive(t, srv.IdleTimeout)
	assert.Zero(t, srv.WriteTimeout)
	assert.Zero(t, srv.ReadTimeout)
}

// FuzzRoutes asks for paths. The gateway finds the route that taking the path apart
// by segments finds, or none where there are dot segments, and what it sends on is a path.
func FuzzRoutes(f *testing.F) {
	for _, path := range []string{"/", "/a", "/a/b", "/a%2Fb", "/%61/b%2fc", "//a", "/a/", "/a/b/c?d", "*", "/%zz", "/a/b%25", "/ä/ö", "/? "} {
		f.Add(path)
	}
	var sent http.Request
	reg := memory.New()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sent = *r })
	srv := httptest.NewServer(h)
	f.Cleanup(srv.Close)
	for _, name := range []string{"root", "a", "ab"} {
		_, err := reg.Register(context.Background(), registry.Instance{ID: name, Service: name, Address: srv.Listener.Addr().String()})
		require.NoError(f, err)
	}
	g := newGateway(f, engine(f, whitelist), reg, gateway.WithRoutes(
		gateway.Route{Service: "root"}, gateway.Route{Prefix: "/a", Service: "a", StripPrefix: true}, gateway.Route{Prefix: "/a/b", Service: "ab", StripPrefix: true}))
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.ParseRequestURI(target)
		if err != nil || !strings.HasPrefix(target, "/") {
			return // no request has it
		}
		want, segments := "root", strings.Split(u.EscapedPath(), "/")[1:]
		for i := range segments {
			segments[i], err = url.PathUnescape(segments[i])
			require.NoError(t, err)
		}
		rest := segments
		if segments[0] == "a" {
			want, rest = "a", segments[1:]
			if len(segments) > 1 && segments[1] == "b" {
				want, rest = "ab", segments[2:]
			}
		}
		w := httptest.NewRecorder()
		g.ServeHTTP(w, &http.Request{Method: http.MethodGet, URL: u, Host: "x", Header: http.Header{}, RemoteAddr: "192.0.2.1:1"})
		if w.Code == http.StatusNotFound {
			assert.Contains(t, u.Path, ".", "a path of dots has no route")
			return
		}
		require.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, want, sent.Host)
		got := strings.Split(sent.URL.EscapedPath(), "/")[1:]
		for i := range got {
			got[i], err = url.PathUnescape(got[i])
			require.NoError(t, err)
		}
		if len(rest) == 0 {
			rest = []string{""}
		}
		assert.Equal(t, rest, got)
	})
}

// TestAllocations guards what the gateway adds to a bare proxy: for an untagged
// request, and for a gray one, client and instance included.
func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	urls := proxies(t)
	measure := func(name string, header http.Header) float64 {
		one := clients(t, urls[name], header)
		for range 200 {
			require.NoError(t, one())
		}
		return testing.AllocsPerRun(2000, func() {
			if err := one(); err != nil {
				t.Error(err)
			}
		})
	}
	bare := measure("reverse_proxy", gray[0])
	chosen, other := measure("graylane", gray[0])-bare, measure("graylane", stable[0])-bare
	t.Logf("added to the %v of a bare proxy: gray %v, stable %v", bare, chosen, other)
	assert.LessOrEqual(t, chosen, 8.0)
	assert.LessOrEqual(t, other, 2.0)
}
