// Package graygrpc carries the gray tag over gRPC: a server puts the tag of a
// request into the context of its handler, a client hands the tag of a context
// on and lets the call be served by the version that the tag asks for.
//
// A server that is one instance of a service:
//
//	self := registry.FromEnv(registry.Instance{ID: "inventory-1", Service: "inventory", Address: "10.0.0.7:8080"})
//	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self))
//	if err != nil {
//		return err
//	}
//	server := grpc.NewServer(opts...)
//
// A client of that service, disc being a registry.Discovery:
//
//	conn, err := grpc.NewClient("gray:///inventory",
//		append(graygrpc.DialOptions(disc), grpc.WithTransportCredentials(creds))...)
//
// That is all: a handler that calls with the context that it was given calls in
// the colour of its request. Connections that are not dialled through a
// discovery take [UnaryClientInterceptor] and [StreamClientInterceptor].
//
// # Guarantees
//
// All four kinds of RPC are treated alike; the tag of a stream is that of its
// beginning. The metadata key is x-gray-tag, in the form that package graytag
// describes, beside the members of W3C Baggage that package propagation writes.
// They are set, never added, however often a client is wrapped. Neither the
// metadata of the caller nor its call options are changed, and nothing that
// came in is forwarded but the tag and, as OTel does, baggage.
//
// A tag never fails a call. What is malformed is counted and passed over, and
// values that gRPC would refuse to send, other bytes than 0x20 to 0x7E, are
// escaped or left out.
//
// It works alone, and beside the stats handlers of otelgrpc in any order. A
// service that has nothing but otelgrpc with the W3C propagators hands the tag
// on in the baggage.
//
// # Interceptors of others
//
// On a client, an interceptor that is chained behind ours and replaces the
// outgoing metadata does not lose the tag: it then goes as part of the per-RPC
// credentials of the call, with those that the call has. It is lost where such
// an interceptor also gives the call other per-RPC credentials, and where it
// replaces the context itself. On a server, interceptors that are chained before
// ours see a context without the tag.
//
// # Calls without a scope
//
// A context that no inbound middleware has seen is out of scope: a background
// job, or a handler that called with context.Background(). Such a call keeps a
// tag that the caller put into the metadata himself, and is routed by it; else
// it takes the tag of [WithDefaultTag]; else it is counted
// (graylane.propagation.orphans): where tags get lost.
//
// # What arrives
//
// A server that knows itself ([WithSelf]) classifies every request: matched,
// stable, fallback, misrouted. Handlers find theirs with [ArrivalFromContext]. Health
// checks, reflection and the methods of [WithExempt] are no traffic.
//
// # What is seen
//
// Metrics, with an OTel MeterProvider that records:
//
//   - graylane.server.requests{wanted,outcome}, when a call arrives;
//   - graylane.server.duration{version,wanted,status}, in seconds, when its handler
//     has ended, which of a stream is its end. The version is the own one. The status
//     is the name of gRPC's code, such as OK or NOT_FOUND. A call whose client has
//     given up is CANCELLED, whatever the handler says, and no error of the version;
//     where the handler says so while its client waits, it is aborted, and one.
//     A call that took longer than its deadline is DEADLINE_EXCEEDED, also where the
//     client, whose clock began earlier, cancelled it a little before, in the last
//     fifth of the time, at most a second: no other sign tells one from the other. A handler that
//     panics is INTERNAL;
//   - graylane.route.decisions of the balancer, of a client;
//   - graylane.propagation.orphans{site}, of a client: see the section on calls
//     without a scope. At debug level each site is logged once, with file and line.
//
// Each label is bounded: past a hundred values it is "other". It is, too, where the
// policy routes by uid: users are in no metric.
//
// Spans, where others make them, otelgrpc for example: that of a server gets
// gray.version, which was wanted, gray.served, the own one, and gray.outcome. That of
// a client gets the same of its balancer's decision, with gray.service and
// gray.reason; where a call has none, that of its caller gets an event gray.decision.
// A client whose last thousand calls had no span looks at every 64th from then on,
// until it finds one again.
//
// Calls that should not have come are logged as warnings, a few of them. [WithProfileLabels]
// labels CPU profiles. The route of a call, which versions served it further on, is in
// the trailer x-gray-route of calls with x-gray-trace: 1, see
// [propagation.TraceRoute].
//
// All metrics and attributes, and what to look at when something is wrong, stand in
// package [github.com/graylane/graylane/middleware].
//
// # Refusals
//
// With [WithRejectMisrouted] a server refuses what should not have come, before a
// handler has seen it: with FailedPrecondition and a marker. A client that was
// dialled with gray:///service, and meets such a refusal of that service, tries once
// more: on another instance of the version that is ready, else on what the policy
// allows where the version is down, which counts as a decision with the reason
// unhealthy. Where nobody else may serve, or is refused again, the caller gets the
// refusal. Where nothing that the instance says of itself, ID or address, is known to
// the registry, its version is passed over as a whole.
//
// It is not tried again where the request is gone: a stream of requests of which more
// than four messages, or 16 KiB, were sent, or whose messages are not of protobuf,
// before the refusal was known. Call options that report, such as grpc.Header, tell
// of the last try; grpc.OnFinish is called for each. The marker in the error of a
// handler is removed: who meets one may take it that no handler has run.
//
// # The entrance
//
// Where calls of strangers come in, [Edge] stands in place of [ServerOptions]. It
// has the rules of package [github.com/graylane/graylane/graytag/rule] decide,
// once, which tag a call gets:
//
//	opts, err := graygrpc.Edge(engine, graygrpc.WithTrustedProxies("10.0.0.0/8"))
//	server := grpc.NewServer(append([]grpc.ServerOption{authenticate}, opts...)...)
//
// The answer says in x-version, in its header, which version was decided, and in
// x-canary-group which sticky group was used; handlers find the whole in
// [EntryFromContext]. Rules for single hops inside the system belong to a client,
// see [WithRules].
//
// # Cost
//
// An untagged RPC, client and server together, costs three allocations, a
// tagged one about thirty; otelgrpc with an SDK costs about a hundred. Beside
// otelgrpc, with metrics and spans, they are eight and below fifty, of which otelgrpc
// needs some for the baggage of the tag. See BenchmarkUnary. A stream of a client
// costs one more.
//
// # Security
//
// A server believes the tag that comes in. At the entrance of a system, where
// strangers call, that is wrong: an [Edge] removes it and decides anew. It takes
// out, of the metadata and of the context, x-gray-tag, the keys of compatibility
// formats, x-gray-trace, and every baggage member that any implementation of W3C
// Baggage might take for one of a tag, and counts them (graylane.edge.forged).
//
// Nor does an answer say more than that: x-gray-route and x-gray-misrouted leave an
// Edge only towards a trusted gateway that has asked with x-gray-trace, also where a
// handler hands on what it was answered itself. (The trailer of a unary call that was
// made without this library is not looked at.)
//
// An Edge believes a tag of the peers of [WithTrustedGateways] alone, an address of
// those of [WithTrustedProxies] alone. Both go by the other end of the connection;
// peers without an IP address are never trusted. What metadata says of a user is a
// claim: authenticate in an interceptor before the Edge, and hand the user over
// with [WithAttr]. Rules are no access control.
//
// Tags hold user data. A client sends them only to targets inside the system:
// those of the gray scheme, unix sockets, in-memory connections (the target
// passthrough with no host or one of a single label, such as bufconn's usual
// passthrough:///bufnet), and hosts that [propagation.InternalHost] takes for
// internal. From calls to any other target the tag is removed, from the
// metadata and from the context as well, where OTel's instrumentation would
// find it; [WithInjectTo] lets more targets have it. What decides is the target
// that was dialled: a custom dialer or resolver that leads an internal name
// elsewhere is not seen.
package graygrpc
