package graygrpc

import (
	"google.golang.org/grpc"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/registry"
)

// DialOptions returns what makes a client find the instances of a service
// through disc, send every call to the version that its tag asks for, and hand
// the tag on, for all four kinds of RPC:
//
//	conn, err := grpc.NewClient("gray:///inventory", append(graygrpc.DialOptions(disc), creds)...)
//
// Where an option is wrong, or disc is nil, grpc.NewClient fails and says why.
// The options may be used for any number of clients, also of other targets
// than gray:///; those get the tags that the outbound scope allows.
//
// They chain interceptors. Interceptors that are chained behind them may
// replace the outgoing metadata: the tag still arrives, in the per-RPC
// credentials of the call. One that gives the call other per-RPC credentials at
// the same time takes it away.
func DialOptions(disc registry.Discovery, opts ...DialOption) []grpc.DialOption {
	c, err := newConfig(opts)
	if err != nil {
		return resolver.InvalidDialOptions(err)
	}
	shared := []resolver.Option{resolver.WithMeterProvider(c.provider), resolver.WithLogger(c.logger)}
	dial, err := resolver.DialOptions(disc, append(shared, c.resolver...)...)
	if err != nil {
		return resolver.InvalidDialOptions(err)
	}
	interceptors := newClient(c)
	return append(dial,
		grpc.WithChainUnaryInterceptor(interceptors.unary),
		grpc.WithChainStreamInterceptor(interceptors.stream),
	)
}
