package propagation

import (
	"context"
	"runtime"

	"github.com/graylane/graylane/internal/hops"
)

// Headers of HTTP by which the inside asks for the way of a request and is told it.
// gRPC has the same names in lower case, as metadata; the answer is in the trailer
// there.
const (
	// TraceHeader with the value "1" asks for the way of a request. Edges believe it
	// of trusted gateways alone.
	TraceHeader = hops.TraceHeader
	// RouteHeader is the way, in the form that [ParseRoute] reads. It is an HTTP
	// trailer, too, where calls were made after the header had left.
	RouteHeader = hops.RouteHeader
)

// Hop is one call on the way of a request: which service was called, which version
// was wanted, which one answered, and why. Its texts come from other services: they are
// of any bytes, at most 256 each.
type Hop struct {
	// Depth is 0 for what was called first, 1 for what that called, and so on.
	Depth int
	// Service is the one that was called, "" where the caller knows an address alone
	// and the other side said nothing.
	Service string
	// Instance is the ID of the instance, or its address where no ID is known; ""
	// where none was chosen.
	Instance string
	// Wanted is the version that the request asked of the service, Got the one that
	// took it; "stable" for stable. Got is "" where nobody did.
	Wanted, Got string
	// Outcome is what the balancer says of its choice, as in the metric
	// graylane.route.decisions, or, where no balancer chose, what the instance says of
	// the arrival, as in graylane.server.requests. It is "misrouted" where the
	// instance says so, which may have refused the call: the try elsewhere is the next
	// hop, of the same depth. "pending" is a call without an answer yet, "answered" one
	// of which nothing else is known.
	Outcome string
	// Reason is why Wanted did not serve: missing, unhealthy, connecting or warming, else "".
	Reason string
}

// ParseRoute reads what [RouteHeader] holds, in the order of the calls, each
// followed by those that it made in turn. more counts calls that did not fit into
// the bounds of a route, which are 64 calls and 4096 bytes. The form is that of a
// tag, pairs with percent-encoded values, with a comma between calls:
//
//	depth=0;service=order;instance=10.0.0.1:80;wanted=v2;got=v2;outcome=matched, depth=1;service=…
//
// Keys that it does not know are passed over. "" is a route without calls. An error says
// what is malformed, or that s is too long.
func ParseRoute(s string) (route []Hop, more int, err error) {
	h, more, err := hops.Parse(s)
	return routeOf(h), more, err
}

func routeOf(h []hops.Hop) []Hop {
	if h == nil {
		return nil
	}
	route := make([]Hop, len(h))
	for i := range h {
		route[i] = Hop(h[i])
	}
	return route
}

// RouteTrace gathers the way of what is called with its context. It is safe for
// concurrent use. Make one with [TraceRoute].
type RouteTrace struct{ t *hops.Trace }

// TraceRoute returns ctx for calls whose way is to be known, those that the called
// services make in turn included:
//
//	ctx, trace := propagation.TraceRoute(ctx)
//	defer trace.End()
//	resp, err := client.Do(req.WithContext(ctx))
//	…
//	route, _ := trace.Hops()
//
// It takes clients of graylane, and services behind its middleware; of others the
// call alone is known. Of an HTTP call all is known when the body has been read to
// its end. It is meant for the few requests that somebody wants to look at: each
// costs allocations on every hop.
func TraceRoute(ctx context.Context) (context.Context, *RouteTrace) {
	ctx, t := hops.Start(ctx)
	r := &RouteTrace{t}
	// As long as one trace gathers, every call of the program is asked whether it
	// belongs to it.
	runtime.AddCleanup(r, (*hops.Trace).End, t)
	return ctx, r
}

// Hops returns what is known so far, as [ParseRoute] does. A call that had no answer
// yet has the outcome of its balancer, or "pending".
func (t *RouteTrace) Hops() (route []Hop, more int) {
	h, more := t.t.Hops()
	return routeOf(h), more
}

// End ends the trace; calls that begin later are not gathered. It may be called more
// than once. A trace that is not ended makes every call of the program a little
// slower until the garbage collector has found it.
func (t *RouteTrace) End() { t.t.End() }
