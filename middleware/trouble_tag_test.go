package middleware_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry/memory"
)

// line returns the label of the line that is so many lines below the call.
func line(below int) string {
	_, _, n, _ := runtime.Caller(1)
	return fmt.Sprintf("%s:%d", "middleware/trouble_tag_test.go", n+below)
}

func clientNotWrapped(t *testing.T, r row) {
	reg := memory.New()
	inventory := serveHTTP(t, instance("inventory", ""), nil)
	inventory.register(t, reg)
	bare := &http.Client{Transport: &http.Transport{}}
	defer bare.CloseIdleConnections()
	order := serveHTTP(t, instance("order", "v2"), func(_ http.ResponseWriter, req *http.Request) {
		_, err := get(req.Context(), bare, inventory.url)
		assert.NoError(t, err)
	})
	order.register(t, reg)

	ctx, trace := propagation.TraceRoute(gray())
	defer trace.End()
	_, err := get(ctx, client(t, reg, newSeen(t)), "http://order/")
	require.NoError(t, err)
	require.EqualValues(t, 1, order.count(t, "graylane.server.requests", "wanted", "v2", "outcome", "matched"), "gray one hop before")
	r.countsNot(t, order.seen, "graylane.route.decisions", "service", "inventory")
	r.counts(t, inventory.seen, "graylane.server.requests", "wanted", "stable")

	r.names(t, "X-Gray-Route")
	route, _ := trace.Hops()
	require.Len(t, route, 1, "%+v", route)
	assert.Equal(t, "order", route[0].Service)
}

func otherContext(t *testing.T, r row) {
	t.Run("HTTP", func(t *testing.T) {
		reg := memory.New()
		inventory := serveHTTP(t, instance("inventory", ""), nil)
		inventory.register(t, reg)
		caller := newSeen(t)
		c := client(t, reg, caller)
		here := ""
		order := serveHTTP(t, instance("order", "v2"), func(http.ResponseWriter, *http.Request) {
			req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://inventory/", nil)
			assert.NoError(t, err)
			here = line(1)
			resp, err := c.Do(req)
			if assert.NoError(t, err) {
				_ = resp.Body.Close()
			}
		})
		order.register(t, reg)
		_, err := get(gray(), client(t, reg, newSeen(t)), "http://order/")
		require.NoError(t, err)
		r.counts(t, caller, "graylane.propagation.orphans", "site", here)
		found := r.logs(t, caller, "call without the context of a request, the tag is lost here")
		assert.True(t, strings.HasSuffix(fmt.Sprint(found["file"], ":", found["line"]), here), "%v", found)
		r.names(t, "grayvet")
		assert.EqualValues(t, 1, inventory.count(t, "graylane.server.requests", "wanted", "stable"))
	})
	t.Run("gRPC", func(t *testing.T) {
		reg := memory.New()
		inventory := serveGRPC(t, instance("inventory", ""), nil)
		inventory.register(t, reg)
		caller := newSeen(t)
		c := dial(t, reg, "inventory", caller)
		here := ""
		order := serveGRPC(t, instance("order", "v2"), func(context.Context) error {
			here = line(1)
			_, err := c.UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
			return err
		})
		order.register(t, reg)
		_, err := call(gray(), dial(t, reg, "order", newSeen(t)))
		require.NoError(t, err)
		r.counts(t, caller, "graylane.propagation.orphans", "site", here)
		r.logs(t, caller, "call without the context of a request, the tag is lost here")
	})
}

// outside is a transport to which every name leads to address.
func outside(address string) *http.Transport {
	return &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
}

func hostOutside(t *testing.T, r row) {
	shop := serveHTTP(t, instance("shop", ""), nil)
	caller := newSeen(t)
	ask := func(opts ...grayhttp.ClientOption) {
		c := client(t, memory.New(), caller, append(opts, grayhttp.WithBalancer(httplb.WithBase(outside(shop.self.Address))))...)
		_, err := get(gray(), c, "http://shop.example.com/")
		require.NoError(t, err)
	}
	ask()
	r.counts(t, caller, "graylane.propagation.withheld", "reason", "host")
	line := r.logs(t, caller, "the gray tag is withheld from a host outside the outbound scope")
	assert.Equal(t, "shop.example.com", line["host"])
	assert.Equal(t, "v2", line["gray.version"], "of the request whose tag it is")
	assert.EqualValues(t, 1, shop.count(t, "graylane.server.requests", "wanted", "stable"))

	r.names(t, "WithInjectTo")
	ask(grayhttp.WithInjectTo(func(host string) bool { return host == "shop.example.com" }))
	assert.EqualValues(t, 1, shop.count(t, "graylane.server.requests", "wanted", "v2"))
}

