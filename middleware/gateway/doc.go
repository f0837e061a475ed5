// Package gateway is a ready entrance for a gray release: a reverse proxy that
// decides once, by rules, which tag a request gets, and sends it to the version of
// the service that the tag asks for. For those who have a proxy already there is a
// forward-auth endpoint, which decides on its behalf.
//
// The rules come from a store and change while requests run; the instances come from
// a discovery:
//
//	engine, err := rule.NewEngine(nil)
//	go engine.Follow(ctx, rule.NewFileStore("rules.json"))
//
//	g, err := gateway.New(engine, disc, gateway.WithRoutes(
//		gateway.Route{Prefix: "/orders", Service: "order"},
//		gateway.Route{Prefix: "/shop.Inventory", Service: "inventory"}, // gRPC
//		gateway.Route{Host: "admin.example.com", Service: "admin", PreserveHost: true},
//	))
//	defer g.Close()
//	err = gateway.NewServer(":8080", g).ListenAndServe()
//
// Where one writes the entrance service oneself, [grayhttp.Edge] is what does the
// first half of this.
//
// # What comes through
//
//   - Bodies of any size and length of time, in both directions at once, also over
//     HTTP/1.1; trailers; informational answers (1xx); server-sent events without a
//     delay; WebSockets. What a service sends without saying how long it is goes on
//     at once; an answer with a Content-Length goes on in pieces of 4 KiB.
//   - HTTP/1.1 and HTTP/2 from clients, HTTP/2 without TLS where the server has it
//     ([NewServer] does), and gRPC: status, details, streams. Requests of gRPC go on
//     over HTTP/2 by themselves, others where the [Route] says so.
//   - Content encodings, query and path as the client wrote them. Query parameters
//     that net/url cannot parse are dropped, since rules have not seen them either.
//
// The service gets X-Forwarded-For, -Host and -Proto: what a trusted proxy says,
// extended; from everybody else they are replaced, and the other X-Forwarded headers,
// X-Real-IP and Forwarded are removed. Host is the name of the service, unless
// Route.PreserveHost. The client gets X-Version, the version that was decided for the
// service of the route, or stable, and X-Canary-Group where a sticky group was hashed; what
// a service says in these, as headers or trailers, is dropped.
//
// # When something fails
//
// An answer that breaks off breaks off for the client as well: it never looks
// complete. Where there is no answer, the gateway gives one: a status, the reason in
// X-Gray-Reason, and nothing of addresses and versions; gRPC gets a status of gRPC.
//
//	404 no_route      no route takes host and path
//	405 method        CONNECT
//	413 too_large     more than WithMaxBody allows
//	502 upstream      an instance was reached and gave no answer
//	503 missing       no instance of the version, nor one that the policy allows in its place
//	503 unhealthy     they are registered, and none can be reached
//	503 shutdown      the gateway is closed
//	504 timeout       no header of an answer in time, see WithTimeout
//
// [WithErrorHandler] answers otherwise. Failures of services are logged, once a
// second per route at most; clients that go away are not. A handler outside must hand
// http.ErrAbortHandler on, which is how an answer is broken off, and a ResponseWriter
// that it wraps must have Unwrap.
//
// # What is seen
//
// Each decision of the balancer is counted as graylane.route.decisions, and what
// requests claimed as graylane.edge.forged. How long answers take, by version and
// status, instances that have [grayhttp.WithSelf] measure themselves
// (graylane.server.duration); the gateway does not record it once more, which would
// count every request twice in a sum over all jobs. What the gateway sees, of services
// without this library too, is told to [WithObserver]: decision, status, duration, and
// whether the client hung up. [WithRecorder] counts it for package rollout, which
// judges a release by it.
//
// A peer that [grayhttp.WithTrustedGateways] names, a gateway further out, may ask for
// the way of a request with X-Gray-Trace: 1. The answer has it in X-Gray-Route, and in a
// trailer what was called after the header had left. The gateway itself is no hop of it.
// Nobody else is told, whatever services answer; X-Gray-Misrouted stays inside as well.
//
// All metrics and attributes, and what to look at when something is wrong, stand in
// package [github.com/graylane/graylane/middleware].
//
// # Limits
//
//   - Time and size are limited by the http.Server: [NewServer] limits the header of
//     a request (ten seconds, 64 KiB) and idle connections. Bodies are not limited,
//     see [WithMaxBody]; nor is the time of an answer, see [WithTimeout]. Do not put
//     http.MaxBytesHandler outside: it does not go with answers that begin before
//     the request has ended.
//   - An instance that dies over HTTP/1.1 before it answers is noticed when the client
//     sends the next bytes of its body, or at the end of the timeout.
//   - Where an answer has ended and the request's body was not read to its end, the
//     connection of a client of HTTP/1 is closed.
//   - Routes are fixed. Rules, instances and versions change while it runs.
//   - A WebSocket or a stream that is open stays at its instance when rules change.
//   - [http.Server.Shutdown] does not wait for WebSockets.
//   - A shared cache in front of the gateway does not know versions: it hands the
//     answer of one to users of another. Let it pass, or vary by what rules read.
//
// # Cost
//
// Measured over loopback, against a bare httputil.ReverseProxy that is tuned alike (a
// pool for buffers, 512 idle connections per instance), the entrance costs some 6 % of
// a request where one user of five is gray, and some 8 % where every one is: client and
// service have two headers more to write and to read then. A stable request takes no
// allocation more, a gray one some five, those of client and service included. No
// request takes a lock of the gateway.
//
// # Security
//
// The gateway, and the forward-auth endpoint, do not believe what comes from
// outside: X-Gray-Tag, the compatibility headers, X-Gray-Trace and gray.* members of
// baggage are removed from what goes on; a Connection header that names them changes
// nothing. Rules decide by headers, cookies, query and address, and whoever can
// choose these can choose his version: where that matters, let code tell who the
// user is, with grayhttp.WithAttr, behind your authentication.
//
// A header that the client names in Connection is for this hop (RFC 9110, section
// 7.6.1): rules read it, the service does not get it. Where authentication outside
// writes a header, a client can have it taken away like that; a service must not
// serve a request that lacks it.
//
// Trust is given by the peer's address, and of two kinds, neither of which implies
// the other. [grayhttp.WithTrustedProxies] is about the client's address and
// scheme: load balancers. [grayhttp.WithTrustedGateways] is about tags: other
// gateways, which remove what comes from outside themselves.
//
// A tunnel is made for WebSockets alone. An upgrade to HTTP/2 (h2c) would carry
// requests that no rule has seen; the wish for it is not handed on, and
// [WithUpgrades] refuses it.
//
// Services must be reachable through the gateway only, or check themselves: whoever
// can send to an instance directly can send any tag. Only services that a route names
// can be reached, whatever the request says, and by the paths of its route: a path
// with . or .. as a segment has no route.
//
// # Behind nginx, Traefik, Caddy, APISIX, Envoy
//
// [ForwardAuth] answers 200 to every question, with the headers that the proxy has to
// set on the request. How each of them is told to stands, with configurations, at
// [Nginx], [IngressNginx], [Forwarded] and [Envoy].
package gateway
