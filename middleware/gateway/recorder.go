package gateway

import (
	"context"

	"github.com/graylane/graylane/graytag/rollout"
)

// WithRecorder counts every request that had a route in r: what a rollout.Controller
// in the same process judges a release by. The recorder sees the services that the
// gateway calls, not those behind them. nil counts nothing.
func WithRecorder(r *rollout.Recorder) Option {
	if r == nil {
		return optionFunc(func(*config) {})
	}
	return WithObserver(func(_ context.Context, e Exchange) {
		r.Record(rollout.Request{
			Service: e.Service, Wanted: e.Wanted, Served: e.Served, Outcome: string(e.Outcome),
			Status: e.Status, GRPCStatus: e.GRPCStatus, Duration: e.Duration, Canceled: e.Canceled, Err: e.Err,
		})
	})
}
