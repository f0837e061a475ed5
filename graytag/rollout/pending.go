package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// pending is a rollback, or the kill switch, that is in force in the engines of this
// process and may not be written yet. It is written by a goroutine of its own, which
// outlives leadership: whoever leads then, a rollback is what has to be written. The
// end of Run leaves what could not be written to the next one.
type pending struct {
	wanted
	since       time.Time
	suspensions []*rule.Suspension
	owned       bool // by a controller that runs, and writes it
	done        chan struct{}

	mu   sync.Mutex // guards what follows, for moments only
	last error      // of the store
	told bool       // that it is not written

	// What follows is valid when done is closed.
	event    *Event
	revision uint64
	err      error
	left     bool // neither written nor refused
}

// wanted is what has to be written.
type wanted struct {
	plan    string // "" is the kill switch
	decide  Decide
	refused func(error) bool // tells which errors no other attempt can change
	breach  *Event           // nil where an operator wants it, who is told
}

// unwrittenTime is how long a breach waits for the store before people are told.
const unwrittenTime = 10 * time.Second

func (p *pending) trouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// rollBack suspends rules and begins to write. Where one is under way already that is
// returned, and mine is false.
func (c *Controller) rollBack(want wanted, ids []string) (p *pending, mine bool) {
	if p := c.underWay(want.plan); p != nil {
		return p, false
	}
	p = &pending{wanted: want, since: time.Now(), done: make(chan struct{})}
	// Not under mu: an engine tells of it, and whoever is told may ask for the status.
	for _, e := range c.config.engines {
		if want.plan == "" {
			p.suspensions = append(p.suspensions, e.SuspendAll())
		} else {
			p.suspensions = append(p.suspensions, e.Suspend(ids...))
		}
	}
	c.mu.Lock()
	other := c.pending[want.plan]
	if other == nil && c.life != nil {
		c.begin(p)
	}
	c.mu.Unlock()
	if other != nil {
		p.end()
		return other, false
	}
	return p, true
}

func (c *Controller) underWay(plan string) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending[plan]
}

// begin writes p beside Run. c.mu is held.
func (c *Controller) begin(p *pending) {
	p.owned = true
	c.pending[p.plan] = p
	life := c.life
	c.work.Go(func() {
		defer close(p.done)
		ctx, end := grace(life)
		defer end()
		c.write(ctx, p)
		c.mu.Lock()
		delete(c.pending, p.plan)
		if p.left {
			c.left[p.plan] = p
		}
		c.wake()
		c.mu.Unlock()
	})
}

// resume goes on with what the Run before could not write. c.mu is held.
func (c *Controller) resume() {
	for plan, p := range c.left {
		delete(c.left, plan)
		c.begin(&pending{wanted: p.wanted, since: p.since, suspensions: p.suspensions, told: p.told, done: make(chan struct{})})
	}
}

// howToWrite is how [Run] and [Stop] write.
func howToWrite(plan string) writing {
	return writing{stubborn: true, lastGood: true, anyway: plan == ""}
}

// write writes p and tells of it. It returns when that is done, refused, or ctx ends.
func (c *Controller) write(ctx context.Context, p *pending) {
	store := &observedStore{Store: c.store, trouble: func(err error) {
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		first := p.last == nil
		p.last = err
		tell := p.breach != nil && !p.told && time.Since(p.since) >= unwrittenTime
		p.told = p.told || tell
		p.mu.Unlock()
		if tell {
			e := *p.breach
			e.Kind, e.To, e.Time = KindUnwritten, e.From, time.Now()
			e.Why = shorten(fmt.Sprintf("%v; %s", err, e.Why), MaxWhyBytes)
			c.tell(&e)
		}
		if first && !errors.Is(err, rule.ErrConflict) {
			c.logger().Warn("gray rollout: a rollback cannot be written yet; it is in force in this process, and tried on", slog.Any("error", err))
		}
	}}
	for {
		e, err := update(ctx, store, p.decide, howToWrite(p.plan))
		switch {
		case err == nil:
			p.event, p.revision = e, store.revision
			if e != nil {
				p.revision = e.Revision
				c.tell(e)
			}
			p.until(p.revision)
			return
		case ctx.Err() == nil && p.refused(err):
			p.end()
			p.err = err
			return
		}
		store.trouble(err)
		if !sleep(ctx, time.Second) {
			p.err, p.left = err, true
			return
		}
	}
}

func (p *pending) until(revision uint64) {
	for _, s := range p.suspensions {
		s.Until(revision)
	}
}

func (p *pending) end() {
	for _, s := range p.suspensions {
		s.End()
	}
}

// observedStore notes what a stubborn update meets.
type observedStore struct {
	rule.Store
	trouble  func(error)
	revision uint64 // that was read last
}

func (s *observedStore) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		silent := true
		defer func() {
			if silent && ctx.Err() != nil {
				s.trouble(context.Cause(ctx))
			}
		}()
		for d, err := range s.Store.Watch(ctx) {
			silent = false
			if err != nil {
				s.trouble(err)
			} else {
				s.revision = d.Revision
			}
			if !yield(d, err) {
				return
			}
		}
	}
}

func (s *observedStore) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	revision, err := s.Store.Put(ctx, d, ifRevision)
	if err != nil {
		s.trouble(err)
	}
	return revision, err
}

// run is a rollback or the kill switch by an operator, who waits for it while ctx
// lasts.
func (c *Controller) run(ctx context.Context, plan string, ids []string, decide Decide) (*Event, error) {
	for {
		p, mine := c.rollBack(wanted{plan: plan, decide: decide, refused: func(error) bool { return true }}, ids)
		if !p.owned {
			return c.runAlone(ctx, p)
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			trouble := p.trouble()
			if trouble == nil {
				trouble = errNoAnswer
			}
			return nil, fmt.Errorf("rollout: in force in this process, not written yet, tried on: %w (%w)", ctx.Err(), trouble)
		}
		if mine || p.event != nil {
			return p.event, p.err
		}
		// What another one wanted came to nothing, which says nothing of this.
	}
}

// runAlone writes where nobody would go on when the operator has gone.
func (c *Controller) runAlone(ctx context.Context, p *pending) (*Event, error) {
	c.write(ctx, p)
	if p.err != nil {
		p.end()
		return nil, p.err
	}
	c.mu.Lock()
	left := c.left[p.plan]
	delete(c.left, p.plan)
	c.mu.Unlock()
	if left != nil {
		left.until(p.revision)
	}
	return p.event, nil
}

// ruleIDs returns the rules of a plan as the last document has them, also where the
// plan is faulty.
func (c *Controller) ruleIDs(plan string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.set == nil {
		return nil
	}
	v, err := value(bytes.Clone(c.set.Plans[plan]))
	if err != nil {
		return nil
	}
	m, _ := v.(map[string]any)
	return namedRules(m)
}
