package gateway

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
)

// Exchange is what became of one request that had a route.
type Exchange struct {
	Service string
	// Wanted is the version that the tag asks for, Served that of the instance which
	// the request went to; both are "" for stable. They come from tags and from the
	// registry: any text of up to 256 bytes.
	Wanted, Served string
	// Outcome and Reason are those of the routing decision. Outcome is "" where the
	// request ended before there was one; [subset.Unavailable] says that no instance
	// took it.
	Outcome subset.Outcome
	Reason  subset.Reason
	// Status is the status of HTTP that the client was sent, 0 for none. 101 stands for
	// a tunnel.
	Status int
	// GRPCStatus is the status code of gRPC, of a call of gRPC that has one, else -1.
	GRPCStatus int
	// Duration is the time until the end of the answer, of a tunnel until its beginning.
	Duration time.Duration
	// Canceled tells that the client hung up. That is no fault of the version, whatever
	// Status and Err say.
	Canceled bool
	// Err is why the service gave no answer, or not all of it. It may hold addresses
	// of instances.
	Err error
}

// errBroken is the Err of an answer that has begun. Details are in the log: the proxy
// has no other place for them.
var errBroken = errors.New("gateway: the answer broke off")

// WithObserver calls f once for every request that had a route, when its answer has
// ended or its tunnel has begun. ctx is that of the request. f must be safe for
// concurrent use and quick: the client waits for it. Requests without a route are
// not reported.
func WithObserver(f func(ctx context.Context, e Exchange)) Option {
	return optionFunc(func(c *config) {
		if f != nil {
			c.observers = append(c.observers, f)
		}
	})
}

// observed is what is known of an exchange that somebody observes.
type observed struct {
	began    time.Time
	ctx      context.Context // of the request of the client
	decision httplb.Decision
	decided  bool
	grpc     bool
	status   int
	err      error
	told     bool
}

type observedKey struct{}

// observe is the observer of the balancer: it finds the exchange in the context.
func observe(ctx context.Context, d httplb.Decision) {
	if o, ok := ctx.Value(observedKey{}).(*observed); ok {
		o.decision, o.decided = d, true
	}
}

// tell tells the observers how x ended.
func (x *exchange) tell() {
	o := x.observed
	if o.told {
		return
	}
	o.told = true
	e := Exchange{
		Service: x.route.Service, Status: o.status, GRPCStatus: -1, Duration: time.Since(o.began),
		Canceled: errors.Is(o.ctx.Err(), context.Canceled), Err: o.err,
	}
	if o.decided {
		e.Wanted, e.Served, e.Outcome, e.Reason = o.decision.Wanted, o.decision.Served, o.decision.Outcome, o.decision.Reason
	}
	if !x.ended && e.Err == nil && o.status != http.StatusSwitchingProtocols {
		e.Err = errBroken
	}
	if x.ended && e.Status == 0 {
		e.Status = http.StatusOK // which net/http sends on behalf of a handler that says nothing
	}
	if o.grpc {
		e.GRPCStatus = x.grpcStatus()
	}
	for _, f := range x.route.observers {
		f(o.ctx, e)
	}
}

// grpcStatus returns the status of gRPC that the client was sent, -1 for none.
func (x *exchange) grpcStatus() int {
	code := x.Header().Get("Grpc-Status") // without a body, in the header
	if a := x.answer; code == "" && a != nil {
		code = a.Trailer.Get("Grpc-Status")
	}
	n, err := strconv.ParseUint(code, 10, 16)
	if err != nil {
		return -1
	}
	return int(n)
}
