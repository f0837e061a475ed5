// Package balancer is a gRPC load balancing policy that sends every RPC to an
// instance of the version that its gray tag asks for. Importing it registers
// the policy under [Name], "graylane".
//
// A client does not need this package by name. It takes the dial options of
// github.com/graylane/graylane/middleware/graygrpc, or, without the
// interceptors, those of [github.com/graylane/graylane/balancer/resolver]:
//
//	opts, err := resolver.DialOptions(registry)
//	conn, err := grpc.NewClient("gray:///inventory", append(opts, creds)...)
//
// The policy reads the tag from the context of the RPC
// ([github.com/graylane/graylane/graytag.FromContext]) and the versions from
// the metadata that the resolver puts beside each endpoint. What it decides is
// described in [github.com/graylane/graylane/balancer/subset].
//
// # One policy per version
//
// The endpoints are divided by version, and each version has a policy of its
// own that chooses among its instances: round_robin, or whatever childPolicy
// says, such as weighted_round_robin, least_request_experimental or
// ring_hash_experimental, whose packages who names them has to import.
// round_robin does not know weights.
//
// # Configuration
//
// The configuration is part of a gRPC service config. Every field is optional;
// the values shown are the defaults; unknown fields are refused, as is a child
// policy that nobody registered, so that grpc.NewClient fails:
//
//	{"loadBalancingConfig": [{"graylane": {
//	  "service": "",                         // else the target's
//	  "key": "version",
//	  "stable": ["stable"],
//	  "foldCase": false,
//	  "fallback": ["stable"],
//	  "strict": false,
//	  "minReady": 1,
//	  "connectWait": "1s",
//	  "childPolicy": [{"round_robin": {}}]
//	}}]}
//
// # Guarantees
//
//   - An RPC is never given to a version that neither its tag nor the policy
//     names. Where nothing may serve, it fails with Unavailable, and the message
//     tells the service, the version that was wanted, and what there is.
//   - A version that is connecting is waited for, for connectWait from the first
//     RPC that has to, and then what the policy allows in its place serves, if it
//     is ready. Where nothing is, RPCs wait on, until their deadline.
//   - A version whose instances cannot be reached is not waited for.
//   - RPCs that wait for ready do so where instances are registered, or none at
//     all. A version that nobody has, in a service that has others, fails them
//     at once.
//   - An update that does not change an instance keeps its connection. A change
//     of version makes one new connection; RPCs on the old one end in peace.
//   - The last good state outlives every error of the resolver; an empty one is
//     believed.
//   - A pick takes no lock, allocates nothing beyond what the policy of the
//     version does, and costs the same whatever the number of instances and
//     versions.
//
// # Limits
//
// Retries of gRPC choose anew and may see another version of the world. A
// stream stays where it began. Decisions are counted per attempt; an RPC that
// waits for ready in front of instances that are down counts as unavailable
// each time that the world changes. A MeterProvider that begins to record later
// than the client is found within 64 decisions; so is a span, where more than a
// thousand RPCs before had none.
//
// # What is seen
//
// Each decision is counted (graylane.route.decisions), noted in the span of the RPC
// or of its caller (gray.service, gray.version, gray.served, gray.outcome and
// gray.reason), and told to the observer of the resolver. What the values mean, and
// what to look at when something is wrong, stands in package
// [github.com/graylane/graylane/middleware].
package balancer
