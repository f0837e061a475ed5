package rollout

import (
	"context"
	"sync/atomic"
)

// LocalElector elects among the candidates of one process that share it: for
// rules in memory, and wherever one process alone runs a controller. It is safe
// for concurrent use; create one with [NewLocalElector].
type LocalElector struct {
	id     string
	turn   chan struct{} // holds one element while somebody leads
	leader atomic.Pointer[Leader]
}

var _ Elector = (*LocalElector)(nil)

// NewLocalElector returns an elector whose leaders are called id; see [NewLeader].
func NewLocalElector(id string) *LocalElector {
	return &LocalElector{id: id, turn: make(chan struct{}, 1)}
}

// Lead implements [Elector]. Leadership is never lost.
func (e *LocalElector) Lead(ctx context.Context, fn func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case e.turn <- struct{}{}:
	}
	l := NewLeader(e.id)
	e.leader.Store(&l)
	defer func() {
		e.leader.Store(nil)
		<-e.turn
	}()
	_, err := lead(ctx, fn, nil)
	return err
}

// Leader implements [Elector].
func (e *LocalElector) Leader(context.Context) (Leader, error) {
	if l := e.leader.Load(); l != nil {
		return *l, nil
	}
	return Leader{}, nil
}

// lead runs fn beside watch, which returns an error where leadership is lost and
// nil when its context ends. It tells whether leadership was lost; else the error
// is what Lead returns.
func lead(ctx context.Context, fn, watch func(context.Context) error) (lost bool, err error) {
	leading, stop := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	defer func() {
		stop(nil)
		<-ended
	}()
	go func() {
		defer close(ended)
		if watch == nil {
			return
		}
		if err := watch(leading); err != nil {
			stop(err)
		}
	}()
	err = fn(leading)
	switch {
	case leading.Err() == nil:
		return false, err
	case ctx.Err() != nil:
		return false, ctx.Err()
	}
	return true, nil
}
