// Package resolver makes a [github.com/graylane/graylane/registry.Discovery] a
// gRPC name resolver, so that a client follows the instances of a service, and
// their versions, by name:
//
//	opts, err := resolver.DialOptions(registry)
//	if err != nil {
//		return err
//	}
//	opts = append(opts, grpc.WithTransportCredentials(creds))
//	conn, err := grpc.NewClient("gray:///inventory", opts...)
//
// The name of the service is also the authority of the client, which TLS
// verifies. Nothing is registered with gRPC globally: two clients may use two
// registries.
//
// # What it does
//
//   - Instances that are passing serve; those in warning by option
//     ([WithWarning]); critical ones and those in maintenance never.
//   - Of two registrations of one address the newer holds, even where it is not
//     healthy: the older one tells the version of a process that is gone.
//   - Changes are handed to the balancer at once, and then at most every 20
//     milliseconds. What changes nothing that the balancer knows is not handed
//     down.
//   - An error of the registry is logged once per streak and keeps the last
//     instances; before there are any, RPCs fail with it. A service that nobody
//     registered fails RPCs at once, and serves as soon as somebody has.
//   - A client that goes idle and wakes up looks the service up again.
//
// # The service config
//
// The resolver delivers the service config, with the policy "graylane" of
// [github.com/graylane/graylane/balancer] for its service. As gRPC defines it,
// grpc.WithDefaultServiceConfig is not read then: method configs go through
// [WithServiceConfig]. Wrong options, an unregistered child policy among them,
// are errors of [DialOptions]; grpc.WithDisableServiceConfig would turn routing
// off, and fails every RPC.
package resolver
