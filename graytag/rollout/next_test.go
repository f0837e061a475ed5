package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// report is one about the present stage of p.
func report(p *rollout.Plan, v rollout.Verdict, at time.Time) *rollout.Report {
	return &rollout.Report{
		Verdict: v, Time: at, Stage: p.State.Stage, Entered: p.State.Entered, Targets: p.Targets,
		Checks:   []rollout.Check{{Name: rollout.CheckErrors, Verdict: v, Target: rollout.Target{Service: "order", Version: "v2"}, Why: "it says so"}},
		Baseline: map[string]rollout.Baseline{"order": {Requests: 1000, Errors: 3}},
	}
}

func TestNext(t *testing.T) {
	const nothing = rollout.Kind("")
	for i, c := range []struct {
		from  rollout.State
		mode  rollout.Mode
		on    rollout.OnBreach
		after time.Duration // since t0, when the phase began
		v     rollout.Verdict
		kind  rollout.Kind
		phase rollout.Phase
		stage int
	}{
		// The hold of stage 1 is 24 hours, of stage 2 the default, of stage 3 ten minutes.
		{at(rollout.Running, 1), "", "", 24*time.Hour - 1, pass, nothing, rollout.Running, 1},
		{at(rollout.Running, 1), "", "", 24 * time.Hour, pass, rollout.KindAdvanced, rollout.Running, 2},
		{at(rollout.Running, 1), "", "", 99 * time.Hour, maybe, nothing, rollout.Running, 1},
		{at(rollout.Running, 2), "", "", rollout.DefaultHold, pass, rollout.KindAdvanced, rollout.Running, 3},
		{at(rollout.Running, 3), "", "", 10 * time.Minute, pass, rollout.KindAdvanced, rollout.Running, 4},
		{at(rollout.Running, 4), "", "", time.Hour, pass, rollout.KindDone, rollout.Done, 4},
		{at(rollout.Running, 1), "", "", time.Minute, fail, rollout.KindRolledBack, rollout.RolledBack, 1},
		{at(rollout.Running, 1), "", "", 24 * time.Hour, fail, rollout.KindRolledBack, rollout.RolledBack, 1},
		{at(rollout.Running, 3), "", rollout.BreachPrevious, time.Hour, fail, rollout.KindWentBack, rollout.Paused, 2},
		{at(rollout.Running, 1), "", rollout.BreachPrevious, time.Hour, fail, rollout.KindRolledBack, rollout.RolledBack, 1},
		{at(rollout.InternalOnly, 0), "", rollout.BreachPrevious, time.Hour, fail, rollout.KindRolledBack, rollout.RolledBack, 0},
		{at(rollout.Running, 3), "", rollout.BreachFreeze, time.Hour, fail, rollout.KindFrozen, rollout.Frozen, 3},
		{at(rollout.InternalOnly, 0), "", "", 99 * time.Hour, pass, nothing, rollout.InternalOnly, 0},
		{at(rollout.InternalOnly, 0), "", "", time.Hour, fail, rollout.KindRolledBack, rollout.RolledBack, 0},
		{at(rollout.Paused, 2), "", "", 99 * time.Hour, pass, nothing, rollout.Paused, 2},
		{at(rollout.Paused, 2), "", "", time.Hour, fail, rollout.KindRolledBack, rollout.RolledBack, 2},
		{at(rollout.Frozen, 2), "", "", 99 * time.Hour, pass, nothing, rollout.Frozen, 2},
		{at(rollout.Frozen, 2), "", "", time.Hour, fail, nothing, rollout.Frozen, 2},
		{at(rollout.RolledBack, 2), "", "", 99 * time.Hour, pass, nothing, rollout.RolledBack, 2},
		{at(rollout.RolledBack, 2), "", "", 99 * time.Hour, fail, nothing, rollout.RolledBack, 2},
		{at(rollout.Done, 4), "", "", 99 * time.Hour, fail, nothing, rollout.Done, 4},
		{at(rollout.Done, 4), "", "", 99 * time.Hour, pass, nothing, rollout.Done, 4},
		{at(rollout.Pending, 0), "", "", time.Hour, pass, nothing, rollout.Pending, 0},
		{at(rollout.Running, 1), rollout.ModeSuggest, "", 24 * time.Hour, pass, rollout.KindSuggestAdvance, rollout.Running, 1},
		{at(rollout.Running, 1), rollout.ModeSuggest, "", time.Hour, pass, nothing, rollout.Running, 1},
		{at(rollout.Running, 1), rollout.ModeSuggest, "", time.Hour, fail, rollout.KindSuggestBreach, rollout.Running, 1},
		{at(rollout.Running, 1), rollout.ModeManual, "", 24 * time.Hour, pass, nothing, rollout.Running, 1},
		{at(rollout.Running, 1), rollout.ModeManual, "", time.Hour, fail, nothing, rollout.Running, 1},
	} {
		p := plan(t, lane)
		p.State = c.from
		if c.mode != "" {
			p.Mode = c.mode
		}
		if c.on != "" {
			p.OnBreach = c.on
		}
		before, now := p.Clone(), t0.Add(c.after)
		m := p.Next(report(p, c.v, now), rollout.Note{Who: "controller", At: now})
		assert.Equal(t, c.kind, m.Kind, "%d: %+v", i, c)
		assert.Equal(t, c.phase, m.To.Phase, "%d: %+v", i, c)
		assert.Equal(t, c.stage, m.To.Stage, "%d: %+v", i, c)
		assert.Equal(t, before, p, "the plan stays as it is")
		if m.To.Phase == c.from.Phase && m.To.Stage == c.from.Stage {
			assert.Equal(t, c.from, m.To, "%d: nothing else moves either", i)
			continue
		}
		assert.Equal(t, now, m.To.Since)
		assert.Equal(t, "controller", m.To.Who)
		assert.NotEmpty(t, m.To.Why)
		if c.kind != rollout.KindFrozen {
			assert.Equal(t, now, m.To.Entered)
		}
		if c.kind == rollout.KindAdvanced {
			assert.EqualValues(t, 1000, m.To.Baseline["order"].Requests)
		}
	}
}

