package consul_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/internal/rollouttest"
	"github.com/graylane/graylane/registry/consul"
)

var quiet = slog.New(slog.DiscardHandler)

// everyone is a plan whose one stage makes everyone gray.
const everyone = `{
  "rules": [{"id": "all", "percent": 0, "tag": "version=v2"}],
  "default": "version=stable",
  "plans": {"all": {"rules": ["all"], "stages": [{"percent": 100, "hold": "24h"}]}}
}`

// decided returns the version that an engine gives everyone.
func decided(e *rule.Engine) string { return e.Decide(nil).Tag.Get("version") }

// follower is an engine of a process of its own.
func follower(t *testing.T, agent *consultest.Agent) *rule.Engine {
	t.Helper()
	e, err := rule.NewEngine(nil, rule.WithLogger(quiet))
	require.NoError(t, err)
	follow(t, e, ruleStore(t, open(t, agent.Config()), rulesKey))
	return e
}

// control runs a controller of a process of its own.
func control(t *testing.T, store rule.Store, source rollout.Source, opts ...rollout.ControllerOption) (c *rollout.Controller, stop func()) {
	t.Helper()
	c, err := rollout.NewController(store, source, append(opts, rollout.WithControllerLogger(quiet))...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	t.Cleanup(stop)
	return c, stop
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, time.Millisecond, what)
}

func all(engines []*rule.Engine, version string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(engines, func(e *rule.Engine) bool { return decided(e) != version })
	}
}

// The figures are for people. What is asserted is that every rollback arrives
// everywhere, far from the end of a blocking query.
func TestRollback_WriteToLastGrayDecision(t *testing.T) {
	const gateways, trials = 5, 100
	agent := consultest.Start(t)
	store := ruleStore(t, open(t, agent.Config()), rulesKey)
	put(t, store, everyone, 0)
	var engines []*rule.Engine
	for range gateways {
		engines = append(engines, follower(t, agent))
	}
	do := func(c rollout.Command) {
		_, err := rollout.Run(t.Context(), store, "all", c, rollout.Note{Who: "ann", Why: "a trial"})
		require.NoError(t, err)
	}
	do(rollout.CommandStart)
	measure := func(write func()) (call, written time.Duration) {
		until(t, "all are gray", all(engines, "v2"))
		last := make([]time.Time, gateways)
		var deciding sync.WaitGroup
		stable := make(chan struct{}, gateways)
		done := make(chan struct{})
		for i, e := range engines {
			deciding.Go(func() {
				tick := time.NewTicker(200 * time.Microsecond)
				defer tick.Stop()
				for was := true; ; {
					if decided(e) == "v2" {
						last[i] = time.Now()
					} else if was {
						was = false
						stable <- struct{}{}
					}
					select {
					case <-done: // it goes on, and would see a gray one that comes late
						return
					case <-tick.C:
					}
				}
			})
		}
		begun := time.Now()
		write()
		end := time.Now()
		for range gateways {
			<-stable
		}
		close(done)
		deciding.Wait()
		latest := slices.MaxFunc(last, time.Time.Compare)
		return latest.Sub(begun), max(latest.Sub(end), 0)
	}
	var calls, writes []time.Duration
	for range trials {
		call, written := measure(func() { do(rollout.CommandRollback) })
		calls, writes = append(calls, call), append(writes, written)
		do(rollout.CommandRestore)
	}
	slices.Sort(calls)
	slices.Sort(writes)
	at50, at99 := trials/2-1, trials*99/100-1 // the nearest rank
	t.Logf("rollback over %d gateways, %d trials, to the last gray decision: from the call p50 %v, p99 %v, most %v; from the end of the write p50 %v, p99 %v, most %v",
		gateways, trials, calls[at50], calls[at99], calls[trials-1], writes[at50], writes[at99], writes[trials-1])
	assert.Less(t, calls[at99], 5*time.Second)

	call, _ := measure(func() {
		_, err := rollout.Stop(t.Context(), store, rollout.Note{Who: "ann"})
		require.NoError(t, err)
	})
	t.Logf("kill switch: from the call to the last gray decision %v", call)
	for _, e := range engines {
		assert.True(t, e.Decide(nil).Tag.IsZero(), "no rule, and no default")
	}
}

func TestNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	const n = 1000
	agent := consultest.Start(t)
	begun := time.Now()
	writes := rollouttest.LostUpdates(t, ruleStore(t, open(t, agent.Config()), rulesKey), rand.New(rand.NewPCG(5, 2)), n)
	t.Logf("%d random interleavings of a controller, the next leader and two operators: %d writes, none was lost, in %v", n, writes, time.Since(begun))
	assert.Greater(t, writes, 2*n)
}

// Controllers as they are, with the lock of Consul among them: the leader changes
// while all write.
func TestController_LeaderChangesUnderWrites(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	counting := strings.Replace(rollouttest.Counting, `"stages":`, `"analysis": {"window": "1s", "every": "100ms", "errors": {"minRequests": 1}, "latency": {"off": true, "minRequests": 1}}, "stages":`, 1)
	counting = strings.ReplaceAll(counting, `0}, {"percent"`, `0, "hold": "150ms"}, {"percent"`)
	counting = strings.Replace(counting, `"internal": {"rules": ["testers"]},`, "", 1)
	store := ruleStore(t, open(t, agent.Config()), rulesKey)
	begin := rule.Document{Data: []byte(counting)}
	begin.Revision = put(t, store, counting, 0)

	// Gray is worse one time in ten.
	var mu sync.Mutex // guards rng and events
	rng := rand.New(rand.NewPCG(7, 7))
	source := rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
		mu.Lock()
		defer mu.Unlock()
		gray := rollout.Sample{Wanted: "v2", Served: "v2", Requests: 1000}
		if rng.IntN(10) == 0 {
			gray.Errors = 500
		}
		return []rollout.Sample{gray, {Requests: 1000}}, nil
	})
	var events []rollout.Event
	tell := func(e *rollout.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, *e)
	}
	alerter := rollout.AlerterFunc(func(_ context.Context, e rollout.Event) error { tell(&e); return nil })
	j := &rollouttest.Journal{Store: store}
	led := map[string]bool{}
	stops := make([]func(), 2)
	controllers := make([]*rollout.Controller, 2)
	for i := range stops {
		controllers[i], stops[i] = control(t, j, source, rollout.WithElector(elector(t, open(t, agent.Config()))), rollout.WithAlerter(alerter), rollout.WithControllerName(string(rune('A'+i))))
	}
	leads := func() (leader int) {
		until(t, "somebody leads", func() bool {
			leader = slices.IndexFunc(controllers, func(c *rollout.Controller) bool { return c.Status(t.Context()).Leading })
			return leader >= 0
		})
		return leader
	}
	var operators sync.WaitGroup
	working, rest := context.WithCancel(t.Context())
	defer rest()
	pace := func() bool {
		timer := time.NewTimer(10 * time.Millisecond)
		defer timer.Stop()
		select {
		case <-working.Done():
			return false
		case <-timer.C:
			return true
		}
	}
	operators.Go(func() {
		for pace() {
			// Mostly what keeps the plan going.
			c := rollout.CommandStart
			mu.Lock()
			if rng.IntN(2) == 0 {
				c = rollout.CommandResume
			}
			if rng.IntN(20) == 0 {
				c = rollout.Commands()[rng.IntN(len(rollout.Commands()))]
			}
			mu.Unlock()
			if e, _ := rollout.Run(context.WithoutCancel(working), j, "lane", c, rollout.Note{Who: "ann"}); e != nil {
				tell(e)
			}
		}
	})
	counted := 0
	operators.Go(func() {
		for pace() {
			if rollouttest.Count(context.WithoutCancel(working), j) == nil {
				counted++
			}
		}
	})
	written := func(who string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for _, e := range events {
			if e.Who == who {
				n++
			}
		}
		return n
	}
	for range 6 {
		l := leads()
		who := string(rune('A' + l))
		led[who] = true
		before := written(who)
		until(t, "the leader writes", func() bool {
			return written(who) > before || !controllers[l].Status(t.Context()).Leading
		})
		stops[l]()
		controllers[l], stops[l] = control(t, j, source, rollout.WithElector(elector(t, open(t, agent.Config()))), rollout.WithAlerter(alerter), rollout.WithControllerName(who))
	}
	rest()
	operators.Wait()
	for i := range stops {
		stops[i]()
	}
	mu.Lock()
	defer mu.Unlock()
	writes := j.Check(t, begin, events)
	assert.Len(t, led, 2)
	by := map[string]int{}
	for _, e := range events {
		by[e.Who]++
	}
	t.Logf("%d writes while the leader changed 6 times, none was lost: %d of bob, events by %v", writes, counted, by)
	assert.Equal(t, writes, counted+len(events))
	assert.GreaterOrEqual(t, by["A"]+by["B"], 4)
}

