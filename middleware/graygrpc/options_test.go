package graygrpc_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestWrongServerOptions(t *testing.T) {
	for name, c := range map[string]struct {
		opt  graygrpc.ServerOption
		want string
	}{
		"policy":            {graygrpc.WithPolicy(subset.Policy{MinReady: -1}), "minReady -1"},
		"policy of another": {graygrpc.WithPolicyFor("payment", subset.Policy{Strict: true, Fallback: []string{"any"}}), "payment"},
		"policy of nobody":  {graygrpc.WithPolicyFor("", subset.Policy{}), "without a name"},
		"self":              {graygrpc.WithSelf(registry.Instance{}), "without a service"},
		"self's metadata":   {graygrpc.WithSelf(registry.Instance{Service: "a", Metadata: map[string]string{"": "x"}}), "Metadata"},
		"exempt":            {graygrpc.WithExempt("Health"), `"Health"`},
		"exempt service":    {graygrpc.WithExempt("/grpc.health.v1.Health"), "/package.Service/"},
		"exempt all":        {graygrpc.WithExempt("/"), `"/"`},
		"exempt nothing":    {graygrpc.WithExempt(""), `""`},
	} {
		t.Run(name, func(t *testing.T) {
			opts, err := graygrpc.ServerOptions(c.opt)
			assert.ErrorContains(t, err, c.want)
			assert.ErrorContains(t, err, "graygrpc: ")
			assert.Nil(t, opts)
			unary, err := graygrpc.UnaryServerInterceptor(c.opt)
			assert.ErrorContains(t, err, c.want)
			assert.Nil(t, unary)
			stream, err := graygrpc.StreamServerInterceptor(c.opt)
			assert.ErrorContains(t, err, c.want)
			assert.Nil(t, stream)
		})
	}
}

func TestWrongDialOptions(t *testing.T) {
	for name, c := range map[string]struct {
		disc registry.Discovery
		opt  graygrpc.DialOption
		want string
	}{
		"no discovery":       {nil, nil, "discovery"},
		"policy":             {memory.New(), graygrpc.WithPolicy(subset.Policy{MinReady: -1}), "minReady -1"},
		"policy of one":      {memory.New(), graygrpc.WithPolicyFor("payment", subset.Policy{Key: "a b"}), "a b"},
		"exempt":             {memory.New(), graygrpc.WithExempt("Health"), `"Health"`},
		"child policy":       {memory.New(), graygrpc.WithResolver(resolver.WithChildPolicy(`[{"round_robbin":{}}]`)), "round_robbin"},
		"the resolver's own": {memory.New(), graygrpc.WithResolver(resolver.WithServiceConfig("{")), "service config"},
	} {
		t.Run(name, func(t *testing.T) {
			opts := append(graygrpc.DialOptions(c.disc, c.opt), grpc.WithTransportCredentials(insecure.NewCredentials()))
			_, err := grpc.NewClient("gray:///inventory", opts...)
			assert.ErrorContains(t, err, c.want)
		})
	}
	unary, err := graygrpc.UnaryClientInterceptor(graygrpc.WithExempt("Health"))
	assert.ErrorContains(t, err, "graygrpc: exempt")
	assert.Nil(t, unary)
	stream, err := graygrpc.StreamClientInterceptor(graygrpc.WithExempt("Health"))
	assert.ErrorContains(t, err, "graygrpc: exempt")
	assert.Nil(t, stream)
}

func TestNilOptionsAreIgnored(t *testing.T) {
	server, err := graygrpc.ServerOptions(nil, graygrpc.WithPropagator(nil), graygrpc.WithMeterProvider(nil))
	require.NoError(t, err)
	n := &node{}
	reg := memory.New()
	register(t, reg, "i", "inventory", "v2.1.0", serve(t, n, server...))
	register(t, reg, "s", "inventory", "", serve(t, &node{}, server...))
	conn := dial(t, "gray:///inventory", graygrpc.DialOptions(reg, nil, graygrpc.WithPropagator(nil), graygrpc.WithMeterProvider(nil),
		graygrpc.WithLogger(nil), graygrpc.WithInjectTo(nil), graygrpc.WithResolver(), graygrpc.WithResolver(nil))...)
	require.NoError(t, callTagged(conn))
	assert.Equal(t, tag.String(), n.last(t).tag)
	_, err = graygrpc.UnaryClientInterceptor(nil)
	require.NoError(t, err)
}
