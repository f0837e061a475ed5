package rollout

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// look is one evaluation of a plan.
type look struct {
	ctx     context.Context // of the term, or of the controller where it does not lead
	term    *term           // nil where it does not
	plan    *Plan
	data    []byte // of the document that the plan is of
	watched *watched
	since   time.Time // samples of the stage
}

// askTime is for how long a source may be asked.
func askTime(p *Plan) time.Duration {
	return min(max(p.Analysis.Every, time.Second), 30*time.Second)
}

// look asks the source and does what follows of it.
func (c *Controller) look(l *look) {
	src := &asked{source: c.source}
	limited, cancel := context.WithTimeout(l.ctx, askTime(l.plan))
	r := l.plan.look(limited, src, time.Now(), l.since)
	cancel()
	c.asked(l)
	if l.ctx.Err() != nil {
		return
	}
	c.saw(l, &r, src)
	n := Note{Who: c.config.who, At: time.Now()}
	decide := func(data []byte) ([]byte, *Event, error) { return step(data, l.plan.ID, &r, n) }
	changed, e, err := decide(l.data)
	switch {
	case err != nil:
		c.failed(l, err)
	case e == nil || changed == nil:
	case e.Kind == KindRolledBack:
		c.rollBack(wanted{plan: l.plan.ID, breach: e, refused: gone, decide: func(data []byte) ([]byte, *Event, error) {
			changed, back, err := decide(data)
			if err != nil && !gone(err) {
				return takeBack(data, l.plan.ID, &r, Note{Who: n.Who, Why: e.Why, At: n.At}, err)
			}
			return changed, back, err
		}}, l.plan.RuleIDs())
	case l.term != nil:
		c.move(l, e, decide)
	}
}

// asked notes that the source has returned.
func (c *Controller) asked(l *look) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l.watched.asking = time.Time{}
}

// errDeaf is a source that goes on though its context has ended.
var errDeaf = errors.New("rollout: the source does not return though its time is over")

// deaf tells of a source that has not returned for twice its time, and returns when to
// look at that again. c.mu is held.
func (c *Controller) deaf(p *Plan, w *watched, now time.Time) (wait time.Duration) {
	if w.asking.IsZero() {
		return time.Minute
	}
	if wait = w.asking.Add(2 * askTime(p)).Sub(now); wait > 0 {
		return wait
	}
	w.err, w.errAt = errDeaf, now
	if e := c.blind(p, errDeaf); c.term != nil && w.toTell(e) {
		c.tell(e)
	}
	return time.Minute
}

// takeBack rolls back a plan that has become faulty since its gray was found to be
// worse; err is why nothing else can be done.
func takeBack(data []byte, plan string, r *Report, n Note, err error) ([]byte, *Event, error) {
	set, bad := rule.Parse(data)
	if bad != nil {
		return nil, nil, err
	}
	if s := salvage(plan, set.Plans[plan]).State; !s.Phase.live() || s.Phase == Frozen || s.Stage != r.Stage || !s.Entered.Equal(r.Entered) {
		return nil, nil, err
	}
	changed, e, err := Change(data, plan, CommandRollback, n)
	if e != nil {
		e.Report = r
	}
	return changed, e, err
}

// gone tells of a plan that does not exist any more: there is nothing to roll back.
func gone(err error) bool {
	none := (*NoPlanError)(nil)
	return errors.As(err, &none)
}

// move writes whatever is not a rollback.
func (c *Controller) move(l *look, e *Event, decide Decide) {
	ctx, end := grace(l.ctx)
	defer end()
	written, err := Update(ctx, c.store, func(data []byte) ([]byte, *Event, error) {
		if l.ctx.Err() != nil {
			return nil, nil, nil // somebody else leads
		}
		return decide(data)
	})
	switch {
	case err == nil && written != nil:
		if written.moves() || c.toTell(l, written) {
			c.tell(written)
		}
	case err != nil && l.ctx.Err() == nil:
		c.failed(l, err)
		if !e.moves() && c.toTell(l, e) { // people are to know though the store does not
			c.tell(e)
		}
	}
}