// O7: this process is stable at once, the write is tried on, and what is read
// meanwhile does not undo it.
func TestO7_RollbackWhileConsulAnswers500(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	front := newSwitched(t, agent)
	direct := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, direct, everyone, 0)
	_, err := rollout.Run(t.Context(), direct, "all", rollout.CommandStart, rollout.Note{Who: "ann"})
	require.NoError(t, err)

	mine := open(t, front.config(), consul.WithLogger(quiet))
	store := ruleStore(t, mine, rulesKey)
	engine, err := rule.NewEngine(nil, rule.WithLogger(quiet))
	require.NoError(t, err)
	follow(t, engine, store)
	c, _ := control(t, store, nil, rollout.WithEngine(engine), rollout.WithElector(elector(t, mine)))
	other := follower(t, agent)
	until(t, "all are gray", all([]*rule.Engine{engine, other}, "v2"))
	until(t, "the controller has the plan", func() bool { return len(c.Status(t.Context()).Plans) == 1 })

	fail := func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "rpc error making call: No cluster leader", http.StatusInternalServerError)
	}
	front.set(fail)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	begun := time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := c.Do(ctx, "all", rollout.CommandRollback, rollout.Note{Who: "ann", Why: "orders fail"})
		done <- err
	}()
	until(t, "this process is stable", func() bool { return decided(engine) == "stable" })
	took := time.Since(begun)
	t.Logf("stable here %v after the call", took)
	assert.Less(t, took, time.Second)
	err = <-done
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "No cluster leader")
	assert.Equal(t, "v2", decided(other), "Consul knows nothing")

	// Reads work again, writes do not; somebody elsewhere writes what has no rollback.
	front.set(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/txn") {
			fail(w, r)
			return
		}
		front.proxy.ServeHTTP(w, r)
	})
	e, err := rollout.Update(t.Context(), direct, func(data []byte) ([]byte, *rollout.Event, error) {
		return append(slices.Clone(data), '\n'), &rollout.Event{Who: "bob"}, nil
	})
	require.NoError(t, err)
	require.Greater(t, e.Revision, at)
	until(t, "the engine follows", func() bool { return engine.Status().Revision == e.Revision })
	assert.Equal(t, "stable", decided(engine), "a document without the rollback does not undo it")
	assert.Equal(t, "v2", decided(other))
	assert.Len(t, c.Status(t.Context()).Unwritten, 1)

	front.answer.Store(nil)
	until(t, "everyone is stable", all([]*rule.Engine{engine, other}, "stable"))
	until(t, "by the document", func() bool { return len(engine.Status().Suspended) == 0 })
	assert.Equal(t, "stable", decided(engine))
	plans, err := rollout.ParseDocument(current(t, direct).Data)
	require.NoError(t, err)
	assert.Equal(t, "orders fail", plans["all"].State.Why)
}

func current(t *testing.T, s rule.Store) rule.Document {
	t.Helper()
	for d, err := range s.Watch(t.Context()) {
		require.NoError(t, err)
		return d
	}
	return rule.Document{}
}
