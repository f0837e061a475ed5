package balancer

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
)

// maxSeries bounds the series that are kept, of which there are few as long as
// there are few versions. Past it a decision is still counted, only more slowly.
const maxSeries = 1024

// tally counts decisions and shows them. It outlives pickers. nil does nothing.
//
// A pick that has to wait is no decision yet: it counts when a connection is
// chosen for it, or when it fails. Every attempt of a retried RPC is a decision
// of its own. An RPC that waits for ready in front of instances that are down
// fails in the eyes of the picker, which cannot tell, each time it is tried.
type tally struct {
	client    *lbattr.Client
	addresses *sync.Map // balancer.SubConn -> string

	active atomic.Bool // somebody records or looks, as far as is known

	known sync.Map // seriesKey -> *telemetry.Series
	size  atomic.Int64
}

// recheck is every how many decisions an idle tally asks whether somebody
// records by now: to ask costs as much as to choose an instance.
const recheck = 64

// idle tells whether decision n needs no notice.
func (t *tally) idle(n uint32) bool {
	return t == nil || !t.active.Load() && n%recheck != 0
}

func (t *tally) refresh(ctx context.Context) (recorded bool) {
	if t == nil {
		return false
	}
	recorded = t.client.Metrics.DecisionsEnabled(ctx)
	if active := recorded || t.client.Observe != nil; active != t.active.Load() {
		t.active.Store(active)
	}
	return recorded
}

// seriesKey holds wanted as its label, which is bounded: callers choose it.
type seriesKey struct {
	wanted, served  string
	outcome, reason string
}

func (t *tally) served(ctx context.Context, c *subset.Choice, s *server, wanted string, sc balancer.SubConn) {
	if t == nil {
		return
	}
	if t.refresh(ctx) {
		series := s.series.Load()
		if series == nil {
			series = t.series(wanted, s.version, c)
			if c.Reason != subset.Missing { // else many versions share the server
				s.series.Store(series)
			}
		}
		series.Add(ctx)
	}
	if t.client.Observe != nil {
		address, _ := t.addresses.Load(sc)
		d := t.decision(c, wanted, s.version)
		d.Address, _ = address.(string)
		t.client.Observe(ctx, d)
	}
}

func (t *tally) unavailable(ctx context.Context, c *subset.Choice, wanted string) {
	if t == nil {
		return
	}
	if t.client.Metrics.DecisionsEnabled(ctx) {
		t.series(wanted, "", c).Add(ctx)
	}
	if t.client.Observe != nil {
		t.client.Observe(ctx, t.decision(c, wanted, ""))
	}
}

func (t *tally) decision(c *subset.Choice, wanted, served string) subset.Decision {
	return subset.Decision{Service: t.client.Service, Wanted: wanted, Served: served, Outcome: c.Outcome, Reason: c.Reason}
}

func (t *tally) series(wanted, served string, c *subset.Choice) *telemetry.Series {
	m, reason := t.client.Metrics, string(c.Reason)
	k := seriesKey{m.Wanted(wanted, reason), served, string(c.Outcome), reason}
	if s, ok := t.known.Load(k); ok {
		return s.(*telemetry.Series)
	}
	s := m.Decision(t.client.Service, wanted, served, k.outcome, reason)
	if t.size.Load() < maxSeries {
		if _, loaded := t.known.LoadOrStore(k, s); !loaded {
			t.size.Add(1)
		}
	}
	return s
}
