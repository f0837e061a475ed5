// Package subset decides which instances of a service may serve a request: it
// divides them by version and applies a defined fallback. It is pure: no
// sockets, no clocks, no goroutines. The gRPC balancer and the HTTP balancer
// share it, so that one policy means one thing.
//
// A [Policy] names the tag key and metadata key to compare (by default
// "version") and what to do where the wanted version cannot serve. Compiled for
// a service it is a [Selector]; given what is known of the subsets it makes a
// [Table], which answers with one look-up per request:
//
//	selector, err := subset.Policy{}.Compile("inventory")
//	table := selector.NewTable([]subset.Subset{{Registered: 3, Ready: 3}, {Version: "v2", Registered: 1, Ready: 1}})
//	choice, wanted := table.Choose(graytag.FromContext(ctx))
//
// # The decision
//
//   - An instance without the metadata key, or with a stable value, is stable. A
//     request without the tag key, or with a stable value, wants stable.
//   - Enough instances of the wanted version are ready: they serve ([Matched],
//     [Stable]).
//   - Else the fallback list is tried in order ([FallbackStable],
//     [FallbackVersion], [FallbackAny]), with the reason why the wanted version
//     does not serve ([Missing], [Unhealthy], [Connecting], [Warming]).
//   - Nothing left: [*UnavailableError]. A request is never given to a version
//     that neither it nor the policy asked for; an untagged one reaches a gray
//     instance through "any" alone.
package subset
