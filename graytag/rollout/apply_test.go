package rollout_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// Only what has to change changes: people lay their documents out.
func TestSetStateKeepsTheText(t *testing.T) {
	data, err := rollout.SetState([]byte(lane), "lane", rollout.State{Phase: rollout.Running, Stage: 2, Since: t0, Entered: t0, Who: "<ann>"})
	require.NoError(t, err)
	want := strings.NewReplacer(
		`"services": ["order"], "percent": 0`, `"services": ["order"], "percent": 10`,
		"\n     \"percent\": 0", "\n     \"percent\": 10",
		`{"percent": 100}]`, `{"percent": 100}],`+"\n"+`      "state": {"phase":"running","stage":2,"since":"2026-12-01T08:00:00Z","who":"<ann>"}`,
	).Replace(lane)
	assert.Equal(t, want, string(data))
	again, err := rollout.SetState(data, "lane", plan(t, string(data)).State)
	require.NoError(t, err)
	assert.Equal(t, string(data), string(again))
}

func TestSetStateOfCompactAndOddText(t *testing.T) {
	for _, doc := range []string{
		`{"rules":[{"id":"order","percent":0,"tag":"version=v2"}],"plans":{"lane":{"rules":["order"],"stages":[{"percent":100}]}}}`,
		`{"plans":{"lane":{"state":{},"stages":[{"percent":1e2}],"rules":["order"]}},"rules":[{"\u0070ercent":0,"tag":"version=v2","\u0069d":"order","enabled":false}]}`,
		"\t{ \"meta\" : {\"a\\\"{\" : [\"}\\\\\" , {}, [ ] ,1.5e3, null,true]} ,\r\n\"plans\":\r\n{ \"lane\" :{\"rules\" :[ \"order\"] , \"stages\": [ { \"percent\" : 100 } ] } } , \"rules\" : [ { \"id\" : \"x\" ,\"tag\":\"version=v1\"},{ \"tag\" : \"version=v2\" , \"id\" : \"order\" , \"percent\" : 0 } ] } \n",
	} {
		var before any
		require.NoError(t, json.Unmarshal([]byte(doc), &before))
		running := after(t, doc, rollout.CommandStart)
		assert.Equal(t, "100", rules(t, running)["order"], running)
		back := after(t, running, rollout.CommandRollback)
		assert.Equal(t, "off", rules(t, back)["order"], back)
		assert.Len(t, set(t, back).Rules, len(set(t, doc).Rules))
		if m := set(t, doc).Meta; m != nil {
			assert.Equal(t, m, set(t, back).Meta)
		}
	}
}

func TestSetStateRefusesWhatMakesNoPlan(t *testing.T) {
	_, err := rollout.SetState([]byte(lane), "lane", rollout.State{Phase: rollout.Running, Stage: 9, Since: t0})
	assert.ErrorContains(t, err, "plans.lane.state.stage: 9")
	_, err = rollout.SetState([]byte(lane), "nobody", rollout.State{})
	assert.ErrorContains(t, err, `no plan "nobody"`)
	_, err = rollout.SetState([]byte(`{"rulez": []}`), "lane", rollout.State{})
	assert.ErrorContains(t, err, "rulez")
	_, err = rollout.SetState([]byte(strings.Replace(lane, `"salt": "lane",  "tag"`, `"tag"`, 1)), "lane", rollout.State{Phase: rollout.Running, Stage: 1, Since: t0})
	assert.ErrorContains(t, err, "plans.lane.rules[1]")
}

func TestSetStop(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	data, err := rollout.SetStop([]byte(doc), true, t0)
	require.NoError(t, err)
	assert.True(t, set(t, string(data)).Stop)
	assert.Equal(t, rules(t, doc), rules(t, string(data)))
	again, err := rollout.SetStop(data, true, t0)
	require.NoError(t, err)
	assert.Equal(t, data, again)

	later := t0.Add(time.Hour)
	off, err := rollout.SetStop(data, false, later)
	require.NoError(t, err)
	assert.False(t, set(t, string(off)).Stop)
	s := plan(t, string(off)).State
	assert.Equal(t, rollout.Running, s.Phase)
	assert.Equal(t, later, s.Since, "the hold starts anew")
	assert.Equal(t, later, s.Entered, "and so do the samples")

	// Engines would not take the stop in a document that is faulty.
	for _, bad := range []string{"", "nonsense", `{"rules": [{"id": ""}]}`} {
		data, err := rollout.SetStop([]byte(bad), true, t0)
		require.NoError(t, err)
		assert.True(t, set(t, string(data)).Stop)
		_, err = rollout.SetStop([]byte(bad), false, t0)
		assert.Error(t, err)
	}
}