func TestTestersAreAloneForTheirHold(t *testing.T) {
	p := plan(t, lane)
	p.State, p.Internal.Hold = at(rollout.InternalOnly, 0), time.Hour
	now := t0.Add(time.Hour)
	assert.Empty(t, p.Next(report(p, maybe, now), note(now)).Kind, "testers are few: somebody has to promote")
	assert.Empty(t, p.Next(report(p, pass, now.Add(-time.Second)), note(now.Add(-time.Second))).Kind)
	m := p.Next(report(p, pass, now), note(now))
	assert.Equal(t, rollout.KindAdvanced, m.Kind)
	assert.Equal(t, 1, m.To.Stage)
}

func TestReportsOfAnotherStageOrTimeDoNotCount(t *testing.T) {
	p := plan(t, lane)
	p.State = at(rollout.Running, 2)
	now := t0.Add(time.Hour)
	good := report(p, pass, now)
	require.Equal(t, rollout.KindAdvanced, p.Next(good, note(now)).Kind)
	for what, change := range map[string]func(*rollout.Report){
		"another stage":             func(r *rollout.Report) { r.Stage = 1 },
		"the same stage, but later": func(r *rollout.Report) { r.Entered = t0.Add(-time.Hour) },
		"an old report":             func(r *rollout.Report) { r.Time = now.Add(-31 * time.Second) },
		"a report of the future":    func(r *rollout.Report) { r.Time = now.Add(31 * time.Second) },
		"another version": func(r *rollout.Report) {
			r.Targets = []rollout.Target{{Service: "inventory", Version: "v2"}, {Service: "order", Version: "v1"}}
		},
	} {
		for _, v := range []rollout.Verdict{pass, fail} {
			r := *report(p, v, now)
			change(&r)
			assert.Empty(t, p.Next(&r, note(now)).Kind, what)
		}
	}
	assert.Empty(t, p.Next(nil, note(now)).Kind)
	late := report(p, pass, now.Add(-29*time.Second))
	assert.Equal(t, rollout.KindAdvanced, p.Next(late, note(now)).Kind)
}

func TestTheSameEventHasTheSameKey(t *testing.T) {
	data, err := rollout.SetState([]byte(withMode(lane, rollout.ModeSuggest)), "lane", at(rollout.Running, 1))
	require.NoError(t, err)
	doc, p := string(data), plan(t, string(data))
	var keys []string
	for i := range 3 {
		now := t0.Add(25*time.Hour + time.Duration(i)*10*time.Second)
		changed, e, err := rollout.Step([]byte(doc), "lane", report(p, pass, now), note(now))
		require.NoError(t, err)
		assert.Nil(t, changed)
		require.NotNil(t, e)
		keys = append(keys, e.Key())
	}
	assert.Equal(t, keys[0], keys[1])
	assert.Equal(t, keys[0], keys[2])
}
