package arrival

import (
	"context"
	"runtime/pprof"
	"sync"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/telemetry"
)

// Profiles labels what handlers burn by the version that is wanted of their service.
// It is safe for concurrent use.
type Profiles struct {
	selector *subset.Selector
	hidden   bool
	bound    *telemetry.Labels
	known    sync.Map // label -> pprof.LabelSet
}

// NewProfiles labels for the service of self. Where that is nil, what counts is what
// policy reads for all services.
func NewProfiles(self *Self, policy subset.Policy) (*Profiles, error) {
	p := &Profiles{bound: telemetry.NewLabels(telemetry.DistinctValues)}
	if self != nil {
		p.selector = self.Selector()
		p.bound.Real(telemetry.Text(self.Version()))
	} else {
		var err error
		if p.selector, err = policy.Compile(""); err != nil {
			return nil, err
		}
	}
	p.hidden = telemetry.Hidden(p.selector.Key())
	return p, nil
}

// Begin labels the goroutine for a request with tag, and what it starts, and returns
// the context to go on with. Afterwards [Profiles.End] gives it back the labels of
// the context that Begin was given.
func (p *Profiles) Begin(ctx context.Context, tag graytag.Tag) context.Context {
	ctx = pprof.WithLabels(ctx, p.labels(tag))
	pprof.SetGoroutineLabels(ctx)
	return ctx
}

// End ends what Begin began with ctx.
func (p *Profiles) End(ctx context.Context) { pprof.SetGoroutineLabels(ctx) }

func (p *Profiles) labels(tag graytag.Tag) pprof.LabelSet {
	version := telemetry.Text(p.selector.Wanted(tag))
	if p.hidden {
		version = telemetry.Hide(version)
	}
	version = p.bound.Bound(version)
	if set, ok := p.known.Load(version); ok {
		return set.(pprof.LabelSet)
	}
	set, _ := p.known.LoadOrStore(version, pprof.Labels(telemetry.SpanVersion, version))
	return set.(pprof.LabelSet)
}
