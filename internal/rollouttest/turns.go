// Package rollouttest holds what tests of rollouts share: any [rule.Store] can be put
// to the same interleavings.
package rollouttest

import (
	"context"
	"iter"
	"math/rand/v2"
	"sync"

	"github.com/graylane/graylane/graytag/rule"
)

// Interleave runs actors at once, each with a view of store of its own, and lets one
// read or write at a time, in an order that rng draws. So the same rng makes the
// same interleaving, whatever the scheduler does. It returns when all have ended.
func Interleave(store rule.Store, rng *rand.Rand, actors ...func(rule.Store)) {
	type request struct {
		actor int
		grant chan<- chan<- struct{} // gets where to say that the turn is over
	}
	requests := make(chan request)
	ended := make(chan int)
	for i, actor := range actors {
		ask := func() (over func()) {
			grant := make(chan chan<- struct{})
			requests <- request{i, grant}
			done := <-grant
			return sync.OnceFunc(func() { done <- struct{}{} })
		}
		go func() {
			actor(view{store, ask})
			ended <- i
		}()
	}
	alive := len(actors)
	waiting := map[int]request{}
	for alive > 0 {
		for len(waiting) < alive { // until everyone wants something
			select {
			case r := <-requests:
				waiting[r.actor] = r
			case <-ended:
				alive--
			}
		}
		if alive == 0 {
			return
		}
		nth := rng.IntN(len(waiting))
		for i := range actors {
			r, ok := waiting[i]
			if !ok {
				continue
			}
			if nth--; nth < 0 {
				delete(waiting, i)
				over := make(chan struct{})
				r.grant <- over
				<-over
				break
			}
		}
	}
}

// view is a store whose reads and writes wait for their turn.
type view struct {
	rule.Store
	ask func() (over func())
}

// Watch yields the current document and ends: one read is one turn.
func (v view) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		over := v.ask()
		var d rule.Document
		var err error
		for d, err = range v.Store.Watch(ctx) {
			break
		}
		over()
		yield(d, err)
	}
}

// Put is one turn.
func (v view) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	defer v.ask()()
	return v.Store.Put(ctx, d, ifRevision)
}

// History is one turn.
func (v view) History(ctx context.Context) ([]rule.Document, error) {
	defer v.ask()()
	return v.Store.History(ctx)
}
