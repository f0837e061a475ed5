package middleware_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// overBoth runs a test with a service inventory over HTTP, and over gRPC.
func overBoth(t *testing.T, test func(t *testing.T, tr transport) error) {
	for _, tr := range []transport{
		{name: "HTTP", serve: func(t testing.TB, self registry.Instance) *node { return serveHTTP(t, self, nil) },
			refuse: func(t testing.TB, self registry.Instance) *node {
				return serveHTTP(t, self, nil, grayhttp.WithRejectMisrouted())
			},
			open: func(t testing.TB, disc registry.Discovery, s *seen, p subset.Policy) func(context.Context) (string, error) {
				c := client(t, disc, s, grayhttp.WithPolicy(p))
				return func(ctx context.Context) (string, error) { return get(ctx, c, "http://inventory/") }
			}},
		{name: "gRPC", serve: func(t testing.TB, self registry.Instance) *node { return serveGRPC(t, self, nil) },
			refuse: func(t testing.TB, self registry.Instance) *node {
				return serveGRPC(t, self, nil, graygrpc.WithRejectMisrouted())
			},
			open: func(t testing.TB, disc registry.Discovery, s *seen, p subset.Policy) func(context.Context) (string, error) {
				c := dial(t, disc, "inventory", s, graygrpc.WithPolicy(p), graygrpc.WithResolver(resolver.WithConnectWait(100*time.Millisecond)))
				return func(ctx context.Context) (string, error) { return call(ctx, c) }
			}},
	} {
		t.Run(tr.name, func(t *testing.T) { require.NoError(t, test(t, tr)) })
	}
}

type transport struct {
	name   string
	serve  func(testing.TB, registry.Instance) *node
	refuse func(testing.TB, registry.Instance) *node // what is not for it
	open   func(testing.TB, registry.Discovery, *seen, subset.Policy) func(context.Context) (string, error)
}

func clientCallsAddress(t *testing.T, r row) {
	inventory := serveHTTP(t, instance("inventory", ""), nil)
	caller := newSeen(t)
	c := client(t, memory.New(), caller)
	ctx, trace := propagation.TraceRoute(gray())
	defer trace.End()
	_, err := get(ctx, c, inventory.url)
	require.NoError(t, err)
	r.countsNot(t, caller, "graylane.route.decisions")
	r.counts(t, inventory.seen, "graylane.server.requests", "wanted", "v2", "outcome", "fallback")
	r.names(t, "outcome=fallback in X-Gray-Route")
	route, _ := trace.Hops()
	require.Len(t, route, 1)
	assert.Equal(t, "fallback", route[0].Outcome)
}

func noInstanceHasTheVersion(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		tr.serve(t, instance("inventory", "V2")).register(t, reg)
		id, err := tr.open(t, reg, caller, subset.Policy{})(gray())
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "outcome", "fallback_stable", "reason", "missing")
		return err
	})
}

// nowhere is an address at which nobody listens.
func nowhere(t testing.TB) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

func unreachable(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		gone := instance("inventory", "v2")
		gone.Address = nowhere(t)
		_, err := reg.Register(context.Background(), gone)
		require.NoError(t, err)
		id, err := tr.open(t, reg, caller, subset.Policy{})(gray())
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "outcome", "fallback_stable", "reason", "unhealthy")
		if tr.name == "HTTP" {
			assert.Equal(t, gone.Address, r.logs(t, caller, "instance cannot be dialled, it is put aside")["address"])
		}
		return err
	})
}

func refusesItsVersion(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.refuse(t, instance("inventory", "")).register(t, reg)
		v3 := tr.refuse(t, instance("inventory", "v3"))
		v3.register(t, reg, instance("inventory", "v2"))
		ctx, trace := propagation.TraceRoute(gray())
		defer trace.End()
		id, err := tr.open(t, reg, caller, subset.Policy{})(ctx)
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "outcome", "fallback_stable", "reason", "unhealthy")
		r.counts(t, v3.seen, "graylane.server.requests", "outcome", "misrouted")
		r.names(t, "X-Gray-Route shows both tries, the first with outcome=misrouted")
		route, _ := trace.Hops()
		require.Len(t, route, 2)
		assert.Equal(t, "misrouted", route[0].Outcome)
		assert.Equal(t, "v3", route[0].Got)
		assert.Equal(t, "fallback_stable", route[1].Outcome)
		return err
	})
}