// While everything is stopped there is no evidence that could promote.
func TestStepWhileStopped(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	stopped, err := rollout.SetStop([]byte(doc), true, t0)
	require.NoError(t, err)
	p, now := plan(t, doc), t0.Add(25*time.Hour)
	data, e, err := rollout.Step([]byte(doc), "lane", report(p, pass, now), note(now))
	require.NoError(t, err)
	assert.Equal(t, rollout.KindAdvanced, e.Kind)
	assert.Equal(t, "10", rules(t, string(data))["order"])
	data, e, err = rollout.Step(stopped, "lane", report(p, pass, now), note(now))
	require.NoError(t, err)
	assert.Nil(t, data)
	assert.Nil(t, e)
	data, e, err = rollout.Step(stopped, "lane", report(p, fail, now), note(now))
	require.NoError(t, err)
	assert.True(t, e.Breach())
	assert.Equal(t, "off", rules(t, string(data))["order"])
	assert.True(t, set(t, string(data)).Stop)
}

func TestFinish(t *testing.T) {
	doc := lane
	ready := map[string]int{"order": 3}
	count := func(service string) int { return ready[service] }
	_, _, err := rollout.Finish([]byte(doc), "lane", count, note(t0))
	var refused *rollout.CommandError
	require.ErrorAs(t, err, &refused, "a plan that is not done")

	doc = after(t, doc, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote)
	_, _, err = rollout.Finish([]byte(doc), "lane", count, note(t0))
	var missing *rollout.NotReadyError
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, []string{"inventory"}, missing.Missing)
	_, _, err = rollout.Finish([]byte(doc), "lane", nil, note(t0))
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, []string{"inventory", "order"}, missing.Missing)

	ready["inventory"] = 1
	data, e, err := rollout.Finish([]byte(doc), "lane", count, note(t0))
	require.NoError(t, err)
	assert.Equal(t, rollout.KindFinished, e.Kind)
	assert.Equal(t, map[string]string{"other": "7"}, rules(t, string(data)))
	assert.Empty(t, set(t, string(data)).Plans)
	assert.Equal(t, "{\n  \"rules\": [\n    {\"id\": \"other\", \"percent\": 7, \"tag\": \"version=x\"}\n  ],\n  \"default\": \"version=stable\",\n  \"plans\": {},\n  \"meta\": {\"note\": \"Überall <&>\"}\n}\n", string(data))
}

func TestFinishWantsToKnowTheServices(t *testing.T) {
	doc := `{"rules":[{"id":"all","percent":0,"tag":"version=v2"}],"plans":{"lane":{"rules":["all"],"stages":[{"percent":100}]}}}`
	doc = after(t, doc, rollout.CommandStart, rollout.CommandPromote)
	_, _, err := rollout.Finish([]byte(doc), "lane", func(string) int { return 1 }, note(t0))
	assert.ErrorContains(t, err, "plans.lane.services: name the services")
	doc = strings.Replace(doc, `"stages"`, `"services":["order"],"stages"`, 1)
	data, _, err := rollout.Finish([]byte(doc), "lane", func(string) int { return 1 }, note(t0))
	require.NoError(t, err)
	assert.Equal(t, `{"rules":[],"plans":{}}`, string(data))
}

// A service that only testers are gray on, or that only a rule for all services
// reaches, would be rolled back as well.
func TestFinishForgetsNoService(t *testing.T) {
	doc := strings.Replace(lane, `{"id": "testers", "priority": 100,`, `{"id": "testers", "priority": 100, "services": ["payment", "order"],`, 1)
	doc = after(t, doc, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote, rollout.CommandPromote)
	ready := func(service string) int { return strings.Count("order inventory", service) }
	_, _, err := rollout.Finish([]byte(doc), "lane", ready, note(t0))
	var missing *rollout.NotReadyError
	require.ErrorAs(t, err, &missing)
	assert.Equal(t, []string{"payment"}, missing.Missing)

	doc = `{"rules":[{"id":"all","percent":0,"salt":"s","tag":"version=v2;version.cart=v3"},{"id":"order","services":["order"],"percent":0,"salt":"s","tag":"version=v2"}],
		"plans":{"lane":{"rules":["all","order"],"stages":[{"percent":100}]}}}`
	assert.Equal(t, []rollout.Target{{Version: "v2"}, {Service: "cart", Version: "v3"}, {Service: "order", Version: "v2"}}, plan(t, doc).Targets)
	doc = after(t, doc, rollout.CommandStart, rollout.CommandPromote)
	_, _, err = rollout.Finish([]byte(doc), "lane", ready, note(t0))
	assert.ErrorContains(t, err, "plans.lane.services: name the services")
}
