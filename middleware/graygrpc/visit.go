package graygrpc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// visit is one inbound call, from its arrival to its end.
type visit struct {
	*server
	in      context.Context // as the call came: what answers it is set there
	ctx     context.Context // of the handler
	method  string
	arrival *Arrival // nil where nobody knows
	private bool     // the answer leaves the system: it says nothing of the inside

	began    time.Time   // zero where nobody records how long calls take
	trace    *hops.Trace // nil where nobody has asked for the route
	profiled bool
	returned bool // the handler has
}

// begin sees to it that what happens to the call can be seen.
func (v *visit) begin(tag graytag.Tag, traced bool) {
	refused := false
	if a := v.arrival; a != nil {
		telemetry.Arrived(v.ctx, a.Wanted, a.Version, string(a.Outcome))
		if v.metrics.DurationEnabled(v.ctx) && !v.self.Known(v.in) {
			v.began = time.Now()
		}
		if a.Outcome == subset.Misrouted {
			refused = v.reject
			if refused || !v.self.Known(v.in) {
				v.misrouted.Log(v.ctx, a, v.self.Hidden(), refused, "method", v.method)
			}
		}
	}
	if refused {
		return
	}
	if traced {
		v.ctx, v.trace = hops.Start(v.ctx)
	}
	if v.profiles != nil && !exempts(v.exempt, v.method) {
		v.ctx, v.profiled = v.profiles.Begin(v.ctx, tag), true
	}
}

// refuse returns the error of a call that is refused, nil for all others.
func (v *visit) refuse(traced bool) error {
	if !v.reject || v.arrival == nil || v.arrival.Outcome != subset.Misrouted {
		return nil
	}
	if !v.private {
		// Where it is too late for a trailer there is none.
		_ = grpc.SetTrailer(v.in, metadata.Pairs(MisroutedKey, arrival.Marker(v.arrival.Service)))
		if traced {
			_ = grpc.SetTrailer(v.in, metadata.Pairs(hops.RouteKey, hops.Format([]hops.Hop{v.hop()}, 0)))
		}
	}
	if !v.began.IsZero() {
		v.measure(telemetry.GRPCStatus(uint32(codes.FailedPrecondition)))
	}
	return v.refusalOf(v.in, v.arrival, v.private)
}

// plain tells whether nothing is to be done at the end.
func (v *visit) plain() bool { return v.began.IsZero() && v.trace == nil && !v.profiled }

// end is deferred around the handler, which has answered err.
func (v *visit) end(err *error) {
	if v.profiled {
		v.profiles.End(v.in)
	}
	if v.trace != nil {
		if route := v.trace.Answer(v.hop()); route != "" {
			_ = grpc.SetTrailer(v.in, metadata.Pairs(hops.RouteKey, route))
		}
		v.trace.End()
	}
	if !v.began.IsZero() {
		v.measure(v.status(*err))
	}
}

func (v *visit) measure(status string) {
	version, wanted := v.self.Labels(v.arrival)
	v.metrics.Duration(v.ctx, version, wanted, v.arrival.Outcome == subset.Matched, status, time.Since(v.began))
}

// status is the label of how the call has ended.
func (v *visit) status(err error) string {
	switch cause := v.in.Err(); {
	case errors.Is(cause, context.DeadlineExceeded) || cause != nil && v.late():
		return telemetry.GRPCStatus(uint32(codes.DeadlineExceeded))
	case cause != nil:
		return telemetry.StatusCanceled
	case !v.returned: // it panics; who recovers says that
		return telemetry.GRPCStatus(uint32(codes.Internal))
	case err == nil:
		return telemetry.GRPCStatus(uint32(codes.OK))
	}
	st, ok := status.FromError(err)
	if !ok {
		st = status.FromContextError(err) // as gRPC does
	}
	if st.Code() == codes.Canceled {
		return telemetry.StatusAborted // while the client waits: it is the handler that has given up
	}
	return telemetry.GRPCStatus(uint32(st.Code()))
}

// late tells whether a call whose context was cancelled had run out of time. The
// client counts its deadline from an earlier moment than the server and cancels the
// call at its end, which comes here a little before the server's own deadline: the
// busier the server, the earlier. Who gives up that late has waited too long as well.
func (v *visit) late() bool {
	deadline, ok := v.in.Deadline()
	return ok && time.Until(deadline) <= min(deadline.Sub(v.began)/5, time.Second)+5*time.Millisecond
}

// hop is this instance on the route of the call, the zero Hop where it is not known.
func (v *visit) hop() hops.Hop { return arrival.Hop(v.arrival, cmp.Or(v.id, v.address)) }

// unary hands the call to handler.
func (v *visit) unary(req any, handler grpc.UnaryHandler) (resp any, err error) {
	if v.plain() {
		resp, err = handler(v.ctx, req)
		return resp, handled(err)
	}
	defer v.end(&err)
	resp, err = handler(v.ctx, req)
	v.returned = true
	return resp, handled(err)
}

// stream hands the call to handler.
func (v *visit) stream(srv any, ss grpc.ServerStream, handler grpc.StreamHandler) (err error) {
	if v.plain() {
		return handled(handler(srv, ss))
	}
	defer v.end(&err)
	err = handler(srv, ss)
	v.returned = true
	return handled(err)
}