func notEnoughYet(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		tr.serve(t, instance("inventory", "v2")).register(t, reg)
		id, err := tr.open(t, reg, caller, subset.Policy{MinReady: 2})(gray())
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "reason", "warming")
		r.names(t, "Policy.MinReady")
		return err
	})
	t.Run("connecting", func(t *testing.T) {
		reg, caller := memory.New(), newSeen(t)
		serveGRPC(t, instance("inventory", ""), nil).register(t, reg)
		lis, err := net.Listen("tcp", "127.0.0.1:0") // which accepts, and says nothing
		require.NoError(t, err)
		defer lis.Close()
		slow := instance("inventory", "v2")
		slow.Address = lis.Addr().String()
		_, err = reg.Register(context.Background(), slow)
		require.NoError(t, err)
		id, err := call(gray(), dial(t, reg, "inventory", caller, graygrpc.WithResolver(resolver.WithConnectWait(50*time.Millisecond))))
		require.NoError(t, err)
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "reason", "connecting")
	})
}

func oldList(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		cut, begin := context.WithCancel(context.Background())
		defer begin()
		ask := tr.open(t, &outage{reg, cut}, caller, subset.Policy{})
		if _, err := ask(untagged()); err != nil {
			return err
		}
		begin()
		require.Eventually(t, func() bool { return len(caller.log.with(t, "discovery fails")) > 0 }, wait, time.Millisecond)
		tr.serve(t, instance("inventory", "v2")).register(t, reg)
		id, err := ask(gray())
		assert.Equal(t, "inventory-stable", id)
		r.counts(t, caller, "graylane.route.decisions", "reason", "missing")
		r.logs(t, caller, "discovery fails, the last known instances stay")
		return err
	})
}

func registeredWithoutVersion(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		v2 := tr.serve(t, instance("inventory", "v2"))
		v2.register(t, reg, registry.Instance{ID: "inventory-1", Service: "inventory"})
		ask := tr.open(t, reg, caller, subset.Policy{})
		_, err := ask(gray())
		r.counts(t, caller, "graylane.route.decisions", "wanted", "v2", "reason", "missing")
		require.NoError(t, err)
		_, err = ask(untagged())
		r.counts(t, v2.seen, "graylane.server.requests", "wanted", "stable", "outcome", "misrouted")
		return err
	})
}

func unhealthyInstance(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		v2 := tr.serve(t, instance("inventory", "v2"))
		critical := v2.self
		critical.Status = registry.StatusCritical
		v2.register(t, reg, critical)
		_, err := tr.open(t, reg, caller, subset.Policy{})(gray())
		r.counts(t, caller, "graylane.route.decisions", "reason", "unhealthy")
		assert.Zero(t, v2.count(t, "graylane.server.requests"))
		return err
	})
}

func strictPolicy(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		tr.serve(t, instance("inventory", "")).register(t, reg)
		_, err := tr.open(t, reg, caller, subset.Policy{Strict: true})(gray())
		require.Error(t, err)
		r.says(t, err.Error(), `may serve version "v2" (missing); registered: stable=1`)
		r.counts(t, caller, "graylane.route.decisions", "outcome", "unavailable")
		return nil
	})
	t.Run("gateway", func(t *testing.T) {
		reg, s := memory.New(), newSeen(t)
		serveHTTP(t, instance("order", ""), nil).register(t, reg)
		gw := entrance(t, engine(t, s, everybodyGray), reg, s, withPolicy(subset.Policy{Strict: true}))
		resp := visit(t, gw.url, "")
		assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		r.names(t, "503")
		r.says(t, "X-Gray-Reason: "+resp.Header.Get("X-Gray-Reason"), "X-Gray-Reason: missing")
	})
}

func stableCarriesVersion(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg := memory.New()
		tr.serve(t, instance("inventory", "v1")).register(t, reg)
		_, err := tr.open(t, reg, newSeen(t), subset.Policy{})(untagged())
		require.Error(t, err)
		r.says(t, err.Error(), "stable instances have no version in their metadata, or one that the policy calls stable")

		r.names(t, "Policy.Stable")
		_, err = tr.open(t, reg, newSeen(t), subset.Policy{Stable: []string{"v1"}})(untagged())
		return err
	})
}

