package rollout_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// asked is a source that remembers what it was asked.
type asked struct {
	mu      sync.Mutex // guards queries
	queries []rollout.Query
	answer  func(q rollout.Query) (traffic, error)
}

func (a *asked) Samples(_ context.Context, q rollout.Query) ([]rollout.Sample, error) {
	a.mu.Lock()
	a.queries = append(a.queries, q)
	a.mu.Unlock()
	c, err := a.answer(q)
	return c.samples(), err
}

func always(c traffic) func(rollout.Query) (traffic, error) {
	return func(rollout.Query) (traffic, error) { return c, nil }
}

var healthy = traffic{gray: 1000, grayErrors: 3, stable: 9000, stableErrors: 30}

func TestLookAsksForItsOwnStageAlone(t *testing.T) {
	p := plan(t, lane)
	p.State = at(rollout.Running, 2)
	src := &asked{answer: always(healthy)}
	r := p.Look(t.Context(), src, t0.Add(2*time.Minute))
	assert.Equal(t, pass, r.Verdict)
	assert.ElementsMatch(t, []rollout.Query{
		{Service: "inventory", Version: "v2", From: t0, To: t0.Add(2 * time.Minute)},
		{Service: "order", Version: "v2", From: t0, To: t0.Add(2 * time.Minute)},
	}, src.queries)
	assert.Equal(t, 2, r.Stage)
	assert.Equal(t, t0, r.Entered)
	assert.EqualValues(t, 9000, r.Baseline["order"].Requests)

	src.queries = nil
	r = p.Look(t.Context(), src, t0.Add(time.Hour))
	assert.Equal(t, pass, r.Verdict)
	require.Len(t, src.queries, 2, "older windows are of no interest where the newest is good")
	assert.Equal(t, t0.Add(55*time.Minute), src.queries[0].From)
	for _, now := range []time.Time{t0, t0.Add(-time.Hour)} {
		assert.Equal(t, maybe, p.Look(t.Context(), src, now).Verdict)
	}
}

func TestLookAsksForOlderWindowsWhereTheNewestIsBad(t *testing.T) {
	p := plan(t, lane)
	p.State, p.Analysis.Services = at(rollout.Running, 2), nil
	p.Targets = p.Targets[1:]
	bad := traffic{gray: 300, grayErrors: 6, stable: 300, stableErrors: 1}
	src := &asked{answer: always(bad)}
	assert.Equal(t, maybe, p.Look(t.Context(), src, t0.Add(7*time.Minute)).Verdict)
	require.Len(t, src.queries, 2)
	assert.Equal(t, rollout.Query{Service: "order", Version: "v2", From: t0, To: t0.Add(2 * time.Minute)}, src.queries[1], "what is left of the stage")

	src.queries = nil
	p.Analysis.Errors.Consecutive = 4
	src.answer = always(traffic{gray: 300, grayErrors: 100, stable: 300})
	assert.Equal(t, maybe, p.Look(t.Context(), src, t0.Add(19*time.Minute)).Verdict, "three windows and a part are not four")
	assert.Len(t, src.queries, 4)
	assert.Equal(t, fail, p.Look(t.Context(), src, t0.Add(20*time.Minute)).Verdict)
}

func TestLookJudgesServicesOneByOne(t *testing.T) {
	p := plan(t, lane)
	p.State = at(rollout.Running, 2)
	src := &asked{answer: func(q rollout.Query) (traffic, error) {
		if q.Service == "inventory" {
			return traffic{gray: 300, grayErrors: 30, stable: 3000, stableErrors: 3}, nil
		}
		return traffic{gray: 100_000, stable: 100_000}, nil // would hide it
	}}
	r := p.Look(t.Context(), src, t0.Add(5*time.Minute))
	assert.Equal(t, fail, r.Verdict)
	for _, c := range r.Checks {
		if c.Verdict == fail {
			assert.Equal(t, rollout.Target{Service: "inventory", Version: "v2"}, c.Target)
		}
	}
	src.answer = func(q rollout.Query) (traffic, error) {
		if q.Service == "inventory" {
			return traffic{}, errors.New("boom")
		}
		return healthy, nil
	}
	assert.Equal(t, maybe, p.Look(t.Context(), src, t0.Add(5*time.Minute)).Verdict)
	p.Targets = nil
	assert.Equal(t, maybe, p.Look(t.Context(), src, t0.Add(5*time.Minute)).Verdict, "a plan that looks at nothing never passes")
}

