package gateway_test

import (
	"bufio"
	"context"
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
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// attacked is a gateway with a service behind each of its routes, which tells what
// arrives there.
type attacked struct {
	address string
	arrived chan *http.Request
}

func attack(t *testing.T, opts []gateway.Option, routes ...gateway.Route) *attacked {
	t.Helper()
	a := &attacked{arrived: make(chan *http.Request, 1)}
	reg := memory.New()
	for _, r := range routes {
		srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
			_, _ = io.Copy(io.Discard, in.Body)
			in = in.Clone(context.Background())
			in.Header.Set("Service", r.Service)
			a.arrived <- in
		}))
		t.Cleanup(srv.Close)
		_, err := reg.Register(context.Background(), registry.Instance{ID: r.Service, Service: r.Service, Address: srv.Listener.Addr().String()})
		require.NoError(t, err)
	}
	rules, err := rule.NewEngine(nil)
	require.NoError(t, err)
	opts = append([]gateway.Option{gateway.WithRoutes(routes...), gateway.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	g, err := gateway.New(rules, reg, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = g.Close() })
	srv := httptest.NewServer(g)
	t.Cleanup(srv.Close)
	a.address = srv.Listener.Addr().String()
	return a
}

// send sends a request byte by byte, and returns the answer and what arrived, nil
// where nothing did.
func (a *attacked) send(t *testing.T, lines ...string) (*http.Response, *http.Request) {
	t.Helper()
	conn, err := net.Dial("tcp", a.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, strings.Join(append(lines, "Connection: close", "", ""), "\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	select {
	case r := <-a.arrived:
		return resp, r
	default:
		return resp, nil
	}
}

// A service that resolves dot segments, in whatever form, would serve a path that
// its route does not give away.
func TestNoPathLeavesItsRoute(t *testing.T) {
	a := attack(t, nil, gateway.Route{Prefix: "/api", Service: "api"}, gateway.Route{Prefix: "/shop", Service: "shop", StripPrefix: true})
	for _, path := range []string{
		"/api/../admin", "/api/..", "/api/./x", "/api/.", "/shop/../admin", "/api/%2e%2e/admin", "/api/%2E./admin", "/api/.%2e",
		"/api/..%2fadmin", "/api/x%2F..%2F..%2Fadmin", "/api/..%5cadmin", "/api/..\\admin", "/api/x\\..\\..\\admin",
		"/api/..;/admin", "/api/..;x=1/admin", "/api/%2e%2e%3b/admin", "http://shop.example/api/../admin",
	} {
		resp, arrived := a.send(t, "GET "+path+" HTTP/1.1", "Host: shop.example")
		assert.Equal(t, http.StatusNotFound, resp.StatusCode, path)
		assert.Equal(t, gateway.ReasonNoRoute, resp.Header.Get(gateway.ReasonHeader), path)
		assert.Nil(t, arrived, path)
	}
	for path, want := range map[string]string{
		"/api": "/api", "/api/...": "/api/...", "/api/.well-known/x": "/api/.well-known/x", "/api/a..b/..c/c..": "/api/a..b/..c/c..",
		"/api/x;v=../y": "/api/x;v=../y", "/api/x?y=/../z": "/api/x?y=/../z", "/api/a%2Fb": "/api/a%2Fb", "/api//x": "/api//x",
		"/shop/a%2F%2Fb": "/a%2F%2Fb", "/shop//evil.example/x": "//evil.example/x",
	} {
		resp, arrived := a.send(t, "GET "+path+" HTTP/1.1", "Host: shop.example")
		assert.Equal(t, http.StatusOK, resp.StatusCode, path)
		if assert.NotNil(t, arrived, path) {
			assert.Equal(t, want, arrived.RequestURI)
		}
	}
}

// An empty path is "/" (RFC 9110, section 4.2.3).
func TestAnAbsoluteURIWithoutAPath(t *testing.T) {
	a := attack(t, nil, gateway.Route{Host: "shop.example", Service: "shop"})
	resp, arrived := a.send(t, "GET http://SHOP.example:80?x=1 HTTP/1.1", "Host: other.example")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	require.NotNil(t, arrived)
	assert.Equal(t, "/?x=1", arrived.RequestURI)
}

func TestOnlyTheGatewaySaysWhereARequestComesFrom(t *testing.T) {
	a := attack(t, nil, gateway.Route{Service: "shop"})
	_, arrived := a.send(t, "GET / HTTP/1.1", "Host: shop.example", "X-Forwarded-For: 10.0.0.1", "X_Forwarded_For: 10.0.0.1",
		"x_forwarded-proto: https", "X-Forwarded-Port: 443", "X-FORWARDED-PREFIX: /evil", "X_Real_IP: 10.0.0.1", "X-Real-IP: 10.0.0.1",
		"Forwarded: for=10.0.0.1", "X-Forwarded: 1", "X-Gray-Trace: 1")
	require.NotNil(t, arrived)
	var left []string
	for name := range arrived.Header {
		if strings.Contains(strings.ToLower(name), "forwarded") || strings.Contains(strings.ToLower(name), "real") {
			left = append(left, name)
		}
	}
	assert.ElementsMatch(t, []string{"X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded"}, left)
	assert.Equal(t, "127.0.0.1", arrived.Header.Get("X-Forwarded-For"))
	assert.Equal(t, "http", arrived.Header.Get("X-Forwarded-Proto"))
}

// An error handler may hand requests without a route on, to a page of old for
// example: what they claim must not go with them.
func TestRequestsWithoutARouteAreNotBelievedEither(t *testing.T) {
	failed := make(chan *http.Request, 1)
	a := attack(t, []gateway.Option{gateway.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, f gateway.Failure) {
		failed <- r
		gateway.WriteFailure(w, r, f)
	})}, gateway.Route{Prefix: "/shop", Service: "shop"})
	for request, reason := range map[string]string{
		"GET /elsewhere HTTP/1.1": gateway.ReasonNoRoute, "GET urn:x HTTP/1.1": gateway.ReasonNoRoute, "CONNECT shop:80 HTTP/1.1": gateway.ReasonMethod,
	} {
		resp, arrived := a.send(t, request, "Host: shop", "X-Gray-Tag: version=v2", "Baggage: gray.version=v2,tenant=acme", "X-User-ID: 1")
		assert.Equal(t, reason, resp.Header.Get(gateway.ReasonHeader), request)
		assert.NotContains(t, resp.Header, "Set-Cookie")
		assert.Nil(t, arrived)
		r := <-failed
		assert.NotContains(t, r.Header, "X-Gray-Tag", request)
		assert.Equal(t, "tenant=acme", r.Header.Get("Baggage"), request)
		assert.True(t, graytag.InScope(r.Context()), request)
		assert.True(t, graytag.FromContext(r.Context()).IsZero(), request)
	}
}