func damagedHeader(t *testing.T, r row) {
	order := serveHTTP(t, instance("order", ""), nil)
	req, err := http.NewRequest(http.MethodGet, order.url, nil)
	require.NoError(t, err)
	req.Header.Set(graytag.Header, "version=v2, version=v3") // as a proxy joins two lines
	bare := &http.Client{Transport: &http.Transport{}}
	defer bare.CloseIdleConnections()
	_, _, err = do(bare, req)
	require.NoError(t, err)
	r.counts(t, order.seen, "graylane.propagation.malformed", "format", "header")
	assert.EqualValues(t, 1, order.count(t, "graylane.server.requests", "wanted", "stable"))
}

func poolWithoutContext(t *testing.T, r row) {
	reg := memory.New()
	coupon := serveHTTP(t, instance("coupon", "v2"), nil)
	coupon.register(t, reg)
	serveHTTP(t, instance("coupon", ""), nil).register(t, reg)
	caller := newSeen(t)
	c := client(t, reg, caller)

	jobs, done := make(chan func()), make(chan struct{})
	go func() {
		for job := range jobs {
			job()
		}
		close(done)
	}()
	defer func() { <-done }()
	defer close(jobs)
	bound, here := false, ""
	order := serveHTTP(t, instance("order", "v2"), func(_ http.ResponseWriter, req *http.Request) {
		answered := make(chan struct{})
		fetch := func(ctx context.Context) {
			defer close(answered)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://coupon/", nil)
			assert.NoError(t, err)
			here = line(1)
			resp, err := c.Do(req)
			if assert.NoError(t, err) {
				_ = resp.Body.Close()
			}
		}
		if bound {
			jobs <- propagation.Bind(req.Context(), fetch)
		} else {
			jobs <- func() { fetch(context.Background()) }
		}
		<-answered
	})
	order.register(t, reg)
	asker := client(t, reg, newSeen(t))
	_, err := get(gray(), asker, "http://order/")
	require.NoError(t, err)
	r.counts(t, caller, "graylane.propagation.orphans", "site", here)
	assert.Zero(t, coupon.count(t, "graylane.server.requests"))

	r.names(t, "propagation.Bind")
	bound = true
	_, err = get(gray(), asker, "http://order/")
	require.NoError(t, err)
	assert.EqualValues(t, 1, caller.count(t, "graylane.propagation.orphans"), "no other")
	assert.EqualValues(t, 1, coupon.count(t, "graylane.server.requests", "wanted", "v2"))
}

func workOutlivesRequest(t *testing.T, r row) {
	reg := memory.New()
	coupon := serveHTTP(t, instance("coupon", "v2"), nil)
	coupon.register(t, reg)
	c := client(t, reg, newSeen(t))
	results := make(chan error, 2)
	order := serveHTTP(t, instance("order", "v2"), func(_ http.ResponseWriter, req *http.Request) {
		over := req.Context().Done()
		fetch := func(ctx context.Context) {
			<-over
			_, err := get(ctx, c, "http://coupon/")
			results <- err
		}
		if req.URL.Path == "/detached" {
			propagation.Go(req.Context(), fetch)
		} else {
			go fetch(req.Context())
		}
	})
	order.register(t, reg)
	asker := client(t, reg, newSeen(t))
	_, err := get(gray(), asker, "http://order/")
	require.NoError(t, err)
	err = <-results
	require.Error(t, err)
	r.says(t, err.Error(), "context canceled")

	r.names(t, "propagation.Go", "propagation.Detach")
	_, err = get(gray(), asker, "http://order/detached")
	require.NoError(t, err)
	require.NoError(t, <-results)
	assert.EqualValues(t, 1, coupon.count(t, "graylane.server.requests", "wanted", "v2"))
}
