package graygrpc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"google.golang.org/grpc/codes"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func callTagged(conn *grpc.ClientConn) error {
	return callUnary(graytag.NewContext(context.Background(), tag), conn)
}

// versions runs service with instances s1 (stable), g1 (v2.1.0) and b1
// (v3.0.0), each of which knows who it is.
func versions(t *testing.T, reg registry.Registrar, service string, next func(context.Context) error) map[string]*node {
	t.Helper()
	nodes := map[string]*node{}
	for id, version := range map[string]string{"s1": "", "g1": "v2.1.0", "b1": "v3.0.0"} {
		n := &node{name: id, next: next}
		self := registry.Instance{Service: service, Metadata: map[string]string{"version": version}}
		addr := serve(t, n, serverOptions(t, graygrpc.WithSelf(self))...)
		register(t, reg, service+"-"+id, service, version, addr)
		nodes[id] = n
	}
	return nodes
}

func TestAllKindsReachTheirVersion(t *testing.T) {
	reg := memory.New()
	nodes := versions(t, reg, "order", nil)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	for _, c := range []struct {
		tag, served string
		outcome     subset.Outcome
	}{
		{"version=v2.1.0", "g1", subset.Matched},
		{"version=v3.0.0;uid=1", "b1", subset.Matched},
		{"", "s1", subset.Stable},
		{"version=v9", "s1", subset.Fallback},
		{"version=v3.0.0;version.order=v2.1.0", "g1", subset.Matched},
	} {
		sent := graytag.MustParse(c.tag)
		for kind, call := range kinds {
			before := len(nodes[c.served].seen())
			for range 5 {
				require.NoError(t, call(graytag.NewContext(context.Background(), sent), conn, sent.String(), 3), kind)
			}
			assert.Len(t, nodes[c.served].seen(), before+5, "%s %q", kind, c.tag)
			assert.Equal(t, c.outcome, nodes[c.served].last(t).arrival.Outcome)
		}
	}
	for _, n := range nodes {
		for _, v := range n.seen() {
			assert.NotEqual(t, subset.Misrouted, v.arrival.Outcome)
		}
	}
}

func TestAChainStaysOnItsVersion(t *testing.T) {
	reg := memory.New()
	users := versions(t, reg, "user", nil)
	toUser := dial(t, "gray:///user", graygrpc.DialOptions(reg)...)
	inventories := versions(t, reg, "inventory", func(ctx context.Context) error {
		return kinds["bidi"](ctx, toUser, graytag.FromContext(ctx).String(), 2)
	})
	toInventory := dial(t, "gray:///inventory", graygrpc.DialOptions(reg)...)
	orders := versions(t, reg, "order", func(ctx context.Context) error { return callUnary(ctx, toInventory) })
	toOrder := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)

	require.NoError(t, callTagged(toOrder), "on the very first request")
	for _, nodes := range []map[string]*node{orders, inventories, users} {
		assert.Len(t, nodes["g1"].seen(), 1)
		assert.Equal(t, subset.Matched, nodes["g1"].last(t).arrival.Outcome)
	}
}

func TestTagsOfCallsWithoutScopeAreRoutedBy(t *testing.T) {
	reg := memory.New()
	nodes := versions(t, reg, "order", nil)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg, graygrpc.WithDefaultTag(graytag.MustParse("version=v3.0.0")))...)
	for kind, call := range kinds {
		explicit := metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "version=v2.1.0")
		require.NoError(t, call(explicit, conn, "version=v2.1.0", 2), kind)
		require.NoError(t, call(context.Background(), conn, "version=v3.0.0", 2), kind)
		require.NoError(t, call(graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 2), kind)
	}
	for id, n := range nodes {
		assert.Len(t, n.seen(), len(kinds), id)
	}
}

