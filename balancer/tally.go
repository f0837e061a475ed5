package balancer

import (
	"context"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/balancer"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/hops"
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
	instances *instances

	active atomic.Bool // somebody records or looks, as far as is known
	// spanless counts, up to its bound, the latest of every recheck decisions whose
	// RPC had no span.
	spanless atomic.Int32

	known sync.Map // seriesKey -> *telemetry.Series
	size  atomic.Int64
}

// recheck is every how many decisions an idle tally asks whether somebody
// records by now: to ask costs as much as to choose an instance.
const recheck = 64

// maxSpanless is how many of the decisions that were looked at, one of recheck, have
// to be without a span until only those are looked at: to look for the span of an
// RPC costs half of what it costs to choose an instance. It takes more than a
// thousand RPCs without any span, sampled or not.
const maxSpanless = 16

func newTally(client *lbattr.Client, known *instances) *tally {
	t := &tally{client: client, instances: known}
	t.active.Store(true)
	return t
}

// idle tells whether decision n needs no notice.
func (t *tally) idle(n uint32) bool {
	return t == nil || !t.active.Load() && n%recheck != 0
}

// look says which decisions are worth a notice from now on, after decision n.
func (t *tally) look(ctx context.Context, n uint32) (recorded bool) {
	recorded = t.client.Metrics.DecisionsEnabled(ctx)
	spans := t.spanless.Load()
	if trace.SpanContextFromContext(ctx).IsValid() {
		if spans != 0 {
			t.spanless.Store(0)
			spans = 0
		}
	} else if n%recheck == 0 && spans < maxSpanless {
		spans = t.spanless.Add(1)
	}
	if active := recorded || t.client.Observe != nil || spans < maxSpanless; active != t.active.Load() {
		t.active.Store(active)
	}
	return recorded
}

// seriesKey holds wanted as its label, which is bounded: callers choose it.
type seriesKey struct {
	wanted, served  string
	outcome, reason string
}

// served notes that version s serves r for an RPC, on the connection sc.
func (p *picker) served(ctx context.Context, c *subset.Choice, s *server, wanted string, sc balancer.SubConn, n uint32) {
	t := p.tally
	if t == nil {
		return
	}
	if t.look(ctx, n) {
		series := s.series.Load()
		if series == nil {
			series = p.series(wanted, s.version, c)
			if c.Reason != subset.Missing { // else many versions share the server
				s.series.Store(series)
			}
		}
		series.Add(ctx)
	}
	telemetry.Decided(ctx, t.client.Service, wanted, s.version, string(c.Outcome), string(c.Reason))
	if t.client.Observe != nil {
		d := t.decision(c, wanted, s.version)
		d.Address = p.known.address(sc)
		t.client.Observe(ctx, d)
	}
	if call := hops.CallFromContext(ctx); call != nil {
		h := t.hop(c, wanted)
		h.Got = telemetry.Text(s.version)
		h.Instance = p.known.address(sc)
		if id := p.known.id(h.Instance); id != "" {
			h.Instance = id
		}
		call.Decided(h)
	}
}

// failed notes that nothing serves an RPC.
func (p *picker) failed(ctx context.Context, c *subset.Choice, wanted string) {
	t := p.tally
	if t == nil {
		return
	}
	if t.client.Metrics.DecisionsEnabled(ctx) {
		p.series(wanted, "", c).Add(ctx)
	}
	telemetry.Decided(ctx, t.client.Service, wanted, "", string(c.Outcome), string(c.Reason))
	if t.client.Observe != nil {
		t.client.Observe(ctx, t.decision(c, wanted, ""))
	}
	if call := hops.CallFromContext(ctx); call != nil {
		call.Decided(t.hop(c, wanted))
	}
}

func (t *tally) decision(c *subset.Choice, wanted, served string) subset.Decision {
	return subset.Decision{Service: t.client.Service, Wanted: wanted, Served: served, Outcome: c.Outcome, Reason: c.Reason}
}

func (t *tally) hop(c *subset.Choice, wanted string) hops.Hop {
	return hops.Hop{Service: t.client.Service, Wanted: telemetry.Text(wanted), Outcome: string(c.Outcome), Reason: string(c.Reason)}
}

// series returns the series of a decision.
func (p *picker) series(wanted, served string, c *subset.Choice) *telemetry.Series {
	if telemetry.Hidden(p.selector.Key()) {
		wanted, served = telemetry.Hide(wanted), telemetry.Hide(served)
	}
	return p.tally.series(wanted, served, c)
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