func callerDoesNotChoose(t *testing.T, r row) {
	check := func(t *testing.T, inventory *node, caller *seen, err error) {
		require.NoError(t, err)
		r.counts(t, inventory.seen, "graylane.server.requests", "outcome", "misrouted")
		assert.Equal(t, "v2", r.logs(t, inventory.seen, "a request has arrived that wants another version")["version"])
		r.countsNot(t, caller, "graylane.route.decisions")
	}
	t.Run("HTTP", func(t *testing.T) {
		inventory, caller := serveHTTP(t, instance("inventory", "v2"), nil), newSeen(t)
		_, err := get(untagged(), client(t, memory.New(), caller), inventory.url)
		check(t, inventory, caller, err)
	})
	t.Run("gRPC", func(t *testing.T) {
		inventory, caller := serveGRPC(t, instance("inventory", "v2"), nil), newSeen(t)
		unary, err := graygrpc.UnaryClientInterceptor(graygrpc.WithMeterProvider(caller.meter))
		require.NoError(t, err)
		conn, err := grpc.NewClient(inventory.self.Address, grpc.WithChainUnaryInterceptor(unary), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		_, err = call(untagged(), testgrpc.NewTestServiceClient(conn))
		check(t, inventory, caller, err)
	})
}

func differentPolicies(t *testing.T, r row) {
	overBoth(t, func(t *testing.T, tr transport) error {
		reg, caller := memory.New(), newSeen(t)
		inventory := tr.serve(t, instance("inventory", "v2"))
		inventory.register(t, reg)
		_, err := tr.open(t, reg, caller, subset.Policy{Fallback: []string{subset.FallbackToAny}})(untagged())
		r.counts(t, caller, "graylane.route.decisions", "outcome", "fallback_any")
		r.counts(t, inventory.seen, "graylane.server.requests", "outcome", "misrouted")
		return err
	})
}

func healthCheck(t *testing.T, r row) {
	bare := &http.Client{Transport: &http.Transport{}}
	defer bare.CloseIdleConnections()
	check := func(opts ...grayhttp.HandlerOption) *node {
		n := serveHTTP(t, instance("inventory", "v2"), nil, opts...)
		_, err := get(context.Background(), bare, n.url+"/healthz")
		require.NoError(t, err)
		return n
	}
	r.counts(t, check().seen, "graylane.server.requests", "wanted", "stable", "outcome", "misrouted")
	r.names(t, "WithExempt")
	assert.Zero(t, check(grayhttp.WithExempt("/healthz")).count(t, "graylane.server.requests"))

	r.names(t, "the health checks of gRPC are exempt")
	n := serveGRPC(t, instance("inventory", "v2"), nil, graygrpc.WithRejectMisrouted())
	conn, err := grpc.NewClient(n.self.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	reply, err := healthgrpc.NewHealthClient(conn).Check(context.Background(), &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, healthgrpc.HealthCheckResponse_SERVING, reply.Status)
	assert.Zero(t, n.count(t, "graylane.server.requests"))
}

func refused(t *testing.T, r row) {
	t.Run("HTTP", func(t *testing.T) {
		inventory := serveHTTP(t, instance("inventory", "v2"), nil, grayhttp.WithRejectMisrouted())
		_, err := get(untagged(), client(t, memory.New(), newSeen(t)), inventory.url)
		require.Error(t, err)
		r.counts(t, inventory.seen, "graylane.server.requests", "outcome", "misrouted")
		r.says(t, err.Error(), "421")
		r.names(t, "X-Gray-Misrouted", "WithRejectMisrouted")
		assert.Equal(t, "inventory", visit(t, inventory.url, "").Header.Get("X-Gray-Misrouted"), "to a client of another kind")
		assert.Empty(t, inventory.log.with(t, "served"), "the handler never ran")
	})
	t.Run("gRPC", func(t *testing.T) {
		inventory := serveGRPC(t, instance("inventory", "v2"), nil, graygrpc.WithRejectMisrouted())
		conn, err := grpc.NewClient(inventory.self.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		defer conn.Close()
		var trailer metadata.MD
		_, err = testgrpc.NewTestServiceClient(conn).UnaryCall(context.Background(), &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
		r.counts(t, inventory.seen, "graylane.server.requests", "outcome", "misrouted")
		r.says(t, status.Code(err).String(), "FailedPrecondition")
		assert.Equal(t, []string{"inventory"}, trailer.Get("X-Gray-Misrouted"))
		assert.Empty(t, inventory.log.with(t, "served"), "the handler never ran")
	})
}
