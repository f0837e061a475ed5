package httplb

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/registry"
)

// Decision is what became of one request to a service.
type Decision struct {
	Service string
	Wanted  string // the version that the tag asks for, "" for stable
	Served  string // the version of Instance, "" for stable
	Outcome subset.Outcome
	Reason  subset.Reason // why the wanted version did not serve, else ""
	// Instance is the one that the request went to; the zero Instance where the
	// outcome is [subset.Unavailable]. Its Metadata must not be changed.
	Instance registry.Instance
	// Attempts counts the instances that were tried, those that could not be
	// dialled included.
	Attempts int
	// Refused tells that an instance refused the request, see
	// [github.com/graylane/graylane/middleware/grayhttp.WithRejectMisrouted], and that
	// another one was asked for: Outcome and Reason are as if the one that refused
	// were down. Where there was none, Instance is the one that refused.
	Refused bool
}

// maxSeries bounds the cached series of one service, of which there are few as
// long as there are few versions. Past it a decision is still counted, only more
// slowly.
const maxSeries = 1024

// seriesKey holds wanted as its label, which is bounded: callers choose it.
type seriesKey struct {
	wanted, served string
	outcome        subset.Outcome
	reason         subset.Reason
}

// counters caches the series of one service.
type counters struct {
	metrics *telemetry.Metrics
	service string
	hidden  bool     // versions are names of people
	known   sync.Map // seriesKey -> *telemetry.Series
	size    atomic.Int32
}

func (c *counters) count(ctx context.Context, d Decision) {
	if !c.metrics.DecisionsEnabled(ctx) {
		return
	}
	if c.hidden {
		d.Wanted, d.Served = telemetry.Hide(d.Wanted), telemetry.Hide(d.Served)
	}
	key := seriesKey{c.metrics.Wanted(d.Wanted, string(d.Reason)), d.Served, d.Outcome, d.Reason}
	if s, ok := c.known.Load(key); ok {
		s.(*telemetry.Series).Add(ctx)
		return
	}
	s := c.metrics.Decision(c.service, d.Wanted, d.Served, string(d.Outcome), string(d.Reason))
	if c.size.Load() < maxSeries {
		if _, loaded := c.known.LoadOrStore(key, s); !loaded {
			c.size.Add(1)
		}
	}
	s.Add(ctx)
}
