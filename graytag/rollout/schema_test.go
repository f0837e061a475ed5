package rollout_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/schematest"
)

func readObject(t testing.TB, data []byte) (o schematest.Object) {
	t.Helper()
	require.NoError(t, json.Unmarshal(data, &o))
	return o
}

// The schema is that of package rule, where plans are open, and the plans.
func TestSchemaIsThatOfRulesAndPlans(t *testing.T) {
	ours, theirs := readObject(t, rollout.Schema()), readObject(t, rule.Schema())
	for name := range theirs {
		switch name {
		case "$id", "title":
			assert.NotEqual(t, theirs[name], ours[name], name)
		case "$defs":
			for def, s := range theirs[name].(schematest.Object) {
				assert.Equal(t, s, ours[name].(schematest.Object)[def], def)
			}
		case "properties":
			a, b := ours[name].(schematest.Object), theirs[name].(schematest.Object)
			a["plans"], b["plans"] = nil, nil
			assert.Equal(t, b, a)
		default:
			assert.Equal(t, theirs[name], ours[name], name)
		}
	}
	assert.Len(t, ours, len(theirs))
	rollout.Schema()[0] = 'x'
	assert.Equal(t, byte('{'), rollout.Schema()[0], "a copy")
}

// Each object of the schema has the fields that Parse knows, with a description.
func TestSchemaHasTheFieldsThatParseKnows(t *testing.T) {
	const odd = `{"nobody": 1}`
	_, err := rollout.ParseDocument([]byte(withPlan(`{"nobody": 1, "internal": ` + odd + `, "stages": [` + odd + `],
		"analysis": {"nobody": 1, "errors": ` + odd + `, "latency": ` + odd + `},
		"state": {"nobody": 1, "baseline": {"order": ` + odd + `}}}`)))
	root := readObject(t, rollout.Schema())
	unknown := regexp.MustCompile(`^unknown field; there are (.*)$`)
	objects := 0
	for _, f := range rollout.Faults(err) {
		known := unknown.FindStringSubmatch(f.Reason)
		if known == nil {
			continue
		}
		objects++
		s := schematest.Resolve(root, root["$defs"].(schematest.Object)["plan"].(schematest.Object))
		path := strings.TrimSuffix(strings.TrimPrefix(f.Path, "plans.lane."), "nobody")
		for step := range strings.SplitSeq(strings.Trim(path, "."), ".") {
			name, element := strings.CutSuffix(step, "[0]")
			switch p, ok := s["properties"].(schematest.Object); {
			case name == "":
				continue
			case ok:
				s = p[name].(schematest.Object)
			default:
				s = s["additionalProperties"].(schematest.Object)
			}
			if element {
				s = s["items"].(schematest.Object)
			}
			s = schematest.Resolve(root, s)
		}
		assert.Equal(t, false, s["additionalProperties"], f.Path)
		properties := s["properties"].(schematest.Object)
		assert.ElementsMatch(t, strings.Split(known[1], ", "), slices.Collect(maps.Keys(properties)), f.Path)
		for name, p := range properties {
			assert.NotEmpty(t, schematest.Resolve(root, p.(schematest.Object))["description"], "%s: %s", f.Path, name)
		}
	}
	assert.Equal(t, 8, objects, "of a plan")
}

// The defaults of the schema are those of Parse: a plan that states them is the same.
func TestSchemaHasTheDefaultsOfParse(t *testing.T) {
	root := readObject(t, rollout.Schema())
	var defaults func(s schematest.Object) any
	defaults = func(s schematest.Object) any {
		s = schematest.Resolve(root, s)
		if v, ok := s["default"]; ok {
			return v
		}
		out := schematest.Object{}
		properties, _ := s["properties"].(schematest.Object)
		for name, p := range properties {
			if name == "before" {
				continue
			}
			if v := defaults(p.(schematest.Object)); v != nil {
				out[name] = v
			}
		}
		if len(out) == 0 {
			return nil
		}
		return out
	}
	all := root["$defs"].(schematest.Object)
	p := defaults(all["plan"].(schematest.Object)).(schematest.Object)
	for _, name := range []string{"internal", "analysis", "onBreach", "mode", "state"} {
		require.Contains(t, p, name)
	}
	p["rules"] = []string{"order"}
	stage := defaults(all["stage"].(schematest.Object)).(schematest.Object)
	stage["percent"] = 100
	p["stages"] = []any{stage}
	text, err := json.Marshal(p)
	require.NoError(t, err)
	assert.Equal(t, plan(t, withPlan(`{"rules": ["order"], "stages": [{"percent": 100}]}`)), plan(t, withPlan(string(text))))
}

func TestSchemaTakesWhatParseTakes(t *testing.T) {
	root := readObject(t, rollout.Schema())
	for _, doc := range []string{
		lane, withPlan(everything), after(t, lane, rollout.CommandStart),
		after(t, lane, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPause, rollout.CommandRollback),
	} {
		assert.Empty(t, schematest.Valid(t, root, readObject(t, []byte(doc))), doc)
		_, err := rollout.ParseDocument([]byte(doc))
		assert.NoError(t, err)
	}
	bad := strings.Join(schematest.Valid(t, root, readObject(t, []byte(withPlan(manyFaults)))), "\n")
	_, err := rollout.ParseDocument([]byte(withPlan(manyFaults)))
	var missed []string
	for _, f := range rollout.Faults(err) {
		if !strings.Contains(bad, "."+f.Path+" ") {
			missed = append(missed, strings.TrimPrefix(f.Path, "plans.lane."))
		}
	}
	assert.ElementsMatch(t, []string{
		"id", "rules[1]", "rules[2]", "rules[4]", "internal.rules[0]", "stages[1].percent", "stages[1].hold", "analysis.window",
		"analysis.every", "analysis.latency.max", "state.before.before", "state.baseline.order.errors",
	}, missed, "what a schema does not say")
}
