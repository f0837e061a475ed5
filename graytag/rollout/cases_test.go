package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/rollouttest"
)

// world runs a plan against traffic that a test makes up, on a clock of its own.
type world struct {
	t    *testing.T
	doc  string
	now  time.Time
	seen []rollout.Kind
	// traffic is what happens between two times; an error is the source's.
	traffic func(from, to time.Time) (traffic, error)
}

// running is a world whose plan is at its first stage, which holds for 10 minutes.
func running(t *testing.T, traffic func(from, to time.Time) (traffic, error)) *world {
	doc := strings.Replace(lane, `"hold": "24h"`, `"hold": "10m"`, 1)
	return &world{t: t, doc: after(t, doc, rollout.CommandStart, rollout.CommandPromote), now: t0, traffic: traffic}
}

// until evaluates every 10 seconds.
func (w *world) until(end time.Time) {
	w.t.Helper()
	src := rollout.SourceFunc(func(_ context.Context, q rollout.Query) ([]rollout.Sample, error) {
		assert.False(w.t, q.From.Before(plan(w.t, w.doc).State.Entered), "samples of another stage")
		traffic, err := w.traffic(q.From, q.To)
		return traffic.samples(), err
	})
	for ; !w.now.After(end); w.now = w.now.Add(10 * time.Second) {
		r := plan(w.t, w.doc).Look(w.t.Context(), src, w.now)
		data, e, err := rollout.Step([]byte(w.doc), "lane", &r, rollout.Note{Who: "controller", At: w.now})
		require.NoError(w.t, err)
		if data != nil {
			w.doc = string(data)
		}
		if e != nil {
			w.seen = append(w.seen, e.Kind)
		}
	}
}

// perSecond is a steady traffic.
func perSecond(gray, grayErrors, stable, stableErrors float64) func(from, to time.Time) (traffic, error) {
	return func(from, to time.Time) (traffic, error) {
		s := to.Sub(from).Seconds()
		n := func(x float64) uint64 { return uint64(x * s) }
		return traffic{gray: n(gray), grayErrors: n(grayErrors), stable: n(stable), stableErrors: n(stableErrors)}, nil
	}
}

func TestO1_NothingIsKnown(t *testing.T) {
	t.Run("no gray traffic for five windows", func(t *testing.T) {
		w := running(t, perSecond(0, 0, 100, 0.1))
		w.until(t0.Add(25 * time.Minute))
		assert.Empty(t, w.seen)
		assert.Equal(t, 1, plan(t, w.doc).State.Stage)
	})
	t.Run("traffic that stops", func(t *testing.T) {
		healthy := perSecond(10, 0.01, 90, 0.1)
		stop := t0.Add(8 * time.Minute) // before the hold is over
		w := running(t, func(from, to time.Time) (traffic, error) {
			if to.After(stop) {
				to = stop
			}
			if !from.Before(to) {
				return traffic{}, nil
			}
			return healthy(from, to)
		})
		w.until(t0.Add(time.Hour))
		// At the end of the hold the last window still holds two of five minutes.
		assert.Equal(t, []rollout.Kind{rollout.KindAdvanced}, w.seen, "and no further, on samples of the first stage")
		assert.Equal(t, 2, plan(t, w.doc).State.Stage)

		w = running(t, w.traffic)
		stop = t0.Add(5 * time.Minute)
		w.until(t0.Add(time.Hour))
		assert.Empty(t, w.seen, "no promotion on old samples")
	})
	t.Run("a source that fails", func(t *testing.T) {
		w := running(t, func(time.Time, time.Time) (traffic, error) {
			return traffic{gray: 1000, stable: 1000}, errors.New("boom")
		})
		w.until(t0.Add(time.Hour))
		assert.Empty(t, w.seen)
		r := plan(t, w.doc).Look(t.Context(), rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
			return nil, errors.New("boom")
		}), w.now)
		assert.Equal(t, maybe, r.Verdict)
		assert.Contains(t, r.Checks[0].Why, "boom")
	})
	t.Run("one request, one error", func(t *testing.T) {
		w := running(t, func(from, to time.Time) (traffic, error) {
			return traffic{gray: 1, grayErrors: 1, stable: 10_000}, nil
		})
		w.until(t0.Add(time.Hour))
		assert.Empty(t, w.seen, "no rollback, no promotion")
	})
	t.Run("nothing of the new stage yet", func(t *testing.T) {
		w := running(t, perSecond(10, 0, 90, 0))
		r := plan(t, w.doc).Look(t.Context(), nil, t0)
		assert.Equal(t, maybe, r.Verdict)
	})
}

