package rollout_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// at is a state that began at t0.
func at(phase rollout.Phase, stage int) rollout.State {
	s := rollout.State{Phase: phase, Stage: stage, Since: t0, Entered: t0, Who: "bob"}
	if phase == rollout.RolledBack {
		s.Before = &rollout.State{Phase: rollout.Running, Stage: stage, Since: t0, Entered: t0}
	}
	if phase == rollout.Pending {
		s = rollout.State{Phase: phase}
	}
	return s
}

func TestCommands(t *testing.T) {
	const no = "no"
	phases := []rollout.Phase{rollout.Pending, rollout.InternalOnly, rollout.Running, rollout.Paused, rollout.Frozen, rollout.RolledBack, rollout.Done}
	stages := []int{0, 0, 2, 2, 2, 2, 4}
	want := map[rollout.Command][]string{
		rollout.CommandStart:    {"internal", no, no, no, no, "internal", no},
		rollout.CommandPause:    {no, "paused", "paused", no, no, no, no},
		rollout.CommandResume:   {no, no, no, "running", "running", no, no},
		rollout.CommandPromote:  {no, "running", "running", "running", "running", no, no},
		rollout.CommandRollback: {"rolled_back", "rolled_back", "rolled_back", "rolled_back", "rolled_back", "rolled_back", "rolled_back"},
		rollout.CommandFreeze:   {no, "frozen", "frozen", "frozen", no, no, no},
		rollout.CommandRestore:  {no, no, no, no, no, "running", no},
		"dance":                 {no, no, no, no, no, no, no},
	}
	require.Len(t, want, len(rollout.Commands())+1)
	n := note(t0.Add(time.Hour))
	for c, row := range want {
		for i, phase := range phases {
			p := plan(t, lane)
			p.State = at(phase, stages[i])
			got, err := p.Do(c, n)
			if row[i] == no {
				var refused *rollout.CommandError
				require.ErrorAs(t, err, &refused, "%s from %s", c, phase)
				assert.Equal(t, rollout.CommandError{Plan: "lane", Command: c, Phase: phase}, *refused)
				continue
			}
			require.NoError(t, err, "%s from %s", c, phase)
			assert.Equal(t, row[i], string(got.Phase), "%s from %s", c, phase)
			assert.Equal(t, at(phase, stages[i]), p.State, "the plan stays as it is")
			if c == rollout.CommandRollback && phase == rollout.RolledBack {
				assert.Equal(t, p.State, got)
				continue
			}
			assert.Equal(t, "ann", got.Who)
			assert.Equal(t, "a test", got.Why)
			assert.Equal(t, n.At, got.Since)
			moved := c == rollout.CommandStart || c == rollout.CommandPromote || c == rollout.CommandRollback || c == rollout.CommandRestore
			if moved {
				assert.Equal(t, n.At, got.Entered, "%s from %s: samples from before do not count", c, phase)
			} else {
				assert.Equal(t, t0, got.Entered, "%s from %s", c, phase)
			}
		}
	}
}

func TestWhatIsNoCommand(t *testing.T) {
	for _, c := range []rollout.Command{"dance", "finish", ""} {
		p := plan(t, lane)
		p.State = at(rollout.Done, 4)
		_, err := p.Do(c, note(t0))
		assert.EqualError(t, err, fmt.Sprintf("rollout: lane: no command %q; there are [start pause resume promote rollback freeze restore]", c))
	}
}

func TestPromoteGoesThroughAllStages(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart)
	assert.Equal(t, map[string]string{"testers": "", "order": "0", "inventory": "0", "other": "7"}, rules(t, doc))
	for i, percent := range []string{"1", "10", "50", "100", "100"} {
		data, e, err := rollout.Change([]byte(doc), "lane", rollout.CommandPromote, note(t0))
		require.NoError(t, err)
		doc = string(data)
		assert.Equal(t, i == 4, e.Kind == rollout.KindDone, "the end is the same, whoever brings it about")
		assert.Equal(t, map[string]string{"testers": "", "order": percent, "inventory": percent, "other": "7"}, rules(t, doc))
	}
	assert.Equal(t, rollout.Done, plan(t, doc).State.Phase)
}

func TestStartWithoutTesters(t *testing.T) {
	doc := after(t, strings.Replace(lane, `"internal": {"rules": ["testers"]},`, "", 1), rollout.CommandStart)
	assert.Equal(t, "1", rules(t, doc)["order"])
	assert.Equal(t, rollout.Running, plan(t, doc).State.Phase)
}

