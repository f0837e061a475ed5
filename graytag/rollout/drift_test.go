package rollout_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
)

// Operators may switch a rule off by hand. Samples from before then still pass for as
// long as a window is, and must not switch it on again.
func TestWhatIsDoneByHandIsNotUndone(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote, rollout.CommandPromote)
	off := strings.Replace(doc, `"salt": "lane",  "tag"`, `"salt": "lane", "enabled": false,  "tag"`, 1)
	less := strings.Replace(doc, `"services": ["order"], "percent": 10`, `"services": ["order"], "percent": 3`, 1)
	now := t0.Add(time.Hour)
	for byHand, order := range map[string]string{off: "off", less: "3"} {
		require.NotEqual(t, doc, byHand)
		p := plan(t, byHand)
		assert.Equal(t, []string{"order"}, p.Drift)

		data, e, err := rollout.Step([]byte(byHand), "lane", report(p, pass, now), note(now))
		require.NoError(t, err)
		assert.Nil(t, data, "no step forward")
		assert.Nil(t, e)
		src := rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
			return traffic{gray: 1000, stable: 1000}.samples(), nil
		})
		r := p.Look(t.Context(), src, now)
		assert.Equal(t, maybe, r.Verdict)
		assert.Equal(t, rollout.CheckRules, r.Checks[0].Name)
		assert.Contains(t, r.Checks[0].Why, `"order"`)

		s := p.State
		s.Why = "another reason"
		data, err = rollout.SetState([]byte(byHand), "lane", s)
		require.NoError(t, err)
		assert.Equal(t, order, rules(t, string(data))["order"])
		for _, c := range []rollout.Command{rollout.CommandPause, rollout.CommandFreeze} {
			stays := after(t, byHand, c)
			assert.Equal(t, order, rules(t, stays)["order"], c)
			assert.Equal(t, "10", rules(t, after(t, stays, rollout.CommandResume))["order"], "to resume is to put it right")
		}
		for on, want := range map[rollout.OnBreach]string{"freeze": order, "previous": "off", "rollback": "off"} {
			bad := strings.Replace(byHand, `"internal"`, `"onBreach": "`+string(on)+`", "internal"`, 1)
			data, e, err := rollout.Step([]byte(bad), "lane", report(p, fail, now), note(now))
			require.NoError(t, err)
			assert.True(t, e.Breach())
			assert.Equal(t, want, rules(t, string(data))["order"], on)
		}
	}
	assert.Empty(t, plan(t, doc).Drift)
	assert.Empty(t, plan(t, after(t, doc, rollout.CommandRollback)).Drift, "what is rolled back is nobody's")
}
