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
// outlives leadership: whoever leads then, a rollback is what has to be written.
type pending struct {
	since       time.Time
	suspensions []*rule.Suspension
	owned       bool // by a controller that runs, and writes it
	done        chan struct{}

	mu    sync.Mutex // guards what follows, for moments only
	last  error      // of the store
	event *Event     // valid when done is closed, and err
	err   error
}

func (p *pending) trouble() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}

// rollBack suspends rules and begins to write. refused tells which errors no other
// attempt can change. Where one is under way already that is returned, and mine is
// false.
func (c *Controller) rollBack(plan string, ids []string, decide Decide, refused func(error) bool) (p *pending, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pending[plan]; p != nil {
		return p, false
	}
	p = &pending{since: time.Now(), done: make(chan struct{})}
	for _, e := range c.config.engines {
		if plan == "" {
			p.suspensions = append(p.suspensions, e.SuspendAll())
		} else {
			p.suspensions = append(p.suspensions, e.Suspend(ids...))
		}
	}
	if c.life == nil {
		return p, true
	}
	p.owned = true
	c.pending[plan] = p
	life := c.life
	c.work.Go(func() {
		defer close(p.done)
		ctx, end := grace(life)
		defer end()
		c.write(ctx, p, howToWrite(plan), decide, refused)
		c.mu.Lock()
		delete(c.pending, plan)
		c.wake()
		c.mu.Unlock()
	})
	return p, true
}

// howToWrite is how [Run] and [Stop] write.
func howToWrite(plan string) writing {
	return writing{stubborn: true, lastGood: true, anyway: plan == ""}
}

// write writes p and tells of it. It returns when that is done, refused, or ctx ends.
func (c *Controller) write(ctx context.Context, p *pending, how writing, decide Decide, refused func(error) bool) {
	store := &observedStore{Store: c.store, trouble: func(err error) {
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		first := p.last == nil
		p.last = err
		p.mu.Unlock()
		if first && !errors.Is(err, rule.ErrConflict) {
			c.logger().Warn("gray rollout: a rollback cannot be written yet; it is in force in this process, and tried on", slog.Any("error", err))
		}
	}}
	for {
		e, err := update(ctx, store, decide, how)
		switch {
		case err == nil:
			revision := store.revision
			if e != nil {
				revision = e.Revision
				c.tell(e)
			}
			for _, s := range p.suspensions {
				s.Until(revision)
			}
			p.event = e
			return
		case ctx.Err() != nil || refused(err):
			if ctx.Err() == nil {
				p.end()
			}
			p.err = err
			return
		}
		store.trouble(err)
		if !sleep(ctx, time.Second) {
			p.err = err
			return
		}
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
		for d, err := range s.Store.Watch(ctx) {
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
		p, mine := c.rollBack(plan, ids, decide, func(error) bool { return true })
		if !p.owned {
			return c.runAlone(ctx, p, howToWrite(plan), decide)
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("rollout: in force in this process, not written yet, tried on: %w (%w)", ctx.Err(), p.trouble())
		}
		if mine || p.event != nil {
			return p.event, p.err
		}
		// What another one wanted came to nothing, which says nothing of this.
	}
}

// runAlone writes where nobody would go on when the operator has gone.
func (c *Controller) runAlone(ctx context.Context, p *pending, how writing, decide Decide) (*Event, error) {
	c.write(ctx, p, how, decide, func(error) bool { return true })
	if p.err != nil {
		p.end()
	}
	return p.event, p.err
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