func TestTargets(t *testing.T) {
	for doc, want := range map[string][]rollout.Target{
		`{"rules":[{"id":"a","percent":0,"tag":"version=v2"}],"plans":{"lane":{"rules":["a"],"stages":[{"percent":100}]}}}`:                                                    {{"", "v2"}},
		`{"rules":[{"id":"a","percent":0,"tag":"version=v2"}],"plans":{"lane":{"rules":["a"],"services":["x","y"],"stages":[{"percent":100}]}}}`:                               {{"x", "v2"}, {"y", "v2"}},
		`{"rules":[{"id":"a","percent":0,"tag":"version=v2;version.x=v7"}],"plans":{"lane":{"rules":["a"],"services":["x","y"],"stages":[{"percent":100}]}}}`:                  {{"x", "v7"}, {"y", "v2"}},
		`{"rules":[{"id":"a","percent":0,"tag":"version.x=v7"}],"plans":{"lane":{"rules":["a"],"stages":[{"percent":100}]}}}`:                                                  {{"x", "v7"}},
		`{"key":"lane","rules":[{"id":"a","services":["x"],"percent":0,"tag":"lane=blue"}],"plans":{"lane":{"rules":["a"],"stages":[{"percent":100}]}}}`:                       {{"x", "blue"}},
		`{"rules":[{"id":"a","services":["x","y"],"percent":0,"tag":"version=v2"}],"plans":{"lane":{"rules":["a"],"analysis":{"services":["y"]},"stages":[{"percent":100}]}}}`: {{"y", "v2"}},
	} {
		assert.Equal(t, want, plan(t, doc).Targets, doc)
	}
}

// The whole way: with everyone on gray, stable is what it was before.
func TestAPlanGoesAllTheWay(t *testing.T) {
	doc := strings.Replace(lane, `"hold": "24h"`, `"hold": "10m"`, 1)
	doc = strings.Replace(doc, `"internal": {"rules": ["testers"]}`, `"internal": {"rules": ["testers"], "hold": "5m"}`, 1)
	w := &world{t: t, doc: after(t, doc, rollout.CommandStart), now: t0}
	w.traffic = func(from, to time.Time) (traffic, error) {
		p := plan(t, w.doc)
		gray := float64(max(p.Percent(p.State.Stage).Thousandths(), 1000)) / 100_000
		return perSecond(100*gray, 0.3*gray, 100*(1-gray), 0.3*(1-gray))(from, to)
	}
	w.until(t0.Add(2 * time.Hour))
	assert.Equal(t, []rollout.Kind{rollout.KindAdvanced, rollout.KindAdvanced, rollout.KindAdvanced, rollout.KindAdvanced, rollout.KindDone}, w.seen)
	assert.Equal(t, "100", rules(t, w.doc)["order"])

	// Worse than stable was, when nobody is stable any more.
	w = &world{t: t, doc: after(t, doc, rollout.CommandStart), now: t0, traffic: w.traffic}
	for plan(t, w.doc).State.Stage < 4 {
		w.until(w.now.Add(10 * time.Second))
	}
	assert.NotEmpty(t, plan(t, w.doc).State.Baseline)
	w.traffic = perSecond(100, 2, 0, 0)
	w.until(w.now.Add(10 * time.Minute))
	assert.Equal(t, rollout.KindRolledBack, w.seen[len(w.seen)-1])
	assert.Contains(t, plan(t, w.doc).State.Why, "stable ones")

	// Promoted to everyone by hand, with nothing to compare with: somebody has to say
	// that it is done.
	w = &world{t: t, doc: after(t, doc, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote), now: t0}
	w.traffic = perSecond(100, 0, 0, 0)
	w.until(t0.Add(time.Hour))
	assert.Empty(t, w.seen)
	assert.Equal(t, rollout.Running, plan(t, w.doc).State.Phase)
}