func TestO2_ABreachIsFinal(t *testing.T) {
	bad, good := perSecond(10, 2, 90, 0.1), perSecond(10, 0.01, 90, 0.1)
	badFrom := func(from time.Time) func(from, to time.Time) (traffic, error) {
		return func(a, b time.Time) (traffic, error) {
			if a.Before(from) {
				return good(a, b)
			}
			return bad(a, b)
		}
	}
	t.Run("three bad windows, then ten good", func(t *testing.T) {
		w := running(t, badFrom(t0))
		w.until(t0.Add(15 * time.Minute))
		w.traffic = good
		w.until(t0.Add(65 * time.Minute))
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, w.seen)
		assert.Equal(t, rollout.RolledBack, plan(t, w.doc).State.Phase)
		assert.Equal(t, "off", rules(t, w.doc)["order"])
		assert.Contains(t, plan(t, w.doc).State.Why, "gray requests failed")
	})
	t.Run("a breach while paused", func(t *testing.T) {
		w := running(t, good)
		w.until(t0.Add(5 * time.Minute))
		w.doc = after(t, w.doc, rollout.CommandPause)
		w.until(t0.Add(30 * time.Minute))
		assert.Empty(t, w.seen, "paused")
		w.traffic = badFrom(w.now)
		w.until(t0.Add(time.Hour))
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, w.seen)
		assert.Equal(t, rollout.Paused, plan(t, w.doc).State.Before.Phase)
	})
	t.Run("a breach in the tick that promotes", func(t *testing.T) {
		w := running(t, good)
		w.until(t0.Add(10*time.Minute - time.Second))
		require.Empty(t, w.seen)
		w.traffic = bad
		w.until(t0.Add(10 * time.Minute))
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, w.seen)
	})
	t.Run("without the breach that tick promotes", func(t *testing.T) {
		w := running(t, good)
		w.until(t0.Add(10 * time.Minute))
		assert.Equal(t, []rollout.Kind{rollout.KindAdvanced}, w.seen)
	})
}

func TestO4_StableWithoutErrors(t *testing.T) {
	a := rollout.DefaultAnalysis()
	worse := traffic{gray: 1000, grayErrors: 60, stable: 1000}
	assert.Equal(t, fail, verdicts(a.Judge([]*rollout.Window{worse.window()}, nil))[""])
	same := traffic{gray: 1000, grayErrors: 60, stable: 1000, stableErrors: 60}
	assert.Equal(t, pass, verdicts(a.Judge([]*rollout.Window{same.window()}, nil))[""])

	for _, c := range []struct {
		traffic traffic
		phase   rollout.Phase
	}{{worse, rollout.RolledBack}, {same, rollout.Running}} {
		w := running(t, func(time.Time, time.Time) (traffic, error) { return c.traffic, nil })
		w.until(t0.Add(9 * time.Minute))
		assert.Equal(t, c.phase, plan(t, w.doc).State.Phase)
	}
}

func TestO8_ADeadGrayThatFallsBackNeverPasses(t *testing.T) {
	w := running(t, func(from, to time.Time) (traffic, error) {
		return traffic{fallback: uint64(10 * to.Sub(from).Seconds()), stable: 10_000}, nil
	})
	w.until(t0.Add(3 * time.Hour))
	assert.Empty(t, w.seen)
	assert.Equal(t, 1, plan(t, w.doc).State.Stage)
}

