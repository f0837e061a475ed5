package graygrpc

import (
	"context"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/arrival"
)

// Arrival is what it means that a request has arrived at this instance.
type Arrival = subset.Arrival

// ArrivalFromContext returns what it means that the request of ctx has arrived
// here. ok is false where the server was not told who it is, see [WithSelf], and
// for methods that are exempt.
func ArrivalFromContext(ctx context.Context) (a Arrival, ok bool) { return arrival.FromContext(ctx) }