func TestPoliciesReachTheBalancer(t *testing.T) {
	reg := memory.New()
	versions(t, reg, "order", nil)
	versions(t, reg, "search", nil)
	missing := graytag.NewContext(context.Background(), graytag.MustParse("version=v9"))
	var decisions []subset.Decision
	opts := graygrpc.DialOptions(reg,
		graygrpc.WithPolicy(subset.Policy{Fallback: []string{"v3.0.0"}}),
		graygrpc.WithPolicyFor("order", subset.Policy{Strict: true}),
		graygrpc.WithResolver(resolver.WithObserver(func(_ context.Context, d subset.Decision) { decisions = append(decisions, d) })))

	err := callUnary(missing, dial(t, "gray:///order", opts...))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "order")
	assert.ErrorContains(t, err, "v9")
	out, err := testgrpc.NewTestServiceClient(dial(t, "gray:///search", opts...)).UnaryCall(missing, &testgrpc.SimpleRequest{})
	require.NoError(t, err)
	assert.Equal(t, "b1", out.ServerId)
	require.Len(t, decisions, 2)
	assert.Equal(t, subset.Unavailable, decisions[0].Outcome)
	assert.Equal(t, subset.FallbackVersion, decisions[1].Outcome)
}

func TestG2_AFanOutOfDifferentTags(t *testing.T) {
	reg := memory.New()
	nodes := versions(t, reg, "order", nil)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	// One context with metadata that all share.
	shared := metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), tag), "tenant", "acme", "x-gray-tag", "version=v0")
	all := []string{"s1", "g1", "b1"}
	wants := map[string]string{"s1": "stable", "g1": "v2.1.0", "b1": "v3.0.0"}
	var wg sync.WaitGroup
	errs := make([]error, 100)
	for i := range errs {
		wg.Go(func() {
			id := all[i%len(all)]
			own, err := tag.With("version", wants[id])
			if err == nil {
				own, err = own.With("uid", fmt.Sprint(i))
			}
			if err != nil {
				errs[i] = err
				return
			}
			ctx := graytag.NewContext(shared, own)
			out, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
			errs[i] = firstOf(err, differ(own.String(), out.GetUsername()), differ(id, out.GetServerId()))
			for _, call := range kinds {
				errs[i] = firstOf(errs[i], call(ctx, conn, own.String(), 3))
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		assert.NoError(t, err)
	}
	seen := 0
	for _, n := range nodes {
		for _, v := range n.seen() {
			seen++
			assert.Equal(t, []string{v.tag}, v.md.Get("x-gray-tag"))
			assert.Len(t, memberLines(v.md), 3)
			assert.Equal(t, []string{"acme"}, v.md.Get("tenant"))
		}
	}
	assert.Equal(t, 100*(1+len(kinds)), seen)
}

func TestG3_LongStreamsDoNotMix(t *testing.T) {
	reg := memory.New()
	versions(t, reg, "order", nil)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	other := graytag.MustParse("uid=2;version=v3.0.0")
	var wg sync.WaitGroup
	for kind, call := range kinds {
		for _, sent := range []graytag.Tag{tag, other, {}} {
			wg.Go(func() {
				err := call(graytag.NewContext(context.Background(), sent), conn, sent.String(), 1000)
				assert.NoError(t, err, kind)
			})
		}
	}
	wg.Wait()
}

// One inbound tag: the handler calls C, D, C, and then ten goroutines call at
// once, as in case T5.
func TestT5_FanOutOfAHandler(t *testing.T) {
	reg := memory.New()
	c, d := versions(t, reg, "c", nil), versions(t, reg, "d", nil)
	toC := dial(t, "gray:///c", graygrpc.DialOptions(reg)...)
	toD := dial(t, "gray:///d", graygrpc.DialOptions(reg)...)
	b := &node{next: func(ctx context.Context) error {
		errs := make([]error, 13)
		for i, conn := range []*grpc.ClientConn{toC, toD, toC} {
			errs[i] = callUnary(ctx, conn)
		}
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { errs[3+i] = callUnary(ctx, toC) })
		}
		wg.Wait()
		return firstOf(errs...)
	}}
	conn := dial(t, "passthrough:///"+serve(t, b, serverOptions(t)...), bare(t)...)
	require.NoError(t, callTagged(conn))
	carried := 0
	for _, n := range []*node{c["g1"], d["g1"]} {
		for _, v := range n.seen() {
			assert.Equal(t, tag.String(), v.tag)
			carried++
		}
	}
	assert.Equal(t, 13, carried)
}
