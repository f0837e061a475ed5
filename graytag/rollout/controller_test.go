package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
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

// alerts collects what alerters are told.
type alerts struct {
	mu     sync.Mutex
	events []rollout.Event
}

func (a *alerts) Alert(_ context.Context, e rollout.Event) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, e)
	return nil
}

func (a *alerts) kinds() (list []rollout.Kind) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.events {
		list = append(list, e.Kind)
	}
	return list
}

func (a *alerts) last() rollout.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.events[len(a.events)-1]
}

// control runs a controller in the bubble of a synctest, until stop is called.
func control(t *testing.T, store rule.Store, source rollout.Source, opts ...rollout.ControllerOption) (c *rollout.Controller, stop func()) {
	t.Helper()
	quiet := rollout.WithControllerLogger(slog.New(slog.DiscardHandler))
	c, err := rollout.NewController(store, source, append([]rollout.ControllerOption{quiet, nil}, opts...)...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	t.Cleanup(stop)
	synctest.Wait()
	return c, stop
}

// flow is traffic that may change while it is asked for.
type flow struct{ now atomic.Pointer[traffic] }

func (f *flow) set(t traffic) { f.now.Store(&t) }

func (f *flow) Samples(context.Context, rollout.Query) ([]rollout.Sample, error) {
	if t := f.now.Load(); t != nil {
		return t.samples(), nil
	}
	return nil, errors.New("no metrics")
}

var (
	fine   = traffic{gray: 1000, grayErrors: 1, stable: 9000, stableErrors: 9}
	broken = traffic{gray: 1000, grayErrors: 100, stable: 9000, stableErrors: 9}
)

func newFlow(t traffic) *flow {
	f := &flow{}
	f.set(t)
	return f
}

// pass lets time go by.
func passTime(d time.Duration) {
	time.Sleep(d) // of the bubble
	synctest.Wait()
}

// started is a store whose plan is at its first stage, which holds for ten minutes.
func startedLane(t *testing.T, mode rollout.Mode) *rule.MemoryStore {
	t.Helper()
	doc := strings.Replace(lane, `"hold": "24h"`, `"hold": "10m"`, 1)
	if mode != "" {
		doc = withMode(doc, mode)
	}
	s := filled(t, doc)
	for _, c := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote} {
		_, err := rollout.Run(t.Context(), s, "lane", c, rollout.Note{Who: "ann"})
		require.NoError(t, err)
	}
	return s
}

func state(t *testing.T, s rule.Store) rollout.State {
	t.Helper()
	return plan(t, string(read(t, s).Data)).State
}

// follower is an engine that follows a store.
func follower(t *testing.T, s rule.Store) *rule.Engine {
	t.Helper()
	e, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Follow(ctx, s)
	}()
	t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
	return e
}

// isGray tells whether a tester is gray on order.
func isGray(e *rule.Engine) bool {
	return e.Decide(&rule.Request{Header: func(string) (string, bool) { return "9999", true }}).Tag.Route("version", "order") == "v2"
}

func TestControllerGoesThroughTheStages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		c, _ := control(t, s, newFlow(fine), rollout.WithAlerter(told), rollout.WithControllerName("gw-1"))
		passTime(9 * time.Minute)
		assert.Empty(t, told.kinds(), "the hold")
		st := c.Status(t.Context())
		assert.True(t, st.Leading)
		assert.NotEmpty(t, st.Leader.ID)
		require.Len(t, st.Plans, 1)
		assert.Equal(t, rollout.VerdictPass, st.Plans[0].Report.Verdict)
		assert.WithinDuration(t, time.Now(), st.Plans[0].Report.Time, 10*time.Second)
		assert.Equal(t, "1", st.Plans[0].Percent.String())
		passTime(61 * time.Second)
		assert.Equal(t, []rollout.Kind{rollout.KindAdvanced}, told.kinds())
		assert.Equal(t, "10", rules(t, string(read(t, s).Data))["order"])
		passTime(2 * time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindAdvanced, rollout.KindAdvanced, rollout.KindAdvanced, rollout.KindDone}, told.kinds())
		assert.Equal(t, rollout.Done, state(t, s).Phase)
		assert.Equal(t, "gw-1", read(t, s).Author)
		assert.Equal(t, read(t, s).Revision, told.last().Revision)
		passTime(time.Hour)
		assert.Len(t, told.kinds(), 4)
	})
}

func TestControllerRollsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told, f := startedLane(t, ""), &alerts{}, newFlow(fine)
		e := follower(t, s)
		require.True(t, isGray(e))
		control(t, s, f, rollout.WithAlerter(told), rollout.WithEngine(e), rollout.WithEngine(nil))
		passTime(5 * time.Minute)
		f.set(broken)
		passTime(10 * time.Second)
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
		last := told.last()
		assert.True(t, last.Breach())
		assert.Contains(t, last.Why, "100 of 1000 gray requests failed")
		assert.False(t, isGray(e))
		assert.Empty(t, e.Status().Suspended, "the document says it now")
		f.set(fine)
		passTime(24 * time.Hour)
		assert.Len(t, told.kinds(), 1, "one alert, and no way back by itself")
		assert.Equal(t, rollout.RolledBack, state(t, s).Phase)

		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRestore, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, isGray(e))
	})
}

func TestControllerObeysOperatorsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		c, _ := control(t, s, newFlow(fine), rollout.WithAlerter(told))
		passTime(10*time.Minute - time.Second)
		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandPause, rollout.Note{Who: "ann"}) // elsewhere
		require.NoError(t, err)
		passTime(time.Hour)
		assert.Empty(t, told.kinds())
		assert.Equal(t, rollout.Paused, state(t, s).Phase)
		e, err := c.Do(t.Context(), "lane", rollout.CommandResume, rollout.Note{Who: "bob", Why: "lunch is over"})
		require.NoError(t, err)
		assert.Equal(t, read(t, s).Revision, e.Revision)
		passTime(10*time.Minute + 10*time.Second)
		assert.Equal(t, []rollout.Kind{rollout.KindResumed, rollout.KindAdvanced}, told.kinds())
		_, err = c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "bob"})
		require.NoError(t, err)
		e, err = c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "bob"})
		require.NoError(t, err)
		assert.Nil(t, e, "it is rolled back")
		_, err = c.Do(t.Context(), "nobody", rollout.CommandRollback, rollout.Note{})
		var none *rollout.NoPlanError
		assert.ErrorAs(t, err, &none)
		_, err = c.Do(t.Context(), "lane", rollout.CommandPause, rollout.Note{})
		var bad *rollout.CommandError
		assert.ErrorAs(t, err, &bad)
		synctest.Wait()
		assert.Len(t, told.kinds(), 3)
	})
}

func TestControllerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		e := follower(t, s)
		c, stop := control(t, s, newFlow(fine), rollout.WithAlerter(told), rollout.WithEngine(e))
		before := read(t, s).Revision
		_, err := c.Stop(t.Context(), rollout.Note{Who: "ann"})
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, e.Status().Stopped)
		assert.False(t, e.Status().SuspendedAll)
		assert.True(t, c.Status(t.Context()).Stopped)
		passTime(time.Hour)
		assert.Equal(t, 1, state(t, s).Stage, "nothing goes forward")
		_, err = c.Unstop(t.Context(), rollout.Note{Who: "ann"})
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, isGray(e))
		_, err = c.Restore(t.Context(), before, read(t, s).Revision, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		synctest.Wait()
		assert.Equal(t, []rollout.Kind{rollout.KindStopped, rollout.KindUnstopped, rollout.KindRevision}, told.kinds())

		stop()
		_, err = c.Stop(t.Context(), rollout.Note{Who: "ann"}) // also where nothing runs
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, e.Status().Stopped)
		assert.Len(t, told.kinds(), 4)
	})
}

// Several controllers, one after the other and at once, tell of each event once.
func TestOneAlertForEachEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told, elector := startedLane(t, rollout.ModeSuggest), &alerts{}, rollout.NewLocalElector("")
		f := newFlow(fine)
		opts := []rollout.ControllerOption{rollout.WithAlerter(told), rollout.WithElector(elector)}
		_, stop := control(t, s, f, opts...)
		second, _ := control(t, s, f, opts...)
		assert.False(t, second.Status(t.Context()).Leading)
		passTime(time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindSuggestAdvance}, told.kinds(), "not at each evaluation")
		assert.Equal(t, []rollout.Kind{rollout.KindSuggestAdvance}, state(t, s).Suggested)
		stop()
		passTime(time.Hour)
		assert.True(t, second.Status(t.Context()).Leading)
		assert.Len(t, told.kinds(), 1, "not by the next leader")
		f.set(broken)
		passTime(time.Hour)
		f.set(fine)
		passTime(time.Hour)
		f.set(broken)
		passTime(time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindSuggestAdvance, rollout.KindSuggestBreach}, told.kinds())
		assert.Equal(t, 1, state(t, s).Stage)

		_, err := second.Do(t.Context(), "lane", rollout.CommandPromote, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		assert.Empty(t, state(t, s).Suggested)
		passTime(time.Minute)
		assert.Equal(t, []rollout.Kind{rollout.KindPromoted, rollout.KindSuggestBreach}, told.kinds()[2:], "of the next stage")
	})
}

