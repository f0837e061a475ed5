package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// ControllerOption changes how a [Controller] works.
type ControllerOption interface{ applyController(*controllerConfig) }

type controllerOption func(*controllerConfig)

func (f controllerOption) applyController(c *controllerConfig) { f(c) }

type controllerConfig struct {
	elector  Elector
	engines  []*rule.Engine
	alerters []Alerter
	log      *slog.Logger
	who      string
}

// WithElector lets one of several controllers of the same store lead. The default is a
// [LocalElector] of the controller's own: it always leads, which is right where there
// is no other.
func WithElector(e Elector) ControllerOption {
	return controllerOption(func(c *controllerConfig) {
		if e != nil {
			c.elector = e
		}
	})
}

// WithEngine names an engine of this process that follows the same store: a rollback
// and the kill switch are in force there at once, before they are written, and for as
// long as the store cannot be written. It may be given several times.
func WithEngine(e *rule.Engine) ControllerOption {
	return controllerOption(func(c *controllerConfig) {
		if e != nil {
			c.engines = append(c.engines, e)
		}
	})
}

// WithAlerter names who is told of events, beside the log. It may be given several
// times; a slow alerter keeps no other waiting.
func WithAlerter(a Alerter) ControllerOption {
	return controllerOption(func(c *controllerConfig) {
		if a != nil {
			c.alerters = append(c.alerters, a)
		}
	})
}

// WithControllerName sets who is written to have moved a plan; the default, and what
// "" means, is "controller HOST:PID".
func WithControllerName(who string) ControllerOption {
	return controllerOption(func(c *controllerConfig) { c.who = who })
}

// WithControllerLogger makes the controller log to l; nil, and the default, is
// slog.Default().
func WithControllerLogger(l *slog.Logger) ControllerOption {
	return controllerOption(func(c *controllerConfig) { c.log = l })
}

// Controller moves the plans of a store as their samples say, and carries out what
// operators want. It is safe for concurrent use. Create one with [NewController], and
// let it work with [Controller.Run].
type Controller struct {
	store    rule.Store
	source   Source // nil where nobody knows how requests go
	config   controllerConfig
	outboxes []*outbox
	changed  chan struct{} // holds one element where there is something new to look at

	mu       sync.Mutex // guards what follows, for moments only
	life     context.Context
	work     *sync.WaitGroup // what Run waits for
	term     *term           // of this controller as leader, or nil
	document rule.Document   // the last one that could be read as a rule set
	set      *rule.Set       // of document
	plans    Plans           // of document
	faults   error           // of plans
	refused  error           // why a newer document is no rule set
	storeErr error
	watched  map[string]*watched
	pending  map[string]*pending // by plan; "" is the kill switch
	left     map[string]*pending // of the Run before
}

// term is the time of one leader.
type term struct {
	ctx   context.Context
	looks sync.WaitGroup // begun in it
}

// watched is what the controller knows of a plan beside the document.
type watched struct {
	since  time.Time // of the state that the rest is about
	first  time.Time // when it was seen here
	next   time.Time // to look
	busy   bool
	asking time.Time // since when, zero while the source is not asked
	report *Report
	err    error
	errAt  time.Time
	told   map[string]bool // keys of events that change nothing
	blind  time.Time       // since when the source fails
}

// ErrRunning says that a controller runs already.
var ErrRunning = errors.New("rollout: the controller runs already")

// NewController returns a controller for the plans in store. What source says moves
// them; with nil plans move by hand only.
func NewController(store rule.Store, source Source, opts ...ControllerOption) (*Controller, error) {
	if store == nil {
		return nil, errors.New("rollout: controller: no store")
	}
	c := &Controller{
		store: store, source: source, changed: make(chan struct{}, 1),
		watched: map[string]*watched{}, pending: map[string]*pending{}, left: map[string]*pending{},
	}
	for _, o := range opts {
		if o != nil {
			o.applyController(&c.config)
		}
	}
	if c.config.elector == nil {
		c.config.elector = NewLocalElector("")
	}
	if c.config.who == "" {
		c.config.who = "controller " + NewLeader("").ID
	}
	for _, a := range append([]Alerter{NewLogAlerter(c.config.log)}, c.config.alerters...) {
		c.outboxes = append(c.outboxes, newOutbox(a, c.logger))
	}
	return c, nil
}

func (c *Controller) logger() *slog.Logger {
	if c.config.log != nil {
		return c.config.log
	}
	return slog.Default()
}

// flushTime is how long the end of a controller waits for its alerts.
const flushTime = 5 * time.Second

// Run follows the store, stands for leader, and moves the plans while it leads. It
// returns when ctx ends, with the error of ctx, or where the elector says that this
// candidate will never lead. It waits for everything that it has started, and up to
// 5 seconds for alerts; an alerter that goes on though its context has ended is left to
// itself a second later. A second call meanwhile returns [ErrRunning].
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var work sync.WaitGroup
	c.mu.Lock()
	if c.life != nil {
		c.mu.Unlock()
		return ErrRunning
	}
	c.life, c.work = ctx, &work
	c.resume()
	c.mu.Unlock()
	work.Go(func() { c.follow(ctx) })
	work.Go(func() { c.watch(ctx) })

	err := c.config.elector.Lead(ctx, c.lead)

	c.mu.Lock()
	c.life, c.work = nil, nil
	c.mu.Unlock()
	cancel()
	work.Wait()
	flush, end := context.WithTimeout(context.Background(), flushTime)
	defer end()
	_ = c.Flush(flush)
	for _, o := range c.outboxes {
		o.abort()
	}
	return err
}