func TestR13_OnePlanOneChoiceOfUsers(t *testing.T) {
	for what, rules := range map[string]string{
		"default salts": `{"id": "order", "services": ["order"], "percent": 10, "tag": "version=v2"},
			{"id": "inventory", "services": ["inventory"], "percent": 10, "tag": "version=v2"}`,
		"one salt, two keys": `{"id": "order", "services": ["order"], "percent": 10, "salt": "s", "tag": "version=v2"},
			{"id": "inventory", "services": ["inventory"], "percent": 10, "salt": "s", "hashBy": ["session"], "tag": "version=v2"}`,
	} {
		doc := `{"rules": [` + rules + `], "plans": {"lane": {"rules": ["order", "inventory"], "stages": [{"percent": 10}, {"percent": 100}]}}}`
		_, err := rollout.ParseDocument([]byte(doc))
		assert.ErrorContains(t, err, "plans.lane.rules[1]: rule inventory draws its users by", what)
		_, _, err = rollout.Change([]byte(doc), "lane", rollout.CommandStart, note(t0))
		assert.Error(t, err, what)
	}

	// The rules of a service may be several, but have to choose the same users together.
	conditions := func(order, orderToo, inventory string) error {
		doc := `{"rules": [{"id": "order", "services": ["order"], "percent": 10, "salt": "s", ` + order + ` "tag": "version=v2"},
			{"id": "too", "services": ["order"], "percent": 10, "salt": "s", ` + orderToo + ` "tag": "version=v2"},
			{"id": "inventory", "services": ["inventory"], "percent": 10, "salt": "s", ` + inventory + ` "tag": "version=v2"}],
			"plans": {"lane": {"rules": ["order", "too", "inventory"], "stages": [{"percent": 10}, {"percent": 100}]}}}`
		_, err := rollout.ParseDocument([]byte(doc))
		return err
	}
	const app, one = `{"attr": "channel", "op": "in", "values": ["ios", "app"]}`, `{"attr": "uid", "op": "prefix", "values": ["1"]}`
	match := func(of ...string) string { return `"match": [` + strings.Join(of, ",") + `],` }
	assert.NoError(t, conditions("", "", ""))
	assert.NoError(t, conditions(match(app, one), match(app, one), match(one, strings.Replace(app, `"ios", "app"`, `"app", "ios"`, 1))), "in another order")
	for _, c := range [][3]string{{match(app), match(app), ""}, {"", "", match(app)}, {match(app), match(one), match(app)}, {match(app), match(one), match(app, one)},
		{"", "", `"until": "2027-01-01T00:00:00Z",`}, {`"from": "2026-01-01T00:00:00Z",`, `"from": "2026-01-01T00:00:00Z",`, ""}} {
		assert.ErrorContains(t, conditions(c[0], c[1], c[2]), "plans.lane.rules[2]: rule inventory does not choose the users of rule order", c)
	}

	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote)
	e, err := rule.NewEngine(set(t, doc))
	require.NoError(t, err)
	gray := 0
	for i := range 20_000 {
		uid := fmt.Sprint(1_000_000 + i*7)
		tag := e.Decide(&rule.Request{Header: func(name string) (string, bool) {
			return uid, strings.EqualFold(name, "X-User-ID")
		}}).Tag
		require.Equal(t, tag.Route("version", "order") == "v2", tag.Route("version", "inventory") == "v2", "user %s is gray on one service alone", uid)
		if tag.Route("version", "order") == "v2" {
			gray++
		}
	}
	assert.InDelta(t, 2000, gray, 200)
}

func TestO6_RollbackWinsEveryRace(t *testing.T) {
	promoted := 0
	for seed := range uint64(100) {
		promoted += rollouttest.RollbackRace(t, rule.NewMemoryStore(), rand.New(rand.NewPCG(6, seed)))
	}
	t.Logf("100 interleavings ended rolled back, after %d promotions that came first", promoted)
	assert.Greater(t, promoted, 10, "some have to, or nothing was tried")
}

func TestNoUpdateIsLost(t *testing.T) {
	const n = 200
	writes := rollouttest.LostUpdates(t, rule.NewMemoryStore(), rand.New(rand.NewPCG(5, 1)), n)
	t.Logf("%d interleavings, %d writes, none was lost", n, writes)
	assert.Greater(t, writes, 2*n)
}
