package rollout_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// hanging is a store that says nothing to whoever asks while it hangs, ever.
type hanging struct {
	rule.Store
	watch, put atomic.Bool
}

func (h *hanging) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	if h.watch.Load() {
		return func(func(rule.Document, error) bool) { <-ctx.Done() }
	}
	return h.Store.Watch(ctx)
}

func (h *hanging) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	if h.put.Load() {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return h.Store.Put(ctx, d, ifRevision)
}

func TestARollbackWhileTheStoreHangs(t *testing.T) {
	for _, where := range []string{"watch", "put"} {
		synctest.Test(t, func(t *testing.T) {
			s, told := startedLane(t, ""), &alerts{}
			front := &hanging{Store: s}
			e := follower(t, s)
			c, _ := control(t, front, newFlow(fine), rollout.WithEngine(e), rollout.WithAlerter(told))
			front.watch.Store(where == "watch")
			front.put.Store(where == "put")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := c.Do(ctx, "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			assert.Contains(t, err.Error(), "(rollout: the store has not answered in time)")
			assert.False(t, isGray(e))
			passTime(time.Minute)
			assert.NotEmpty(t, c.Status(t.Context()).Unwritten[0].Error)
			front.watch.Store(false)
			front.put.Store(false)
			passTime(20 * time.Second)
			assert.Equal(t, rollout.RolledBack, state(t, s).Phase, "what hangs is given up, and asked for again")
			assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
			assert.Empty(t, e.Status().Suspended)
		})
	}
}

// Whoever is told of a change of an engine may ask the controller how it does.
func TestStatusFromTheNotificationOfAnEngine(t *testing.T) {
	s := startedLane(t, "")
	var c *rollout.Controller
	e, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)), rule.WithNotify(func(rule.Status) {
		if c != nil {
			_ = c.Status(context.Background())
		}
	}))
	require.NoError(t, err)
	c, err = rollout.NewController(s, nil, rollout.WithEngine(e), rollout.WithControllerLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := c.Stop(t.Context(), rollout.Note{Who: "ann"})
		done <- err
	}()
	select {
	case err := <-done:
		assert.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatal("a deadlock")
	}
}

// A rollback that Run could not write before its end is not forgotten: its rules would
// be off in this process for ever, and nowhere else.
func TestTheNextRunWritesWhatTheLastOneCouldNot(t *testing.T) {
	leave := func(t *testing.T) (s *rule.MemoryStore, e *rule.Engine, c *rollout.Controller) {
		s = startedLane(t, "")
		front := breakableStore(s)
		e = follower(t, s)
		c, stop := control(t, front, newFlow(fine), rollout.WithEngine(e))
		front.down(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Do(ctx, "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
		require.ErrorIs(t, err, errDown)
		stop()
		front.down(false)
		assert.False(t, isGray(e))
		require.Len(t, c.Status(t.Context()).Unwritten, 1, "it can be seen")
		return s, e, c
	}
	ends := func(t *testing.T, s *rule.MemoryStore, e *rule.Engine, c *rollout.Controller) {
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
		assert.Equal(t, "ann", state(t, s).Who)
		assert.Empty(t, c.Status(t.Context()).Unwritten)
		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRestore, rollout.Note{Who: "bob"})
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, isGray(e))
	}
	t.Run("another Run", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, e, c := leave(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			synctest.Wait()
			ends(t, s, e, c)
			<-done
		})
	})
	t.Run("a rollback without Run", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, e, c := leave(t)
			_, err := c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
			require.NoError(t, err)
			ends(t, s, e, c)
		})
	})
}

func TestAServiceThatCannotBeAskedAboutHidesNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startedLane(t, "")
		control(t, s, rollout.SourceFunc(func(ctx context.Context, q rollout.Query) ([]rollout.Sample, error) {
			if q.Service == "inventory" { // the first one
				<-ctx.Done()
			}
			return broken.samples(), ctx.Err()
		}))
		passTime(time.Minute)
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
	})
}

func TestASourceThatDoesNotReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		block := make(chan struct{})
		c, _ := control(t, s, rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
			<-block
			return broken.samples(), nil
		}), rollout.WithAlerter(told))
		passTime(time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindBlind}, told.kinds())
		assert.Contains(t, c.Status(t.Context()).Plans[0].Error, "does not return")
		close(block)
		passTime(time.Minute)
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
		assert.Empty(t, c.Status(t.Context()).Plans[0].Error)
	})
}

// What counts is when this controller has seen the stage begin.
func TestAStageThatBeginsInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startedLane(t, "")
		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandPromote, rollout.Note{Who: "ann", At: time.Now().Add(2 * time.Hour)})
		require.NoError(t, err)
		control(t, s, newFlow(broken))
		passTime(time.Minute)
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
	})
}

func TestManyPlansFailAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 70
		var rules, plans []string
		for i := range n {
			rules = append(rules, fmt.Sprintf(`{"id": "r%d", "services": ["s%d"], "percent": 1, "tag": "version=v2"}`, i, i))
			plans = append(plans, fmt.Sprintf(`"p%d": {"rules": ["r%d"], "stages": [{"percent": 1}, {"percent": 100}], "state": {"phase": "running", "stage": 1, "since": "1999-12-31T00:00:00Z"}}`, i, i))
		}
		s, told := filled(t, `{"rules": [`+strings.Join(rules, ",")+`], "plans": {`+strings.Join(plans, ",")+`}}`), &alerts{}
		slow := rollout.AlerterFunc(func(ctx context.Context, e rollout.Event) error {
			time.Sleep(time.Second)
			return told.Alert(ctx, e)
		})
		c, _ := control(t, s, newFlow(broken), rollout.WithAlerter(slow))
		passTime(10 * time.Minute)
		assert.Len(t, told.kinds(), n, "nobody goes untold")
		assert.Zero(t, c.Status(t.Context()).AlertsDropped)
	})
}

// A recorder that has just begun knows too little for a pass, and enough for a fail.
func TestAControllerThatHasJustStartedSeesABreach(t *testing.T) {
	for _, bad := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := startedLane(t, "")
			passTime(9 * time.Minute)
			r, err := rollout.NewRecorder()
			require.NoError(t, err)
			control(t, s, r)
			for i := range 600 {
				for range 10 {
					for _, service := range []string{"order", "inventory"} {
						status := 200
						if bad && i%4 == 0 {
							status = 500
						}
						r.Record(rollout.Request{Service: service, Wanted: "v2", Served: "v2", Outcome: "matched", Status: status})
						r.Record(rollout.Request{Service: service, Outcome: "stable", Status: 200})
					}
				}
				passTime(100 * time.Millisecond)
			}
			if bad {
				assert.Equal(t, rollout.RolledBack, state(t, s).Phase)
			} else {
				passTime(time.Minute + 30*time.Second)
				assert.Equal(t, 1, state(t, s).Stage, "its hold is over, and the window is not known")
			}
		})
	}
}

// A breach that was found is written though somebody makes the plan faulty meanwhile.
func TestAPlanThatBecomesFaultyBeforeItsRollbackIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		front := &hanging{Store: s}
		front.put.Store(true)
		control(t, front, newFlow(broken), rollout.WithAlerter(told))
		passTime(time.Minute)
		d := read(t, s)
		bad := strings.Replace(string(d.Data), `"id": "order"`, `"id": "orders"`, 1)
		_, err := s.Put(t.Context(), rule.Document{Data: []byte(bad)}, d.Revision)
		require.NoError(t, err)
		front.put.Store(false)
		passTime(time.Minute)
		assert.Equal(t, "off", rules(t, string(read(t, s).Data))["inventory"])
		last := told.last()
		assert.Equal(t, rollout.KindRolledBack, last.Kind)
		assert.True(t, last.Breach())
		assert.Contains(t, last.Why, "gray requests failed")
	})
}

func TestUnstopWaitsForAStopThatIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startedLane(t, "")
		front := &hanging{Store: s}
		e := follower(t, s)
		c, _ := control(t, front, newFlow(fine), rollout.WithEngine(e))
		front.put.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Stop(ctx, rollout.Note{Who: "ann"})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.Unstop(ctx, rollout.Note{Who: "ann"})
		require.ErrorContains(t, err, "not written yet")
		front.put.Store(false)
		_, err = c.Unstop(t.Context(), rollout.Note{Who: "ann"})
		require.NoError(t, err)
		passTime(time.Minute)
		assert.False(t, set(t, string(read(t, s).Data)).Stop)
		assert.True(t, isGray(e))
	})
}

func TestAnAlerterThatDoesNotReturnDoesNotKeepRunFromIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		deaf := rollout.AlerterFunc(func(context.Context, rollout.Event) error {
			<-block
			return nil
		})
		c, stop := control(t, startedLane(t, ""), nil, rollout.WithAlerter(deaf))
		_, err := c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		begun := time.Now()
		stop()
		assert.Less(t, time.Since(begun), 10*time.Second)
		close(block)
	})
}

// narrow is a store that has no room for larger documents.
type narrow struct {
	rule.Store
	limit int
}

func (n *narrow) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	if len(d.Data) > n.limit {
		return 0, &rule.TooLargeError{Size: len(d.Data), Limit: n.limit}
	}
	return n.Store.Put(ctx, d, ifRevision)
}

func TestTheKillSwitchOverADocumentThatHasNoRoomForIt(t *testing.T) {
	for _, size := range []int{len(lane), rule.MaxBytes} {
		s := filled(t, lane+strings.Repeat(" ", size-len(lane)))
		before := read(t, s).Revision
		e, err := rollout.Stop(t.Context(), &narrow{s, size}, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		d := read(t, s)
		assert.Equal(t, e.Revision, d.Revision)
		assert.JSONEq(t, `{"stop": true}`, string(d.Data))
		docs, err := s.History(t.Context())
		require.NoError(t, err)
		assert.Equal(t, before, docs[1].Revision, "nothing is lost")
	}
}

func TestStatusAsJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := control(t, rule.NewMemoryStore(), rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
			return nil, errors.New("nobody asks")
		}))
		text, err := json.Marshal(c.Status(t.Context()))
		require.NoError(t, err)
		assert.Contains(t, string(text), `"plans":[]`)
	})
}
