package rollout_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

func TestParseFillsInDefaults(t *testing.T) {
	p := plan(t, lane)
	assert.Equal(t, "lane", p.ID)
	assert.Equal(t, rollout.State{Phase: rollout.Pending}, p.State)
	assert.Equal(t, rollout.ModeAuto, p.Mode)
	assert.Equal(t, rollout.BreachRollback, p.OnBreach)
	assert.Equal(t, rollout.DefaultAnalysis(), p.Analysis)
	assert.Equal(t, 24*time.Hour, p.Stages[0].Hold)
	assert.Equal(t, rollout.DefaultHold, p.Stages[1].Hold)
	assert.Equal(t, []string{"inventory", "order"}, p.Services)
	assert.Equal(t, []rollout.Target{{Service: "inventory", Version: "v2"}, {Service: "order", Version: "v2"}}, p.Targets)
	assert.Equal(t, "0", p.Percent(0).String())
	assert.Equal(t, "1", p.Percent(1).String())
	assert.Equal(t, "100", p.Percent(4).String())
}

// everything is a plan with all that there is.
const everything = `{"id":"lane","rules":["order"],"internal":{"rules":["testers"],"hold":"1h0m0s"},"stages":[{"percent":0.5,"hold":"24h0m0s"},{"percent":100,"hold":"0s"}],` +
	`"services":["cart","order"],"analysis":{"window":"1m0s","every":"5s","minMatched":0.5,"level":0.001,"services":["order"],` +
	`"errors":{"off":true,"ratio":3,"floor":0.02,"max":0.1,"minRequests":7,"consecutive":2},` +
	`"latency":{"ratio":1.5,"floor":"20ms","max":"1s","minRequests":8,"consecutive":3}},"onBreach":"previous","mode":"suggest",` +
	`"state":{"phase":"rolled_back","stage":1,"since":"2026-12-01T09:00:00Z","who":"bob","why":"<it> & that","before":{"phase":"paused","stage":1,"since":"2026-12-01T08:30:00.5Z","entered":"2026-12-01T08:00:00Z",` +
	`"baseline":{"order":{"requests":1000,"errors":5,"p99":"12ms"}}}}}`

func TestParseReadsEverything(t *testing.T) {
	p := plan(t, withPlan(everything))
	assert.Equal(t, rollout.Analysis{
		Window: time.Minute, Every: 5 * time.Second, MinMatched: 0.5, Level: 0.001, Services: []string{"order"},
		Errors:  rollout.ErrorCheck{Off: true, Ratio: 3, Floor: 0.02, Max: 0.1, MinRequests: 7, Consecutive: 2},
		Latency: rollout.LatencyCheck{Ratio: 1.5, Floor: 20 * time.Millisecond, Max: time.Second, MinRequests: 8, Consecutive: 3},
	}, p.Analysis)
	assert.Equal(t, rollout.Baseline{Requests: 1000, Errors: 5, P99: 12 * time.Millisecond}, p.State.Before.Baseline["order"])
	text, err := p.MarshalJSON()
	require.NoError(t, err)
	assert.Equal(t, everything, string(text), "nothing is lost")
}

// withPlan is the lane with another plan.
func withPlan(plan string) string {
	i := strings.Index(lane, `"plans": {`)
	j := strings.Index(lane, `"meta"`)
	return lane[:i] + `"plans": {"lane": ` + plan + `}, ` + lane[j:]
}

// manyFaults is a plan with many faults.
const manyFaults = `{"id": "x", "ruels": [], "rules": ["order", "order", "nobody", 5, "testers"], "internal": {"rules": ["other"], "hold": "soon"},
	"stages": [{"percent": 10}, {"percent": 10.0001, "hold": "-1s"}, {"hold": 5}, {"percent": null}], "services": [""],
	"analysis": {"window": "1ms", "every": "2h", "minMatched": 1.5, "level": "small", "services": "order",
		"errors": {"ratio": 0.5, "floor": -1, "minRequests": 1.5, "consecutive": 11}, "latency": {"max": "3m"}},
	"onBreach": "panic", "mode": 7,
	"state": {"phase": "lost", "stage": -1, "since": "yesterday", "before": {"before": {}}, "baseline": {"order": {"requests": 1, "errors": 2}}}}`

