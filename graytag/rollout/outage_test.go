package rollout_test

import (
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// breakable is a store that can be down, for reads that are under way, too.
type breakable struct {
	rule.Store
	mu     sync.Mutex // guards what follows
	isDown bool
	ends   map[int]context.CancelFunc
	n      int
}

func breakableStore(s rule.Store) *breakable {
	return &breakable{Store: s, ends: map[int]context.CancelFunc{}}
}

func (b *breakable) down(down bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.isDown = down
	for _, end := range b.ends {
		end()
	}
}

func (b *breakable) begin(ctx context.Context) (_ context.Context, end func(), broken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	b.n++
	n := b.n
	b.ends[n] = cancel
	return ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.ends, n)
		cancel()
	}, b.isDown
}

func (b *breakable) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		for ctx.Err() == nil {
			reading, end, broken := b.begin(ctx)
			ok := true
			if broken {
				if ok = yield(rule.Document{}, errDown); ok {
					select {
					case <-reading.Done():
					case <-time.After(time.Second):
					}
				}
			} else {
				for d, err := range b.Store.Watch(reading) {
					if ok = yield(d, err); !ok {
						break
					}
				}
			}
			end()
			if !ok {
				return
			}
		}
	}
}

func (b *breakable) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	ctx, end, broken := b.begin(ctx)
	defer end()
	if broken {
		return 0, errDown
	}
	return b.Store.Put(ctx, d, ifRevision)
}

func TestO7_ARollbackIsInForceHereWhileTheStoreFails(t *testing.T) {
	t.Run("by hand", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, told := startedLane(t, ""), &alerts{}
			front := breakableStore(s)
			e := follower(t, s) // which goes on reading, what is stale
			c, _ := control(t, front, newFlow(fine), rollout.WithAlerter(told), rollout.WithEngine(e))
			passTime(time.Minute)
			front.down(true)
			require.True(t, isGray(e))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			go func() {
				_, err := c.Do(ctx, "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.ErrorIs(t, err, errDown)
			}()
			synctest.Wait()
			assert.Zero(t, time.Since(begun))
			assert.False(t, isGray(e), "at once")
			passTime(time.Minute)
			st := c.Status(t.Context())
			require.Len(t, st.Unwritten, 1)
			assert.Equal(t, "lane", st.Unwritten[0].Plan)
			assert.Contains(t, st.Unwritten[0].Error, errDown.Error())

			// Somebody writes, who knows of no rollback.
			d := read(t, s)
			_, err := s.Put(t.Context(), rule.Document{Data: append(d.Data, '\n')}, d.Revision)
			require.NoError(t, err)
			synctest.Wait()
			assert.Equal(t, d.Revision+1, e.Status().Revision)
			assert.False(t, isGray(e), "a document from before does not undo it")

			front.down(false)
			passTime(time.Second)
			assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
			assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
			assert.False(t, isGray(e))
			assert.Empty(t, e.Status().Suspended)
			assert.Empty(t, c.Status(t.Context()).Unwritten)
		})
	})
	t.Run("by a breach, though nobody can lead", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, told, f := startedLane(t, ""), &alerts{}, newFlow(fine)
			front := breakableStore(s)
			e := follower(t, s)
			c, _ := control(t, front, f, rollout.WithAlerter(told), rollout.WithEngine(e), rollout.WithElector(nobody{}))
			passTime(5 * time.Minute)
			f.set(broken)
			passTime(time.Minute)
			assert.True(t, isGray(e), "that is for the leader to see")
			front.down(true)
			passTime(10 * time.Second)
			assert.False(t, isGray(e), "nobody else will")
			assert.Equal(t, rollout.Running, state(t, s).Phase)
			assert.Empty(t, told.kinds())
			passTime(time.Hour)
			assert.Equal(t, []rollout.Kind{rollout.KindUnwritten}, told.kinds())
			assert.True(t, told.events[0].Breach())
			assert.Contains(t, told.events[0].Why, errDown.Error())
			assert.Len(t, c.Status(t.Context()).Unwritten, 1)
			front.down(false)
			passTime(time.Second)
			assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
			assert.Equal(t, []rollout.Kind{rollout.KindUnwritten, rollout.KindRolledBack}, told.kinds())
			assert.Empty(t, e.Status().Suspended)
		})
	})
	t.Run("the kill switch", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := startedLane(t, "")
			front := breakableStore(s)
			e := follower(t, s)
			c, stop := control(t, front, newFlow(fine), rollout.WithEngine(e))
			front.down(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Stop(ctx, rollout.Note{Who: "ann"})
			assert.ErrorIs(t, err, errDown)
			assert.True(t, e.Status().Stopped)
			front.down(false)
			passTime(time.Second)
			assert.True(t, set(t, string(read(t, s).Data)).Stop)
			assert.False(t, e.Status().SuspendedAll)
			stop()
		})
	})
	t.Run("where nothing runs that would try on", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := startedLane(t, "")
			front := breakableStore(s)
			e := follower(t, s)
			c, stop := control(t, front, nil, rollout.WithEngine(e))
			stop()
			front.down(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Do(ctx, "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
			assert.ErrorIs(t, err, errDown)
			assert.True(t, isGray(e), "nothing has come of it")
		})
	})
}

// nobody lets nobody lead.
type nobody struct{}

func (nobody) Lead(ctx context.Context, _ func(context.Context) error) error {
	<-ctx.Done()
	return ctx.Err()
}

func (nobody) Leader(context.Context) (rollout.Leader, error) {
	return rollout.Leader{}, errors.New("nobody knows")
}

// What an operator wants comes about though an analysis was about to do the same and
// found, when it came to write, that the plan had gone on.
func TestARollbackByHandBesideOneThatCameToNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f, told := startedLane(t, ""), newFlow(broken), &alerts{}
		var down atomic.Bool
		front := &faulty{Store: s, put: func(put func() (uint64, error)) (uint64, error) {
			if down.Load() {
				return 0, errDown
			}
			return put()
		}}
		down.Store(true)
		c, _ := control(t, front, f, rollout.WithAlerter(told))
		passTime(10 * time.Second)
		require.Len(t, c.Status(t.Context()).Unwritten, 1)
		done := make(chan *rollout.Event, 1)
		go func() {
			e, err := c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
			assert.NoError(t, err)
			done <- e
		}()
		synctest.Wait()
		f.set(fine)
		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandPromote, rollout.Note{Who: "bob"})
		require.NoError(t, err)
		down.Store(false)
		e := <-done
		require.NotNil(t, e)
		assert.Equal(t, "ann", e.Who)
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
		synctest.Wait()
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
	})
}
