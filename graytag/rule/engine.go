package rule

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Engine decides by the rule set in force. It is safe for concurrent use:
// deciding takes no lock, and every decision is made wholly by one set.
type Engine struct {
	config    config
	current   atomic.Pointer[state]
	following atomic.Bool
	noKey     atomic.Uint64
	truncated atomic.Uint64

	// mu guards what follows, and makes one change of current at a time. Deciding
	// never takes it.
	mu          sync.Mutex
	health      health
	base        base
	suspensions []*Suspension
}

// state is the set in force, and where it came from.
type state struct {
	program  *program
	document Document // without Data
	loaded   time.Time
}

// health is what went wrong last.
type health struct {
	refused  error  // why the newest document is not in force
	revision uint64 // of that document
	store    error  // why the store cannot be read
}

// NewEngine returns an engine that decides by set, which it checks and does not keep;
// nil is no rules: everything is stable. On an error, which holds a [*Error] for
// every fault, the Engine is nil.
func NewEngine(set *Set, opts ...Option) (*Engine, error) {
	e := &Engine{config: newConfig(opts)}
	if err := e.Load(set); err != nil {
		return nil, err
	}
	return e, nil
}

// Load puts set, which it checks and does not keep, in force at once; nil is no rules.
// On an error the set from before stays. Where the engine follows a store, the
// next document from there replaces set. Suspensions stay.
func (e *Engine) Load(set *Set) error {
	if set == nil {
		set = &Set{}
	}
	var f faults
	check(set, &f)
	if err := f.err(); err != nil {
		return err
	}
	p := compile(set)
	e.mu.Lock()
	e.put(base{program: p, loaded: time.Now()})
	e.mu.Unlock()
	e.notify()
	return nil
}

func (e *Engine) notify() {
	if e.config.notify != nil {
		e.config.notify(e.Status())
	}
}

// Decide returns what r gets; nil is an empty request. It does not fail, does
// not block and calls nothing but the functions of r.
func (e *Engine) Decide(r *Request) (d Decision) {
	if r == nil {
		r = &Request{}
	}
	s := e.current.Load()
	s.program.decide(r, &d)
	d.Revision = s.document.Revision
	e.count(&d)
	return d
}

func (e *Engine) count(d *Decision) {
	if d.NoKey > 0 {
		e.noKey.Add(uint64(d.NoKey))
	}
	if d.Truncated > 0 {
		e.truncated.Add(uint64(d.Truncated))
	}
}

// Explain returns the decision for r and what every rule makes of it. It looks
// at all rules, one by one, and is for people, not for every request; what it
// returns holds values of the request. It counts nothing.
func (e *Engine) Explain(r *Request) Explanation {
	var at Request
	if r != nil {
		at = *r
	}
	if at.Time.IsZero() {
		at.Time = time.Now()
	}
	s := e.current.Load()
	var d Decision
	s.program.decide(&at, &d)
	d.Revision = s.document.Revision
	return Explanation{Decision: d, Rules: s.program.explain(&at)}
}

// Key returns the key of the tag that routing reads, as the set in force says.
func (e *Engine) Key() string { return e.current.Load().program.key }

// Status is the state of an engine.
type Status struct {
	// Revision is that of the document in force, 0 where the set came from code
	// or there is no document. Author, Reason and Written are of that document.
	Revision uint64
	Author   string
	Reason   string
	Written  time.Time
	// Loaded is when the set in force came into force, Age how long ago that was.
	Loaded time.Time
	Age    time.Duration
	// Rules is the number of rules that are switched on and not at 0 %; Stopped
	// tells that the set sends everyone to stable all the same.
	Rules   int
	Stopped bool
	// Suspended holds the ids that [Engine.Suspend] keeps from matching, and SuspendedAll
	// tells that [Engine.SuspendAll] does so with all rules.
	Suspended    []string
	SuspendedAll bool
	// Err says what keeps the newest document out of force, nil where it is in
	// force or gone: a document that was refused, a store that cannot be read, or
	// both. The last good set decides meanwhile.
	Err error
	// ErrRevision is the revision of the document that was refused, 0 where none
	// was.
	ErrRevision uint64
	// Following tells that the engine follows a store.
	Following bool
	// NoKey and Truncated add up those of all decisions.
	NoKey     uint64
	Truncated uint64
}

// Status returns the state of the engine.
func (e *Engine) Status() Status {
	e.mu.Lock()
	s, h := e.current.Load(), e.health
	suspended, all := e.suspended()
	e.mu.Unlock()
	return Status{
		Suspended: suspended, SuspendedAll: all,
		Revision:    s.document.Revision,
		Author:      s.document.Author,
		Reason:      s.document.Reason,
		Written:     s.document.Time,
		Loaded:      s.loaded,
		Age:         time.Since(s.loaded),
		Rules:       s.program.enabled,
		Stopped:     s.program.stop,
		Err:         h.err(),
		ErrRevision: h.revision,
		Following:   e.following.Load(),
		NoKey:       e.noKey.Load(),
		Truncated:   e.truncated.Load(),
	}
}

func (h *health) err() error {
	switch {
	case h.store == nil:
		return h.refused
	case h.refused == nil:
		return h.store
	}
	return errors.Join(h.refused, h.store)
}