func TestParseFindsEveryFault(t *testing.T) {
	_, err := rollout.ParseDocument([]byte(withPlan(manyFaults)))
	require.Error(t, err)
	var paths []string
	for _, f := range rollout.Faults(err) {
		paths = append(paths, strings.TrimPrefix(f.Path, "plans.lane."))
		assert.NotEmpty(t, f.Reason)
	}
	assert.ElementsMatch(t, []string{
		"id", "ruels", "rules[1]", "rules[2]", "rules[3]", "rules[4]", "internal.rules[0]", "internal.hold",
		"stages[1].percent", "stages[1].hold", "stages[2].hold", "stages[3].percent", "services[0]",
		"analysis.window", "analysis.every", "analysis.minMatched", "analysis.level", "analysis.services",
		"analysis.errors.ratio", "analysis.errors.floor", "analysis.errors.minRequests", "analysis.errors.consecutive", "analysis.latency.max",
		"onBreach", "mode", "state.phase", "state.stage", "state.since", "state.before.before", "state.baseline.order.errors",
	}, paths)
	var one *rollout.Error
	assert.ErrorAs(t, err, &one)
}

func TestParseRefusesPlansThatMakeNoSense(t *testing.T) {
	stages := func(s string) string { return `{"rules": ["order"], "stages": [` + s + `]}` }
	state := func(s string) string {
		return `{"rules": ["order"], "stages": [{"percent": 5}, {"percent": 100}], "state": ` + s + `}`
	}
	for plan, want := range map[string]string{
		`5`:                                     "plans.lane: must be an object",
		`{}`:                                    "plans.lane.rules: one rule at least is required; plans.lane.stages: the last stage has to be 100",
		stages(``):                              "plans.lane.stages: the last stage has to be 100",
		stages(`{}`):                            "stages[0].percent: required",
		stages(`{"percent":0},{"percent":100}`): "stages[0].percent: 0: testers",
		stages(`{"percent":10},{"percent":10},{"percent":100}`):                                                                                                "stages[1].percent: 10 after 10",
		stages(`{"percent":20},{"percent":10},{"percent":100}`):                                                                                                "stages[1].percent: 10 after 20",
		stages(`{"percent":10},{"percent":50}`):                                                                                                                "stages: the last stage has to be 100",
		stages(strings.Repeat(`{"percent":1},`, 60) + `{"percent":100}`):                                                                                       "stages: 61 elements, at most 50",
		`{"rules": ["testers"], "stages": [{"percent": 100}]}`:                                                                                                 "rules[0]: rule testers has no percent",
		`{"rules": ["order"], "internal": {"rules": ["order"]}, "stages": [{"percent": 100}]}`:                                                                 "internal.rules[0]: rule order is among",
		`{"rules": ["order"], "internal": {"rules": ["inventory"]}, "stages": [{"percent": 100}]}`:                                                             "internal.rules[0]: rule inventory has a percent",
		`{"rules": ["order"], "stages": [{"percent": 100}], "analysis": {"services": ["cart"]}}`:                                                               `analysis.services[0]: "cart" is not among`,
		`{"rules": ["order", "inventory"], "stages": [{"percent": 100}], "services": ["order", "cart"]}`:                                                       `services: "inventory" is missing`,
		`{"rules": ["order"], "stages": [{"percent": 100}], "services": ["order", "cart"], "analysis": {"services": ["order", "cart"]}}`:                       `analysis.services[1]: no rule of the plan gives "cart" a version`,
		state(`{"phase": "running", "since": "2026-12-01T00:00:00Z"}`):                                                                                         "state.stage: 0: must be between 1 and 2",
		state(`{"phase": "running", "stage": 3, "since": "2026-12-01T00:00:00Z"}`):                                                                             "state.stage: 3: must be between 1 and 2",
		state(`{"phase": "done", "stage": 1, "since": "2026-12-01T00:00:00Z"}`):                                                                                "state.stage: 1: must be between 2 and 2",
		state(`{"phase": "running", "stage": 1}`):                                                                                                              "state.since: required",
		state(`{"phase": "paused", "stage": 1, "since": "2026-12-01T00:00:00Z", "before": {"phase": "running", "stage": 1, "since": "2026-12-01T00:00:00Z"}}`): "state.before: only a plan that is rolled_back",
		state(`{"phase": "rolled_back", "since": "2026-12-01T00:00:00Z", "before": {"phase": "pending"}}`):                                                     "state.before.phase: pending",
		`{"rules": ["order"], "stages": [{"percent": 100}], "services": ["a b"]}`:                                                                              "services[0]: not the name of a service",
	} {
		plans, err := rollout.ParseDocument([]byte(withPlan(plan)))
		assert.ErrorContains(t, err, want, plan)
		assert.Empty(t, plans, plan)
	}
	noVersion := strings.Replace(lane, `"salt": "lane",  "tag": "version=v2"`, `"salt": "lane", "tag": "lane=x"`, 1)
	_, err := rollout.ParseDocument([]byte(noVersion))
	assert.ErrorContains(t, err, "plans.lane.rules[0]: the tag of rule order")
}

