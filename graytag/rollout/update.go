package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Decide says what a rule document becomes: nil for what it is. It is called again
// whenever somebody else has written in between, with what is there then, and has
// to decide anew.
type Decide func(data []byte) (changed []byte, e *Event, err error)

// Update reads the rule document of a store, asks decide what it becomes, and
// writes that if the document is still the one that was read; else it begins again,
// a bounded number of times. So nothing that somebody else wrote is ever undone by a
// decision that did not know of it. It returns the event, whose Revision is that of
// the new document, or nil where nothing happened.
//
// The error is one of decide, or of the store; it wraps [rule.ErrConflict] where
// others wrote each time.
func Update(ctx context.Context, store rule.Store, decide Decide) (*Event, error) {
	return update(ctx, store, decide, writing{})
}

// Evaluate writes what [Step] makes of a report, as [Update] does, where the plan is
// still at the stage that the report is about. A document that engines have refused is
// taken for the last good one where gray has failed, see [Run].
func Evaluate(ctx context.Context, store rule.Store, plan string, r *Report, n Note) (*Event, error) {
	n = n.now()
	return update(ctx, store, func(data []byte) ([]byte, *Event, error) {
		return Step(data, plan, r, n)
	}, writing{lastGood: r != nil && r.Verdict == VerdictFail})
}

// Run carries out a command on a plan, see [Change]. n.At is now where it is zero.
// A rollback does not give up: it tries again, also where the store fails, until it
// is written or ctx ends; give it as long as you can. [Controller.Do] does so, and has it in
// force in this process at once.
// Where the document is faulty, and engines therefore decide by the last good one, it is
// that one which comes back, rolled back: the newest good one of the history, which
// knows no more than was written through a store. The faulty one is in the history.
func Run(ctx context.Context, store rule.Store, plan string, c Command, n Note) (*Event, error) {
	n = n.now()
	return update(ctx, store, func(data []byte) ([]byte, *Event, error) {
		return Change(data, plan, c, n)
	}, writing{stubborn: c == CommandRollback, lastGood: c == CommandRollback})
}

// Stop is the kill switch: everyone is stable, whatever the rules say, until
// [Unstop]. It does not give up before ctx ends, as a rollback, and works where the
// document is faulty or missing, too: the last good one comes back for a faulty one,
// as for a rollback. One that the store has no room for with the switch in it gives way
// to a document of the switch alone, and is in the history. The event is nil where it was on already.
func Stop(ctx context.Context, store rule.Store, n Note) (*Event, error) {
	n = n.now()
	return update(ctx, store, stopOrNot(true, n), writing{stubborn: true, lastGood: true, anyway: true})
}

// Unstop puts the rules in force again. The holds of all plans start anew.
func Unstop(ctx context.Context, store rule.Store, n Note) (*Event, error) {
	return update(ctx, store, stopOrNot(false, n.now()), writing{})
}

func stopOrNot(stop bool, n Note) Decide {
	n = n.cut()
	return func(data []byte) ([]byte, *Event, error) {
		changed, err := setStop(data, stop, n.At)
		if err != nil || bytes.Equal(changed, data) {
			return nil, nil, err
		}
		kind := KindUnstopped
		if stop {
			kind = KindStopped
		}
		return changed, &Event{Kind: kind, Time: n.At, Who: n.Who, Why: n.Why}, nil
	}
}

func (n Note) now() Note {
	if n.At.IsZero() {
		n.At = time.Now()
	}
	return n
}

const (
	attempts  = 20 // of a write that may give up
	firstWait = 5 * time.Millisecond
	maxWait   = 100 * time.Millisecond
	// attemptTime is how long a store may take for one attempt. What is under way in
	// one that hangs may never end, though the next one would be answered.
	attemptTime = 15 * time.Second
)

var errNoAnswer = errors.New("rollout: the store has not answered in time")

// writing says what an update does about trouble.
type writing struct {
	stubborn bool // ends with its context alone, or with what no attempt can change
	lastGood bool // takes a faulty document for the last good one
	anyway   bool // and for what it is where the history cannot be read
}

func update(ctx context.Context, store rule.Store, decide Decide, how writing) (*Event, error) {
	var tried []byte // what a Put whose answer is not known may have written
	var triedEvent *Event
	var met error // before ctx ended
	wait := firstWait
	try := func(ctx context.Context) (e *Event, done bool, err error) {
		ctx, cancel := context.WithTimeoutCause(ctx, attemptTime, errNoAnswer)
		defer cancel()
		d, err := current(ctx, store)
		data := d.Data
		if err == nil && how.lastGood && d.Exists() {
			if data, err = lastGood(ctx, store, data); err != nil && how.anyway {
				data, err = d.Data, nil
			}
		}
		if err != nil {
			return nil, false, err
		}
		if tried != nil && d.Author == triedEvent.Who && bytes.Equal(d.Data, tried) {
			triedEvent.Revision = d.Revision
			return triedEvent, true, nil
		}
		changed, e, refused := decide(data)
		if refused != nil || changed == nil {
			return e, true, refused
		}
		out := rule.Document{Data: changed}
		if e != nil {
			out.Author, out.Reason, out.Time = e.Who, e.reason(), e.Time
		}
		revision, err := store.Put(ctx, out, d.Revision)
		if err == nil {
			if e != nil {
				e.Revision = revision
			}
			return e, true, nil
		}
		if large := (*rule.TooLargeError)(nil); errors.As(err, &large) {
			if !how.anyway || e == nil {
				return nil, true, err
			}
			out.Data, changed = stopAlone, stopAlone
			if e.Revision, err = store.Put(ctx, out, d.Revision); err == nil {
				return e, true, nil
			}
			if errors.As(err, &large) {
				return nil, true, err
			}
		}
		// A conflict may be one with what was tried before.
		if !errors.Is(err, rule.ErrConflict) && e != nil {
			tried, triedEvent = changed, e
		}
		return nil, false, err
	}
	for i := 1; ; i++ {
		e, done, err := try(ctx)
		if done {
			return e, err
		}
		if ctx.Err() == nil || met == nil {
			met = err
		}
		conflict := errors.Is(err, rule.ErrConflict)
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("rollout: not written: %w (%w)", ctx.Err(), met)
		case !how.stubborn && !conflict:
			return nil, err
		case !how.stubborn && i == attempts:
			return nil, fmt.Errorf("rollout: not written in %d attempts: %w", attempts, err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
		case <-timer.C:
		}
		wait = min(2*wait, maxWait)
	}
}

// lastGood returns data where it is a rule set, else the newest document of the
// history that is one; data where none is.
func lastGood(ctx context.Context, store rule.Store, data []byte) ([]byte, error) {
	if _, err := rule.Parse(data); err == nil {
		return data, nil
	}
	docs, err := store.History(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range docs {
		if _, err := rule.Parse(d.Data); err == nil {
			return d.Data, nil
		}
	}
	return data, nil
}

// current returns the document that a store holds.
func current(ctx context.Context, store rule.Store) (rule.Document, error) {
	for d, err := range store.Watch(ctx) {
		return d, err
	}
	if ctx.Err() != nil {
		return rule.Document{}, fmt.Errorf("rollout: read the rules: %w", context.Cause(ctx))
	}
	return rule.Document{}, rule.ErrStoreEnded
}
