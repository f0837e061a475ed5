package resolver

import (
	"encoding/json"

	"google.golang.org/grpc"

	"github.com/graylane/graylane/balancer"
	"github.com/graylane/graylane/registry"
)

// DialOptions returns what a client of gray targets needs: the resolver, the
// service config with the graylane policy, and no proxy, since gRPC drops what
// is known of the versions where it finds one in the environment. Credentials
// are the caller's.
//
//	opts, err := resolver.DialOptions(disc)
//	conn, err := grpc.NewClient("gray:///inventory", append(opts, creds)...)
//
// The options may be used for any number of clients. DialOptions fails where an
// option is wrong, and where a policy is not registered.
func DialOptions(disc registry.Discovery, opts ...Option) ([]grpc.DialOption, error) {
	b, err := newBuilder(disc, opts)
	if err != nil {
		return nil, err
	}
	js, err := b.cfg.serviceConfigJSON("")
	if err != nil {
		return nil, err
	}
	return []grpc.DialOption{
		grpc.WithResolvers(b),
		// The resolver delivers one for its service; this one holds until then,
		// and lets grpc.NewClient fail on what gRPC does not understand.
		grpc.WithDefaultServiceConfig(js),
		grpc.WithNoProxy(),
	}, nil
}

// InvalidDialOptions returns options with which grpc.NewClient fails and says
// err: for functions that return dial options and no error.
func InvalidDialOptions(err error) []grpc.DialOption {
	// Only JSON strings in it: this cannot fail.
	js, _ := json.Marshal(map[string]any{
		"loadBalancingConfig": []any{map[string]any{balancer.Name: map[string]string{"invalid": err.Error()}}},
	})
	return []grpc.DialOption{
		grpc.WithDefaultServiceConfig(string(js)),
		// Should somebody's own service config replace that one.
		grpc.WithResolvers(&builder{err: err}),
	}
}
