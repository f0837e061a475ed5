// Package httplb sends HTTP requests to the instances of a service. Its [Balancer]
// is an [http.RoundTripper]: a request to http://inventory/items/1 goes to an
// instance of the service inventory, of the version that the gray tag of the
// request's context asks for, or of the one that the policy allows in its place.
//
//	lb, err := httplb.New(disc)
//	if err != nil {
//		return err
//	}
//	defer lb.Close()
//	client := &http.Client{Transport: lb}
//	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://inventory/items/1", nil)
//	…
//	resp, err := client.Do(req)
//
// The balancer reads the tag; it does not send it on. That is what
// [github.com/graylane/graylane/middleware/grayhttp] does, whose NewClient has a
// Balancer inside.
//
// # Which requests
//
// A host without port and dot, other than localhost, names a service;
// [WithServiceHost] decides otherwise. Every other request goes straight through.
// The Host header stays what the URL says.
//
// # Which instance
//
// [github.com/graylane/graylane/balancer/subset] decides which version serves.
// Inside a version instances are chosen by weight (1 to 65536, others count as the
// nearest), smoothly, in constant time, without a lock or an allocation.
//
// An instance that cannot be dialled is put aside for a cool-off that grows from
// failure to failure, and the request goes to the next one of the same version;
// where all of a version are aside it counts as unhealthy and the policy's fallback
// applies. Where nothing that may serve is left, the instance that is due first is
// tried all the same. After a cool-off the balancer dials once by itself, so that no
// request has to find out that the instance is still away.
//
// A request that may have reached a server is sent again, to another instance where
// there is one, only where its method is idempotent (RFC 9110, section 9.2.2) or it
// carries an Idempotency-Key, where its body can be had again (GetBody), and where
// it did not time out; twice by default. Answers are never judged, a 503 is an
// answer, but for one: a 421 whose X-Gray-Misrouted names the service that was asked
// says that the instance serves another version than the registry's snapshot, and that no
// handler has seen the request
// ([github.com/graylane/graylane/middleware/grayhttp.WithRejectMisrouted]). The request
// goes elsewhere then, once, whatever its method, unless its body is spent, which is one
// without GetBody of which more than 16 KiB were read: to another instance of the
// version, else to what the policy allows if that one were down. Where
// there is nobody, the caller gets the 421, without that header.
//
// # What is seen
//
// Each decision is counted as graylane.route.decisions, under the version that was
// wanted and under the one that served, and told to [WithObserver]. Where the
// request's context holds a span that records, a client span gets gray.service,
// gray.version, gray.served, gray.outcome and gray.reason; any other gets an event
// gray.decision with these. Without a meter and a tracer neither costs an allocation.
// What the values mean, and what to look at when something is wrong, stands in package
// [github.com/graylane/graylane/middleware].
//
// # Guarantees and limits
//
//   - A request never reaches a version that neither its tag nor the policy names.
//     Where none may serve the error is a
//     [*github.com/graylane/graylane/balancer/subset.UnavailableError], at once.
//   - The first request to a service waits for the first answer of the Discovery,
//     as long as its context allows. An error of the Discovery later changes
//     nothing: the last known instances stay in use.
//   - The caller's request is not changed, its body is closed on every path, and
//     bodies of answers pass through untouched, those of upgrades included.
//   - Each service has one watch, from its first request until it is not asked for
//     any more ([WithIdleTimeout]); at most 512 are watched at a time.
//   - Each service has its own connections, and each of its instances its own pool.
//     Instances are dialled directly, without a proxy.
//
// # Security
//
// Over https the certificate of an instance must be valid for the name of the
// service; a connection that was verified for one service never carries requests to
// another, also where both have an instance at one address. A host that comes from
// outside can name any service in the registry: check such URLs before they get
// here.
package httplb