func TestRollbackAndRestore(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote)
	back := after(t, doc, rollout.CommandRollback)
	assert.Equal(t, map[string]string{"testers": "off", "order": "off", "inventory": "off", "other": "7"}, rules(t, back))
	s := plan(t, back).State
	assert.Equal(t, rollout.RolledBack, s.Phase)
	assert.Equal(t, plan(t, doc).State, *s.Before)

	data, e, err := rollout.Change([]byte(back), "lane", rollout.CommandRollback, note(t0.Add(time.Hour)))
	require.NoError(t, err)
	assert.Nil(t, data, "a second one changes nothing")
	assert.Nil(t, e)
	byHand := strings.Replace(back, `"tag": "version=v2",  "enabled": false`, `"tag": "version=v2"`, 1)
	require.NotEqual(t, back, byHand)
	assert.Equal(t, "off", rules(t, after(t, byHand, rollout.CommandRollback))["order"], "but for a rule that somebody has switched on")

	laidOut := strings.Replace(back, `"state": {"phase":"rolled_back",`, `"state": { "phase": "rolled_back",`, 1)
	require.NotEqual(t, back, laidOut)
	data, e, err = rollout.Change([]byte(laidOut), "lane", rollout.CommandRollback, note(t0.Add(time.Hour)))
	require.NoError(t, err)
	assert.Nil(t, data, "nor one after somebody has laid the state out")
	assert.Nil(t, e)

	restored := after(t, back, rollout.CommandRestore)
	assert.Equal(t, rules(t, doc), rules(t, restored))
	assert.Equal(t, rollout.Running, plan(t, restored).State.Phase)
	assert.Equal(t, 2, plan(t, restored).State.Stage)
	assert.Nil(t, plan(t, restored).State.Before)
	again := after(t, back, rollout.CommandStart)
	assert.Equal(t, map[string]string{"testers": "", "order": "0", "inventory": "0", "other": "7"}, rules(t, again))
}

// A rollback must work when nothing else does.
func TestRollbackOfAFaultyPlan(t *testing.T) {
	running := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	for what, doc := range map[string]string{
		"a rule is gone":      strings.Replace(running, `"id": "order"`, `"id": "orders"`, 1),
		"stages are bad":      strings.Replace(running, `{"percent": 10}`, `{"percent": "ten"}`, 1),
		"a rule stands twice": strings.Replace(running, `"rules": ["order", "inventory"]`, `"rules": ["order", "inventory", "inventory", 5, null, {"a": []}]`, 1),
		"the state is bad":    strings.Replace(running, `"phase":"running"`, `"phase":"walking"`, 1),
		"salts differ":        strings.Replace(running, `"salt": "lane",  "tag"`, `"salt": "x", "tag"`, 1),
		"internal is bad":     strings.Replace(running, `"internal": {"rules": ["testers"]}`, `"internal": ["testers"]`, 1),
	} {
		require.NotEqual(t, running, doc, what)
		_, err := rollout.ParseDocument([]byte(doc))
		require.Error(t, err, what)
		_, _, err = rollout.Change([]byte(doc), "lane", rollout.CommandPause, note(t0))
		assert.Error(t, err, what)
		data, e, err := rollout.Change([]byte(doc), "lane", rollout.CommandRollback, note(t0))
		require.NoError(t, err, what)
		require.NotNil(t, e, what)
		assert.Equal(t, "off", rules(t, string(data))["inventory"], what)
		assert.Equal(t, "7", rules(t, string(data))["other"], what)
		if what == "a rule is gone" {
			assert.Equal(t, `a test (no rule has the id ["order"])`, e.Why, "it may go by another id, and be on")
		} else {
			assert.Equal(t, "a test", e.Why, what)
		}
	}
	_, _, err := rollout.Change([]byte(lane), "nobody", rollout.CommandRollback, note(t0))
	var none *rollout.NoPlanError
	assert.ErrorAs(t, err, &none)
	_, _, err = rollout.Change([]byte(withPlan(`5`)), "lane", rollout.CommandRollback, note(t0))
	assert.ErrorContains(t, err, "plans.lane: must be an object")
}

func TestNotesAreCut(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	data, e, err := rollout.Change([]byte(lane), "lane", rollout.CommandStart, rollout.Note{Who: long, Why: long + "\xff", At: t0})
	require.NoError(t, err)
	assert.LessOrEqual(t, len(e.Who), rollout.MaxWhoBytes)
	s := plan(t, string(data)).State
	assert.LessOrEqual(t, len(s.Why), rollout.MaxWhyBytes)
	assert.Equal(t, e.To, s)
}

// Nothing but a time is missing: what comes of it has to be a plan that can be restored.
func TestRollbackWithoutATime(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	data, _, err := rollout.Change([]byte(doc), "lane", rollout.CommandRollback, rollout.Note{})
	require.NoError(t, err)
	assert.Equal(t, rules(t, doc), rules(t, after(t, string(data), rollout.CommandRestore)))
}
