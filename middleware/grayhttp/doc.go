// Package grayhttp brings gray release to net/http: it takes the tag of an
// inbound request into its context, and on every outbound request it sends the
// tag along and picks an instance of the version that the tag asks for.
//
// A service wraps its handler and makes its client once:
//
//	handler, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self))
//	client, err := grayhttp.NewClient(disc)
//
// and hands the context of the request on, as it should anyway:
//
//	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://inventory/items/1", nil)
//	resp, err := client.Do(req)
//
// Nothing else changes. [NewTransport] sends tags along over a RoundTripper of
// one's own, without choosing instances. Work that outlives its request takes its
// context from [github.com/graylane/graylane/propagation.Detach].
//
// # The entrance
//
// Where requests of strangers come in, [Edge] stands in place of [Middleware]. It
// has the rules of package [github.com/graylane/graylane/graytag/rule] decide,
// once, which tag a request gets:
//
//	enter, err := grayhttp.Edge(engine,
//		grayhttp.WithTrustedProxies("10.0.0.0/8"), // the load balancer in front
//		grayhttp.WithStickyCookie(grayhttp.StickyCookie{}))
//	http.ListenAndServe(addr, authenticate(enter(mux)))
//
// The answer says in X-Version which version was decided, and in X-Canary-Group
// which sticky group was used; handlers find the whole in [EntryFromContext]. The
// tag is in the context, not in the header of the request: what sends it on is a
// client of this package. Rules for single hops inside the system belong to a
// client, see [WithRules].
//
// Caching: what is decided may depend on anything that rules see, the address of
// the client among it, which no Vary can say. An Edge sets none. A shared cache
// belongs behind the Edge, by version, or has to be told by the handler
// (Cache-Control: private) what it must not keep; an Edge itself says so only of
// answers that set its cookie. A page of another origin reads X-Version only where
// the application exposes it (Access-Control-Expose-Headers), and its requests
// carry the sticky cookie only with credentials.
//
// # What is seen
//
// With [WithSelf] a handler knows what it means that a request has arrived at it,
// see [ArrivalFromContext]. It counts that as graylane.server.requests, and measures
// the answers as graylane.server.duration, in seconds, by the own version, the one
// that was wanted, and the status. The status is that of the answer proper, not of an
// informational one, or
//
//	CANCELLED  the client hung up before the handler had returned, whatever it answered then
//	aborted    the handler broke the answer off, or was too late: for the server's WriteTimeout or
//	           a write deadline, for [http.TimeoutHandler], or for the deadline of the request's
//	           context without an answer. Over HTTP/2 a WriteTimeout looks as if the client
//	           had hung up: who does so in the last fifth of it, at most a second, counts here
//	500        the handler panicked before it answered
//	101        a tunnel, measured until it began
//	hijacked   the handler took the connection, measured until then
//
// so that errors of a version are its 5xx and aborted. The current span, of OTel
// middleware outside ours, gets gray.version, gray.served and gray.outcome. Requests
// that should not be here are logged, eight in ten seconds at most, and refused with
// [WithRejectMisrouted]; clients of this package then try once elsewhere. CPU
// profiles tell versions apart with [WithProfileLabels].
//
// Clients count graylane.route.decisions, and mark their span, or note an event
// gray.decision in the caller's. As graylane.propagation.orphans they count every
// request whose context belongs to no inbound request, by its call site: the places
// where tags get lost. Each site is logged once, at debug level, with file and line. A
// background job's requests get the tag of [WithDefaultTag].
//
// A request that carries X-Gray-Trace: 1 is answered with X-Gray-Route, the way that
// it took: this instance, and what its handler called through clients of this
// library, in turn. Calls after the header went are in a trailer of the same name,
// where the body is chunked or the protocol is HTTP/2. An [Edge] believes that header
// of trusted gateways alone. A program asks with
// [github.com/graylane/graylane/propagation.TraceRoute].
//
// Labels are bounded, and hold no user: where a policy routes by uid, versions are
// "other". A span holds what was wanted in the clear, as the tag does.
//
// All metrics and attributes, and what to look at when something is wrong, stand in
// package [github.com/graylane/graylane/middleware].
//
// # Beside OTel
//
// The handler works inside and outside otelhttp's, the transport inside and
// outside otelhttp's, and both without it. A service in the middle of a chain that
// has otelhttp alone, with the W3C propagators, keeps the tag.
//
// # Guarantees and limits
//
//   - The context is the only truth. A request that is sent again with another
//     context carries that one's tag; one that is known to be untagged carries
//     none, whatever its header held.
//   - A malformed tag never fails a request; it is counted, and the request is
//     untagged.
//   - The caller's request and header are never changed. The ResponseWriter is
//     wrapped only where somebody records metrics, or asks for the route of a
//     request; it has the same methods then.
//   - An untagged request costs at most four allocations, on both sides together;
//     a decision at an Edge costs one more than the inbound middleware. A meter and a
//     tracer that record cost some seven more; without them nothing is measured.
//   - Every decision is made by the rules of that moment: what changes in them
//     holds from the next request on, for everybody. The sticky cookie is a key to
//     hash, not a version.
//
// # Security
//
// Tags carry user data. They go to services that are found through the
// Discovery, and to the hosts of
// [github.com/graylane/graylane/propagation.InternalHost]; to others only where
// [WithInjectTo] says so. From requests to any other host, redirects included, the
// tag is taken out of the header, of the baggage in it, and of the context that is
// passed down. That is logged once per host and counted every time.
//
// The inbound middleware believes the tag that a request brings. It belongs behind
// an entrance that removes what comes from outside, an [Edge]:
//
//   - From the request and from its context go X-Gray-Tag, the compatibility
//     headers, X-Gray-Trace, and every baggage member that any implementation of
//     W3C Baggage might take for one of a tag: in any case, percent-encoded, or
//     past the size that readers accept. Neither underscores in place of hyphens,
//     which are the same to CGI, nor trailers, nor the prefixes of grpc-gateway,
//     OpenTracing, Jaeger and Brave are a way round. Connection options that name these headers
//     go as well, so that a proxy further inside does not take away what we put
//     there. Each is counted (graylane.edge.forged).
//   - A tag is believed of the peers of [WithTrustedGateways] alone, an address of
//     those of [WithTrustedProxies] alone. Both go by the other end of the
//     connection, [net/http.Request.RemoteAddr]: middleware outside an Edge must not
//     write what a header says into it. Peers on Unix sockets have no address, and
//     are never trusted.
//   - X-Gray-Route and X-Gray-Misrouted name instances and services. Clients of this
//     package take them out of what they bring back to the handler of an Edge, so that a
//     proxy there does not hand them out. A trusted gateway that asks is told the route.
//   - The name of a user in a header, cookie or query parameter is a claim. Where
//     it matters who is gray, authenticate outside the Edge, and hand the user over
//     with [WithAttr].
//   - A visitor can choose his sticky group, and what else rules read of a request:
//     rules are no access control. A gray version must be fit to be seen.
//
// Rules see headers and cookies as they came. Values of any length cost at most
// linear time; the group of the cookie, the only value that is sent back, is bounded
// in length and letters.
package grayhttp
