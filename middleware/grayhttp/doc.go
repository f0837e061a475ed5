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
// # What is seen
//
// With [WithSelf] a handler knows what it means that a request has arrived at it,
// see [ArrivalFromContext]; requests are counted as graylane.server.requests.
// Clients count graylane.route.decisions, and as graylane.propagation.orphans
// every request whose context belongs to no inbound request: the places where
// tags get lost. A background job's requests get the tag of [WithDefaultTag].
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
//     not wrapped.
//   - An untagged request costs at most four allocations, on both sides together.
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
// The handler believes the tag that a request brings. It belongs behind an
// entrance that removes what comes from outside.
package grayhttp
