// Package middleware holds what a service puts around its servers, clients and
// logger. It has no code of its own: this page says what all of it shows, and what
// to look at when something is wrong. The packages:
//
//	grayhttp   handler, client and edge for net/http
//	graygrpc   interceptors, dialling and edge for gRPC
//	gateway    a ready entrance: reverse proxy, forward-auth endpoint
//	grayslog   the version on every log line
//
// Everything goes through the API of OpenTelemetry and log/slog. Without a
// MeterProvider and a TracerProvider nothing is recorded, and next to nothing spent.
// With the global ones, otel.SetMeterProvider and otel.SetTracerProvider, no option
// is needed; examples/observability shows the whole, for Prometheus.
//
// # Metrics
//
// These are all there are, with the values of each attribute. Names in capitals are
// explained below. In Prometheus dots are underscores, counters end in _total and
// seconds in _seconds.
//
//	graylane.route.decisions         counter, {decision}
//	    A client has chosen an instance, or found none that may serve.
//	    service  the one that is called: NAME
//	    wanted   the version that the request asks of it: stable, VERSION
//	    served   the version of the instance: stable, none, VERSION
//	    outcome  what became of it: matched, stable, fallback_stable, fallback_version, fallback_any, unavailable
//	    reason   why the wanted version does not serve: "", missing, unhealthy, connecting, warming
//	graylane.server.requests         counter, {request}
//	    A request has arrived at an instance that knows itself (WithSelf).
//	    wanted   the version that it asks of this service: stable, VERSION
//	    outcome  what it means that it came here: matched, stable, fallback, misrouted
//	graylane.server.duration         histogram, s
//	    An instance that knows itself has answered.
//	    version  its own: stable, VERSION
//	    wanted   as above: stable, VERSION
//	    status   what was answered: STATUS
//	graylane.propagation.malformed   counter, {tag}
//	    A tag was refused; the request went on without it.
//	    format   what held it: header, baggage, version_header, flag_header, canary_header
//	graylane.propagation.orphans     counter, {call}
//	    A call left with a context that belongs to no request: here the tag is lost.
//	    site     the line of the program that makes it: SITE
//	graylane.propagation.withheld    counter, {call}
//	    Something of a tag was kept from a call that left.
//	    reason   the host is outside, or baggage has no room and the header went: host, baggage_full
//	graylane.edge.forged             counter, {request}
//	    A request from outside claimed a tag; an edge took it out.
//	    carrier  where: header, baggage, compatibility, trace
//	graylane.rules.revision          gauge, {revision}
//	    The revision of the rules in force, while an engine follows a store.
//	graylane.rules.age               gauge, s
//	    How long ago they came into force.
//	graylane.rules.failing           gauge, {fault}
//	    1 while something keeps the newest rules out of force.
//	    cause    the document is refused, or the store cannot be read: refused, store
//
// NAME and VERSION come from the registry, or from whoever sends a request: each client
// and each handler tells the first 100 of either apart, and the rest, as well as what is
// no UTF-8 or too long, is "other". Where versions are names of users (the routing key
// is uid) all but stable are "other". SITE is a file with its folder and a line, as
// shop/order.go:42, or "unknown"; a client tells the first 100 apart. STATUS is the
// status code of HTTP (200), the code of gRPC in capitals (OK, NOT_FOUND), or one of
// these:
//
//	CANCELLED  the client gave up, over HTTP as over gRPC: no error of the version
//	aborted    the handler gave up while the client waited: over HTTP it broke the answer off, or a
//	           limit of the server's did, over gRPC it answered CANCELLED itself
//	hijacked   over HTTP, the handler took the connection over
//
// A request that falls back is counted under the version that was wanted and under
// the one that served: whoever compares versions by graylane.server.duration takes
// the series in which version and wanted are the same. A request is counted in
// graylane.server.requests when it arrives and in graylane.server.duration when it has
// ended: for a version that is wanted, the one less the other is what is open, such as
// streams that a rollback has left on it. Health checks and reflection of
// gRPC are not counted, nor is what WithExempt names.
//
// # Spans, log lines, profiles
//
// Names of attributes, and where they are found: in the span of a server, in that of
// a client, in the event gray.decision, on log lines (package grayslog), as a label of
// CPU profiles (WithProfileLabels).
//
//	gray.version   server, client, event, log, profile   the version that is wanted; stable
//	gray.served    server, client, event                 the version that serves; stable
//	gray.outcome   server, client, event                 as in graylane.server.requests and graylane.route.decisions
//	gray.service   client, event                         the service that is called
//	gray.reason    client, event                         as in graylane.route.decisions; not set where it is empty
//	gray.tag       log                                   the whole tag (grayslog.WithTag), its uid as a hash
//
// A decision is in the span of the client that calls, which is the one of otelgrpc, or
// of otelhttp around the transport of grayhttp. Where there is none it is an event
// of the span that is there.
//
// # The way of one request
//
// A request with the header X-Gray-Trace: 1 is answered with X-Gray-Route: which
// service was called, which instance took the call, which version was wanted, which
// one it got, and why. Edges believe it of trusted gateways alone; inside it always
// works, also by [github.com/graylane/graylane/propagation.TraceRoute].
// [github.com/graylane/graylane/propagation.ParseRoute] reads it.
//
// # When something is wrong
//
// The rest of this page goes by what one sees. Below each symptom stand its causes,
// each with what tells it from the others. The caller is the service that makes a
// call, the callee the one that takes it.
//
// # The tag stops after one hop
//
//   - The client is not wrapped. The caller counts no graylane.route.decisions for the
//     callee, and in X-Gray-Route no call follows that of the caller; the callee counts
//     graylane.server.requests with wanted="stable". Make the client with
//     grayhttp.NewClient or graygrpc.DialOptions, or wrap it with grayhttp.NewTransport.
//   - The call has another context than the request. The caller counts
//     graylane.propagation.orphans; its attribute site is the line of the program, and a
//     debug line says "call without the context of a request, the tag is lost here".
//     Hand the context of the request on; grayvet finds such lines before they run.
//     Where one function of the program makes all calls, the line is in that one, and
//     grayvet names who calls it with another context.
//   - The host is outside the system. The caller counts graylane.propagation.withheld
//     with reason="host", and logs "the gray tag is withheld from a host outside the
//     outbound scope". If the host is yours, allow it: WithInjectTo.
//   - Something in between damages the header. The callee counts
//     graylane.propagation.malformed with format="header". The tag is one header line;
//     a proxy that joins or cuts lines has to leave X-Gray-Tag alone.
//
// # Gray requests land on stable instances
//
//   - The client calls an address. The caller counts no graylane.route.decisions for the
//     callee, which counts graylane.server.requests with wanted="v2" and
//     outcome="fallback"; the call has outcome=fallback in X-Gray-Route, which no client
//     that chooses says. Call the service by its name.
//   - No instance has the version. The caller counts graylane.route.decisions with
//     outcome="fallback_stable" and reason="missing". Look at the metadata in the
//     registry: the key is version, and v2 is not V2 nor 2.
//   - The instances of the version cannot be reached. The caller counts
//     graylane.route.decisions with outcome="fallback_stable" and reason="unhealthy";
//     over HTTP it logs "instance cannot be dialled, it is put aside".
//   - The instance of the version refuses what it is sent (WithRejectMisrouted). The
//     caller counts graylane.route.decisions with outcome="fallback_stable" and
//     reason="unhealthy" though it can be reached; the instance counts
//     graylane.server.requests with outcome="misrouted", and X-Gray-Route shows both
//     tries, the first with outcome=misrouted. What it registers and what WithSelf was
//     given, or its policy and that of the caller, are not the same.
//   - The instances of the version are not enough yet. The caller counts
//     graylane.route.decisions with reason="warming" (fewer than Policy.MinReady) or
//     reason="connecting".
//   - The list of instances is old. The caller counts graylane.route.decisions with
//     reason="missing" though the registry has the version, and has logged "discovery
//     fails, the last known instances stay".
//
// # The tag is lost in background work
//
//   - The goroutine or pool has no context of a request. The caller counts
//     graylane.propagation.orphans; its attribute site is the line of the program. Use
//     propagation.Go, or propagation.Bind for pools that take a func().
//   - The work outlives the request whose context it has. The call fails with "context
//     canceled" once the handler has returned. Use propagation.Go or propagation.Detach.
//
// # A tag shows up in somebody else's request
//
//   - A context was kept and is used for other requests. A log line of the callee with
//     grayslog.WithTag has in gray.tag the uid of one user and is about another, and the
//     span of the callee is in the trace of the request whose context was kept. Look for
//     a context in a field of a struct, in a cache, in a batch.
//   - A header was kept and is sent without the context of a request. The caller counts
//     no graylane.propagation.orphans, though the call belongs to no request, since the
//     header holds a tag; the callee counts graylane.server.requests with wanted="v2"
//     and is given the uid of another user. Make headers anew for each request.
//   - The tag came from outside. The entrance counts graylane.edge.forged with
//     carrier="header", and has taken it out. If the callee has the tag all the same,
//     there is a way in around the entrance.
//
// # Users jump between versions
//
//   - The user has no key, or another one each time. Engine.Explain says in HashBy and
//     HashSource what was hashed, and where there was nothing to hash the verdict
//     "no_key", which Status.NoKey counts. An address is no key for people who move.
//   - Rules that belong together choose different users. Lint reports "different_users";
//     Engine.Explain shows a different Bucket for each. Give them one salt and one hashBy.
//   - Gateways do not have the same rules. They show different graylane.rules.revision;
//     the one that stays behind shows graylane.rules.failing with cause="store" or
//     cause="refused".
//   - The version comes and goes. X-Version of the answers stays the same, and callers
//     count graylane.route.decisions with wanted="v2" under outcome="matched" and under
//     outcome="fallback_stable". Find out why instances are away, or set Policy.MinReady.
//
// # A gray instance gets no traffic
//
//   - It is registered without its version. Callers count graylane.route.decisions with
//     wanted="v2" and reason="missing"; the instance itself, which knows its version,
//     counts graylane.server.requests with wanted="stable" and outcome="misrouted". Set
//     GRAY_VERSION in the pipeline, and register what registry.FromEnv returns.
//   - The rules are not in force. The entrance shows graylane.rules.failing with
//     cause="refused", and an older graylane.rules.revision; it has logged "document
//     refused, the last good rules stay" with the path of each fault.
//   - The rules do not match. Engine.Explain says of every rule what became of it:
//     "disabled", "window", "condition" with the one that failed, "percent", "no_key".
//   - It is unhealthy. Callers count graylane.route.decisions with reason="unhealthy".
//     What the registry thinks of it stands in the registry.
//
// # Requests fail although stable is up
//
//   - The policy is strict. The caller counts graylane.route.decisions with
//     outcome="unavailable", and the error says: may serve version "v2" (missing);
//     registered: stable=1. A gateway answers 503 with X-Gray-Reason: missing.
//   - Stable instances carry a version. The error ends with "stable instances have no
//     version in their metadata, or one that the policy calls stable". Take GRAY_VERSION
//     from stable instances, or name their version in Policy.Stable.
//   - The instance refuses what is not for it. It counts graylane.server.requests with
//     outcome="misrouted", and answers 421 or FailedPrecondition (WithRejectMisrouted),
//     to curl with X-Gray-Misrouted, which clients of this library keep to themselves.
//     Find out who sends it there, see below.
//
// # Requests arrive where they should not
//
//   - The caller does not choose by version. The instance counts graylane.server.requests
//     with outcome="misrouted", and logs "a request has arrived that wants another
//     version"; the caller counts no graylane.route.decisions for it. Call the service by
//     its name.
//   - Caller and instance have different policies. The caller counts
//     graylane.route.decisions with outcome="fallback_any", the instance
//     graylane.server.requests with outcome="misrouted". Give both the same policy.
//   - It is a health check. A gray instance counts graylane.server.requests with
//     wanted="stable" and outcome="misrouted" while nobody uses it. Name the path in
//     WithExempt; the health checks of gRPC are exempt.
package middleware