// graceTime is how long a write may take after what it was begun in has ended: one that
// is broken off may have come about, and nobody would be told.
const graceTime = 2 * time.Second

// grace returns a context that ends that long after parent.
func grace(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(parent))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-parent.Done():
			sleep(ctx, graceTime)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(); <-ended }
}

// step is Step that writes suggestions into the state, so that whoever writes one is
// the only one to tell of it.
func step(data []byte, plan string, r *Report, n Note) ([]byte, *Event, error) {
	changed, e, err := Step(data, plan, r, n)
	if err != nil || e == nil || e.moves() {
		return changed, e, err
	}
	if slices.Contains(e.From.Suggested, e.Kind) {
		return nil, nil, nil
	}
	s := e.From.clone()
	s.Suggested = append(s.Suggested, e.Kind)
	d, err := readDocument(data) // and not setState: the rules may be as somebody wants them
	if err == nil {
		err = d.setState(plan, s)
	}
	if err == nil {
		changed, err = d.bytes()
	}
	if err != nil {
		return nil, nil, err
	}
	e.To = s
	return changed, e, nil
}

// toTell tells whether an event that changes nothing is new, and notes it.
func (c *Controller) toTell(l *look, e *Event) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.watched.toTell(e)
}

func (w *watched) toTell(e *Event) bool {
	if w.told[e.Key()] {
		return false
	}
	if w.told == nil {
		w.told = map[string]bool{}
	}
	w.told[e.Key()] = true
	return true
}

func (c *Controller) failed(l *look, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.watched.err == nil || l.watched.err.Error() != err.Error() {
		c.logger().Warn("gray rollout: a plan cannot be moved", slog.String("plan", l.plan.ID), slog.Any("error", err))
	}
	l.watched.err, l.watched.errAt = err, time.Now()
}

// saw keeps the report, and tells of a source that has failed for two windows: since
// then nobody has watched the plan.
func (c *Controller) saw(l *look, r *Report, src *asked) {
	c.mu.Lock()
	w := l.watched
	w.report = r
	if w.err != nil && src.err == nil {
		w.err = nil
	}
	if src.err == nil || c.source == nil {
		w.blind = time.Time{}
		c.mu.Unlock()
		return
	}
	now := time.Now()
	if w.blind.IsZero() {
		w.blind = now
	}
	w.err, w.errAt = src.err, now
	long := now.Sub(w.blind) >= 2*l.plan.Analysis.Window
	c.mu.Unlock()
	if !long {
		return
	}
	if e := c.blind(l.plan, src.err); l.term != nil && c.toTell(l, e) {
		c.tell(e)
	}
}

// blind is the event of a plan that is not watched any more.
func (c *Controller) blind(p *Plan, err error) *Event {
	return &Event{
		Kind: KindBlind, Plan: p.ID, From: p.State, To: p.State, Percent: p.Percent(p.State.Stage),
		Time: time.Now(), Who: c.config.who, Why: shorten(err.Error(), MaxWhyBytes),
	}
}

// asked is a source that remembers whether it could say anything of the present.
type asked struct {
	source Source

	mu      sync.Mutex // guards what follows
	targets map[Target]bool
	err     error
}

// errNoSource is for controllers that have none.
var errNoSource = errors.New("rollout: there is no source")

// Samples implements [Source].
func (a *asked) Samples(ctx context.Context, q Query) (samples []Sample, err error) {
	if a.source == nil {
		err = errNoSource
	} else {
		samples, err = calm{a.source}.Samples(ctx, q)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := Target{q.Service, q.Version}
	newest := !a.targets[t]
	if a.targets == nil {
		a.targets = map[Target]bool{}
	}
	a.targets[t] = true
	if err != nil && newest && a.err == nil {
		a.err = err
	}
	return samples, err
}