// Flush waits until all alerts were sent or given up, or ctx ends.
func (c *Controller) Flush(ctx context.Context) error {
	for _, o := range c.outboxes {
		if err := o.flush(ctx); err != nil {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
	return nil
}

// tell hands an event to the alerters.
func (c *Controller) tell(e *Event) {
	for _, o := range c.outboxes {
		o.push(*e)
	}
}

// follow keeps the last good document.
func (c *Controller) follow(ctx context.Context) {
	for ctx.Err() == nil {
		for d, err := range c.store.Watch(ctx) {
			c.take(d, err)
		}
		if ctx.Err() == nil {
			c.take(rule.Document{}, rule.ErrStoreEnded)
			sleep(ctx, time.Second)
		}
	}
}

func (c *Controller) take(d rule.Document, err error) {
	var set *rule.Set
	var plans Plans
	var faults, refused error
	if err == nil {
		if set, refused = parseOrNone(d); refused == nil {
			plans, faults = Parse(set)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.storeErr == nil && err != nil {
		c.logger().Warn("gray rollout: the store cannot be read", slog.Any("error", err))
	}
	c.storeErr = err
	if err != nil {
		c.wake()
		return
	}
	c.refused = refused
	if refused != nil {
		return // engines decide by the last good one
	}
	if faults != nil && (c.faults == nil || c.faults.Error() != faults.Error()) {
		c.logger().Warn("gray rollout: faulty plans", slog.Any("error", faults))
	}
	for id, w := range c.watched {
		switch p := plans[id]; {
		case p == nil:
			if before := c.plans[id]; before != nil && set.Plans[id] != nil && c.term != nil {
				c.tell(c.blind(before, faults))
			}
			delete(c.watched, id)
		case !w.since.Equal(p.State.Since):
			*w = watched{since: p.State.Since, first: time.Now(), next: w.next, busy: w.busy, asking: w.asking, report: w.report}
		}
	}
	c.document, c.set, c.plans, c.faults = d, set, plans, faults
	c.wake()
}

func parseOrNone(d rule.Document) (*rule.Set, error) {
	if !d.Exists() {
		return &rule.Set{}, nil
	}
	return rule.Parse(d.Data)
}

// lead makes this controller the one that moves the plans, until ctx ends.
func (c *Controller) lead(ctx context.Context) error {
	t := &term{ctx: ctx}
	c.logger().Info("gray rollout: leads", slog.String("who", c.config.who))
	c.setTerm(t)
	<-ctx.Done()
	c.setTerm(nil)
	t.looks.Wait()
	c.logger().Info("gray rollout: leads no more", slog.String("who", c.config.who))
	return ctx.Err()
}

func (c *Controller) setTerm(t *term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.term = t
	for _, w := range c.watched {
		w.next = time.Time{}
	}
	c.wake()
}

func (c *Controller) wake() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// watch looks at each plan when its time has come, until ctx ends.
func (c *Controller) watch(ctx context.Context) {
	var looks sync.WaitGroup
	defer looks.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
		case <-timer.C:
		}
		due, next := c.due(ctx, time.Now())
		for _, l := range due {
			looks.Go(func() {
				c.look(l)
				c.looked(l)
			})
		}
		timer.Reset(next)
	}
}

// due returns the plans whose time has come, and how long it is to the next. The
// leader looks. While the store cannot be read everybody does, for nobody may lead
// then, and for nothing but a rollback.
func (c *Controller) due(ctx context.Context, now time.Time) (due []*look, next time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	next = time.Minute
	if c.term == nil && c.storeErr == nil {
		return nil, next
	}
	for id, p := range c.plans {
		if !p.State.Phase.live() || c.pending[id] != nil {
			continue
		}
		w := c.watched[id]
		if w == nil {
			w = &watched{since: p.State.Since, first: now}
			c.watched[id] = w
		}
		if w.busy {
			next = min(next, c.deaf(p, w, now))
			continue
		}
		if wait := w.next.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		w.busy, w.asking, w.next = true, now, now.Add(p.Analysis.Every)
		next = min(next, p.Analysis.Every)
		l := &look{ctx: ctx, plan: p, data: c.document.Data, watched: w, since: p.State.Entered}
		if l.since.After(w.first) {
			l.since = w.first // the clock of whoever wrote it is ahead
		}
		if l.term = c.term; l.term != nil {
			l.ctx = l.term.ctx
			l.term.looks.Add(1)
		}
		due = append(due, l)
	}
	return due, next
}

func (c *Controller) looked(l *look) {
	if l.term != nil {
		l.term.looks.Done()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	l.watched.busy, l.watched.asking = false, time.Time{}
	c.wake() // it may be due again
}

// sleep waits, or returns false when ctx ends.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