// One bad plan must not keep the others from being rolled back.
func TestAFaultyPlanLeavesTheOthersAlone(t *testing.T) {
	doc := strings.Replace(lane, `"plans": {`, `"plans": {"bad id!": {}, "bad": {"rules": ["nobody"]}, `, 1)
	plans, err := rollout.ParseDocument([]byte(doc))
	assert.Len(t, plans, 1)
	assert.NotNil(t, plans["lane"])
	assert.ErrorContains(t, err, "plans.bad id!: an id consists of")
	assert.ErrorContains(t, err, "plans.bad.rules[0]: no rule has the id")

	_, err = rollout.SetState([]byte(strings.Replace(doc, `"bad id!"`, `"bad.2"`, 1)), "bad", rollout.State{})
	assert.ErrorContains(t, err, "plans.bad.rules[0]")
	assert.NotContains(t, err.Error(), "plans.bad.2", "only its own faults")
}

func TestARuleIsGovernedByOnePlan(t *testing.T) {
	second := `"aaa": {"rules": ["order"], "stages": [{"percent": 100}]}, `
	doc := strings.Replace(lane, `"plans": {`, `"plans": {`+second, 1)
	plans, err := rollout.ParseDocument([]byte(doc))
	require.NoError(t, err, "one that is pending governs nothing")
	require.Len(t, plans, 2)
	doc = after(t, doc, rollout.CommandStart)
	_, _, err = rollout.Change([]byte(doc), "aaa", rollout.CommandStart, note(t0))
	assert.ErrorContains(t, err, "plans.aaa.rules: one of the rules is governed by plan lane", "at the same time")
	later := note(t0.Add(time.Hour))
	_, _, err = rollout.Change([]byte(doc), "aaa", rollout.CommandStart, later)
	assert.ErrorContains(t, err, "plans.aaa.rules[0]: rule order is governed by plan lane")

	data, _, err := rollout.Change([]byte(doc), "lane", rollout.CommandRollback, later)
	require.NoError(t, err)
	data, _, err = rollout.Change(data, "aaa", rollout.CommandStart, later)
	require.NoError(t, err, "what is rolled back governs nothing")
	_, _, err = rollout.Change(data, "lane", rollout.CommandRestore, later)
	assert.ErrorContains(t, err, "plans.lane.rules[0]: rule order is governed by plan aaa")
	data, e, err := rollout.Change(data, "aaa", rollout.CommandRollback, later)
	require.NoError(t, err)
	require.NotNil(t, e)
	assert.Equal(t, "off", rules(t, string(data))["order"])
}

func TestPlansAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range rollout.MaxPlans + 1 {
		fmt.Fprintf(&b, `"p%03d": {"rules": ["order"], "stages": [{"percent": 100}]}, `, i)
	}
	plans, err := rollout.ParseDocument([]byte(strings.Replace(lane, `"plans": {`, `"plans": {`+b.String(), 1)))
	assert.ErrorContains(t, err, "plans: 102 plans, at most 100")
	assert.Len(t, plans, rollout.MaxPlans)

	big := fmt.Sprintf(`{"rules": [%q], "stages": [{"percent": 100}]}`, strings.Repeat("x", rollout.MaxPlanBytes))
	_, err = rollout.ParseDocument([]byte(withPlan(big)))
	assert.ErrorContains(t, err, "plans.lane: 26", "bytes, at most")
}

// What package rule makes of a document with plans is its own business: engines
// serve it, whatever is in the plans.
func TestEnginesDoNotLookAtPlans(t *testing.T) {
	for _, doc := range []string{lane, withPlan(`{"nonsense": [1, 2]}`)} {
		s, err := rule.Parse([]byte(doc))
		require.NoError(t, err)
		_, err = rule.NewEngine(s)
		assert.NoError(t, err)
	}
}

func TestMarshalJSONOfAPlanMadeInCode(t *testing.T) {
	p := &rollout.Plan{ID: "p", Rules: []string{"order"}, Stages: []rollout.Stage{{Percent: rule.MustPercent("100"), Hold: time.Minute}}}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	assert.Equal(t, `{"id":"p","rules":["order"],"stages":[{"percent":100,"hold":"1m0s"}]}`, string(text))
	p = &rollout.Plan{ID: "lane", Rules: []string{"order"}, Stages: p.Stages, Internal: rollout.Internal{Hold: time.Minute}}
	text, err = json.Marshal(p)
	require.NoError(t, err)
	assert.Equal(t, time.Minute, plan(t, withPlan(string(text))).Internal.Hold)
}
