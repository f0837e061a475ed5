// Package gateway is the entrance: it colours every request once, by rules, and
// sends it to the version of a service that its colour asks for.
//
// There are two ways to stand at the door. [New] makes a reverse proxy of its own:
//
//	engine, err := rule.NewEngine(nil)
//	go engine.Follow(ctx, rule.NewFileStore("rules.json"))
//	gw, err := gateway.New(engine, disc,
//		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
//	err = gateway.NewServer(":8080", gw).ListenAndServe()
//
// [ForwardAuth] makes a handler that another proxy asks about each request: nginx
// (auth_request), ingress-nginx, Traefik, Caddy, APISIX, Envoy (ext_authz). How each
// of them is set up stands at its [Convention]. An entrance service of one's own
// needs neither: see grayhttp.Edge and graygrpc.Edge.
//
// # What the reverse proxy does
//
// A [Route] takes requests by host, by path prefix, or both; the most exact host
// comes first, then the longest prefix. The path goes on as it came. HTTP/1.1, HTTP/2,
// HTTP/2 without TLS and gRPC come in through [NewServer]; bodies stream both ways,
// server-sent events are handed on at once, WebSockets become tunnels
// ([WithUpgrades]), trailers and informational answers survive. It is
// httputil.ReverseProxy beneath, with pooled buffers and 512 idle connections per
// instance, and package httplb chooses the instance: what cannot be dialled is put
// aside, and a request that has not left is sent to another instance of the same
// version.
//
// X-Forwarded-For, X-Forwarded-Host and X-Forwarded-Proto are those of the gateway;
// what a trusted proxy says (grayhttp.WithTrustedProxies) is kept and added to.
// Answers say in X-Version which version was decided for the service, "stable" or
// its name, and in X-Canary-Group where a sticky group decided.
//
// # Failures
//
// What no service has answered the gateway answers, with a reason in X-Gray-Reason
// and a body that says no more (see [Failure] and the Reason constants):
//
//	404 no_route       no route takes the request
//	503 missing, ...   no instance may serve; the reason is a subset.Reason
//	502 upstream       an instance was reached and gave no answer
//	504 timeout        none in time
//
// A service that dies in the middle of a body breaks the body: the client sees that
// it is not whole. Addresses of instances are in the log alone.
//
// # Security
//
// Nothing that comes from outside says what colour a request has: X-Gray-Tag,
// compatibility headers, X-Gray-Trace and gray.* baggage are taken out in whatever
// spelling, and counted. Tags are believed only from peers in
// grayhttp.WithTrustedGateways, which must be gateways themselves; client addresses
// only from peers in grayhttp.WithTrustedProxies; never one for the other. Both are
// options of the edge: hand them on with [WithEdge]. A path with dot segments has no
// route, so that none leaves its own.
//
// NewServer bounds headers and idle connections. It bounds no bodies: wrap the
// gateway in http.MaxBytesHandler where services do not bound theirs. Nothing that
// runs through a tunnel meets rules again, and a rollback does not cut it.
package gateway