func TestASuggestionLeavesTheRulesAsSomebodyHasPutThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, rollout.ModeSuggest), &alerts{}
		d := read(t, s)
		off := strings.Replace(string(d.Data), `{"id": "order",`, `{"id": "order", "enabled": false,`, 1)
		off = strings.Replace(off, `"salt": "lane",  "tag": "version=v2", "enabled": true`, `"salt": "lane",  "tag": "version=v2"`, 1)
		_, err := s.Put(t.Context(), rule.Document{Data: []byte(off)}, d.Revision)
		require.NoError(t, err)
		require.Equal(t, "off", rules(t, off)["order"])
		control(t, s, newFlow(broken), rollout.WithAlerter(told))
		passTime(time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindSuggestBreach}, told.kinds())
		assert.Equal(t, "off", rules(t, string(read(t, s).Data))["order"])
	})
}

func TestSuggestionsAreToldOnceThoughTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, rollout.ModeSuggest), &alerts{}
		var down atomic.Bool
		front := &faulty{Store: s, put: func(put func() (uint64, error)) (uint64, error) {
			if down.Load() {
				return 0, errDown
			}
			return put()
		}}
		down.Store(true)
		c, _ := control(t, front, newFlow(broken), rollout.WithAlerter(told))
		passTime(time.Minute)
		assert.Contains(t, c.Status(t.Context()).Plans[0].Error, errDown.Error())
		down.Store(false)
		passTime(time.Hour)
		assert.Equal(t, []rollout.Kind{rollout.KindSuggestBreach}, told.kinds())
		assert.NotEmpty(t, state(t, s).Suggested)
		assert.Empty(t, c.Status(t.Context()).Plans[0].Error)
	})
}

func TestASourceThatFailsForLong(t *testing.T) {
	for what, src := range map[string]rollout.Source{
		"boom":                rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) { return nil, errors.New("boom") }),
		"the source panicked": rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) { panic("at the disco") }),
		"context deadline exceeded": rollout.SourceFunc(func(ctx context.Context, _ rollout.Query) ([]rollout.Sample, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}),
	} {
		synctest.Test(t, func(t *testing.T) {
			s, told := startedLane(t, ""), &alerts{}
			c, _ := control(t, s, src, rollout.WithAlerter(told))
			passTime(9 * time.Minute)
			assert.Empty(t, told.kinds())
			assert.Contains(t, c.Status(t.Context()).Plans[0].Error, what)
			passTime(24 * time.Hour)
			assert.Equal(t, []rollout.Kind{rollout.KindBlind}, told.kinds())
			assert.Contains(t, told.last().Why, what)
			assert.Equal(t, 1, state(t, s).Stage)
		})
	}
	t.Run("no source", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, told := startedLane(t, ""), &alerts{}
			control(t, s, nil, rollout.WithAlerter(told))
			passTime(24 * time.Hour)
			assert.Empty(t, told.kinds())
		})
	})
	t.Run("a plan that becomes faulty", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s, told := startedLane(t, ""), &alerts{}
			c, _ := control(t, s, newFlow(fine), rollout.WithAlerter(told))
			passTime(time.Minute)
			d := read(t, s)
			bad := strings.Replace(string(d.Data), `"stages"`, `"stagse"`, 1)
			_, err := s.Put(t.Context(), rule.Document{Data: []byte(bad)}, d.Revision)
			require.NoError(t, err)
			passTime(time.Hour)
			assert.Equal(t, []rollout.Kind{rollout.KindBlind}, told.kinds())
			assert.Contains(t, told.last().Why, "stagse")
			assert.Contains(t, c.Status(t.Context()).Error, "stagse")
			_, err = c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
			require.NoError(t, err, "it can be rolled back all the same")
		})
	})
}

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

func TestFinishAsksAboutEachService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := filled(t, after(t, lane, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote)), &alerts{}
		c, _ := control(t, s, nil, rollout.WithAlerter(told))
		count := map[string]int{"order": 2}
		ready := func(_ context.Context, service string) (int, error) { return count[service], nil }
		_, err := c.Finish(t.Context(), "lane", ready, rollout.Note{Who: "ann"})
		var bad *rollout.CommandError
		require.ErrorAs(t, err, &bad, "it is at 100 %, and its hold is not over")
		_, err = c.Do(t.Context(), "lane", rollout.CommandPromote, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		_, err = c.Finish(t.Context(), "lane", ready, rollout.Note{Who: "ann"})
		var missing *rollout.NotReadyError
		require.ErrorAs(t, err, &missing)
		assert.Equal(t, []string{"inventory"}, missing.Missing)
		_, err = c.Finish(t.Context(), "lane", nil, rollout.Note{Who: "ann"})
		assert.ErrorAs(t, err, &missing)
		_, err = c.Finish(t.Context(), "lane", func(context.Context, string) (int, error) { return 1, errDown }, rollout.Note{Who: "ann"})
		assert.ErrorIs(t, err, errDown)
		_, err = c.Finish(t.Context(), "nobody", ready, rollout.Note{Who: "ann"})
		assert.ErrorContains(t, err, "no plan")
		count["inventory"] = 1
		_, err = c.Finish(t.Context(), "lane", ready, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		assert.NotContains(t, rules(t, string(read(t, s).Data)), "order")
		synctest.Wait()
		assert.Equal(t, rollout.KindFinished, told.last().Kind)
		assert.Empty(t, c.Status(t.Context()).Plans)
	})
}

func TestControllerRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := rollout.NewController(nil, nil)
		assert.Error(t, err)
		s := startedLane(t, "")
		c, stop := control(t, s, nil)
		assert.ErrorIs(t, c.Run(t.Context()), rollout.ErrRunning)
		stop()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.ErrorIs(t, c.Run(ctx), context.DeadlineExceeded, "again")
	})
}

func TestAnElectorThatGivesUpEndsTheController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := rollout.NewController(startedLane(t, ""), nil, rollout.WithElector(closed{}))
		require.NoError(t, err)
		assert.ErrorIs(t, c.Run(t.Context()), errDown)
		assert.Equal(t, "nobody knows", c.Status(t.Context()).LeaderError)
	})
}

type closed struct{ nobody }

func (closed) Lead(context.Context, func(context.Context) error) error { return errDown }

func TestAlertersThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		block := make(chan struct{})
		slow := rollout.AlerterFunc(func(ctx context.Context, e rollout.Event) error {
			select {
			case <-block:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		panics := rollout.AlerterFunc(func(context.Context, rollout.Event) error { panic("at the disco") })
		c, stop := control(t, s, nil, rollout.WithAlerter(slow), rollout.WithAlerter(panics), rollout.WithAlerter(told), rollout.WithAlerter(nil))
		const n = rollout.MaxAlertsQueue + 10
		for i := range n {
			_, err := c.Do(t.Context(), "lane", []rollout.Command{rollout.CommandPause, rollout.CommandResume}[i%2], rollout.Note{Who: fmt.Sprint(i)})
			require.NoError(t, err)
			synctest.Wait()
		}
		assert.Len(t, told.kinds(), n, "nobody keeps the others waiting")
		assert.True(t, slices.IsSortedFunc(told.events, func(a, b rollout.Event) int { return int(a.Revision) - int(b.Revision) }))
		st := c.Status(t.Context())
		assert.EqualValues(t, n, st.AlertsFailed)
		assert.EqualValues(t, 9, st.AlertsDropped, "one is under way")
		assert.Contains(t, st.AlertError, "the alerter panicked: at the disco")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.ErrorIs(t, c.Flush(ctx), context.DeadlineExceeded)
		begun := time.Now()
		stop()
		assert.Equal(t, 5*time.Second, time.Since(begun), "the end waits, but not for ever")
		assert.NoError(t, c.Flush(t.Context()))
		assert.EqualValues(t, n-1, c.Status(t.Context()).AlertsDropped)
	})
}

// What was told before the end is sent at the end.
func TestTheEndWaitsForAlerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		late := rollout.AlerterFunc(func(ctx context.Context, e rollout.Event) error {
			time.Sleep(2 * time.Second)
			return told.Alert(ctx, e)
		})
		c, stop := control(t, s, nil, rollout.WithAlerter(late))
		_, err := c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		stop()
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
	})
}

func TestLogAlerter(t *testing.T) {
	var b strings.Builder
	a := rollout.NewLogAlerter(slog.New(slog.NewTextHandler(&b, nil)))
	for _, e := range []rollout.Event{
		{Kind: rollout.KindAdvanced, Plan: "lane", To: rollout.State{Phase: rollout.Running, Stage: 2}, Percent: rule.MustPercent("10"), Who: "gw", Why: "passed", Revision: 7},
		{Kind: rollout.KindRolledBack, Plan: "lane", Report: &rollout.Report{Verdict: rollout.VerdictFail}},
		{Kind: rollout.KindStopped, Who: "ann"},
	} {
		require.NoError(t, a.Alert(t.Context(), e))
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 3)
	assert.Contains(t, lines[0], `level=INFO msg="gray rollout: plan lane: advanced, at 10 %" kind=advanced plan=lane phase=running stage=2 percent=10 who=gw why=passed revision=7`)
	assert.Contains(t, lines[1], "level=ERROR")
	assert.Contains(t, lines[2], `level=WARN msg="gray rollout: the kill switch is on, everyone is stable" kind=stopped who=ann`)
	require.NoError(t, rollout.NewLogAlerter(nil).Alert(t.Context(), rollout.Event{Kind: rollout.KindUnstopped}))
}
