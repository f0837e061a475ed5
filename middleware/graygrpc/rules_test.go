package graygrpc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry/memory"
)

// hops sends what order asks of inventory to v2.1.0, for tenant acme, and one
// method to v3.0.0, whoever asks.
const hops = `{"rules": [
	{"id": "acme", "services": ["inventory"], "tag": "version=v2.1.0;lane=acme", "match": [
		{"attr": "source", "op": "equals", "values": ["order"]},
		{"attr": "header:X-Tenant", "op": "equals", "values": ["acme"]}]},
	{"id": "method", "services": ["inventory"], "tag": "version=v3.0.0", "match": [
		{"attr": "path", "op": "suffix", "values": ["/FullDuplexCall"]}]},
	{"id": "user7", "services": ["user"], "tag": "version=v2.1.0", "match": [{"attr": "uid", "op": "equals", "values": ["7"]}]}]}`

func TestRulesOfAHop(t *testing.T) {
	reg := memory.New()
	all := map[string]map[string]*node{"inventory": versions(t, reg, "inventory", nil), "user": versions(t, reg, "user", nil)}
	rules := func(source string) []grpc.DialOption {
		return graygrpc.DialOptions(reg, graygrpc.WithRules(newEngine(t, hops), source))
	}
	conns := map[string]*grpc.ClientConn{
		"inventory": dial(t, "gray:///inventory", rules("order")...),
		"user":      dial(t, "gray:///user", rules("order")...),
		"coupon":    dial(t, "gray:///inventory", rules("coupon")...),
	}
	for _, c := range []struct {
		name, kind       string
		conn, ctx        string // the tag; "-": no scope
		tenant           string
		service, at, tag string
	}{
		{"no rule", "unary", "inventory", "uid=1", "", "inventory", "s1", "uid=1"},
		{"source and metadata", "unary", "inventory", "uid=1", "acme", "inventory", "g1", "lane.inventory=acme;uid=1;version.inventory=v2.1.0"},
		{"a stream", "server stream", "inventory", "", "acme", "inventory", "g1", "lane.inventory=acme;version.inventory=v2.1.0"},
		{"without a scope", "unary", "inventory", "-", "acme", "inventory", "g1", "lane.inventory=acme;version.inventory=v2.1.0"},
		{"another source", "unary", "coupon", "uid=1", "acme", "inventory", "s1", "uid=1"},
		{"another target", "unary", "user", "uid=1", "acme", "user", "s1", "uid=1"},
		{"the method", "bidi", "coupon", "", "", "inventory", "b1", "version.inventory=v3.0.0"},
		{"a version stays", "unary", "inventory", "version=v3.0.0", "acme", "inventory", "b1", "version=v3.0.0"},
		{"stable pins", "unary", "inventory", "version=stable", "acme", "inventory", "s1", "version=stable"},
		{"stable for the service pins", "bidi", "inventory", "version.inventory=stable", "acme", "inventory", "s1", "version.inventory=stable"},
		{"the user of the tag", "client stream", "user", "uid=7", "", "user", "g1", "uid=7;version.user=v2.1.0"},
	} {
		before := map[*node]int{}
		for _, nodes := range all {
			for _, n := range nodes {
				before[n] = len(n.seen())
			}
		}
		ctx := context.Background()
		if c.ctx != "-" {
			ctx = graytag.NewContext(ctx, graytag.MustParse(c.ctx))
		}
		if c.tenant != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "x-tenant", c.tenant)
		}
		require.NoError(t, kinds[c.kind](ctx, conns[c.conn], c.tag, 2), c.name)
		want := all[c.service][c.at]
		for n, count := range before {
			if n == want {
				count++
			}
			assert.Len(t, n.seen(), count, "%s: at %s", c.name, n.name)
		}
		v := want.last(t)
		assert.Equal(t, c.tag, v.tag, c.name)
		if c.tag != "" {
			assert.Equal(t, []string{c.tag}, v.md.Get("x-gray-tag"))
			assert.Len(t, memberLines(v.md), graytag.MustParse(c.tag).Len())
		}
		assert.Equal(t, c.ctx != "-", graytag.InScope(ctx), "the context of the caller stays as it is")
	}
}

func TestRulesOfBareInterceptors(t *testing.T) {
	provider, count := meter(t)
	for target, want := range map[string]string{
		"inventory":      "lane.inventory=acme;version.inventory=v2.1.0",
		"inventory:8080": "lane.inventory=acme;version.inventory=v2.1.0",
		"user":           "", "inventory.example.com:8080": "",
	} {
		unary, err := graygrpc.UnaryClientInterceptor(graygrpc.WithRules(newEngine(t, hops), "order"), graygrpc.WithMeterProvider(provider))
		require.NoError(t, err)
		var sent []string
		err = unary(metadata.AppendToOutgoingContext(context.Background(), "x-tenant", "acme"), "/a.B/C", nil, nil, dial(t, "passthrough:///"+target),
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				sent = md.Get("x-gray-tag")
				assert.Equal(t, want, graytag.FromContext(ctx).String())
				return nil
			})
		require.NoError(t, err)
		if want == "" {
			assert.Empty(t, sent, target)
		} else {
			assert.Equal(t, []string{want}, sent, target)
		}
	}
	assert.EqualValues(t, 3, count("graylane.propagation.orphans"))

	// Rules that are missing are none.
	n := &node{}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...), bare(t, graygrpc.WithRules(nil, "order"))...)
	_, err := testgrpc.NewTestServiceClient(conn).EmptyCall(graytag.NewContext(context.Background(), tag), &testgrpc.Empty{})
	require.NoError(t, err)
	assert.Equal(t, tag.String(), n.last(t).tag)
}
