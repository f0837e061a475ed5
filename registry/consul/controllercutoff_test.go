package consul_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

// A leader whose packets are swallowed, so that nothing fails and nothing answers,
// while gray breaks: its own process is stable, the next leader writes, and one alert
// of that goes out. The process that is cut off may say, once, that it cannot write.
func TestController_LeaderIsCutOffWhileGrayBreaks(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	front := newRelay(t, agent.Config().Address)
	direct := ruleStore(t, open(t, agent.Config()), rulesKey)
	put(t, direct, everyone, 0)
	_, err := rollout.Run(t.Context(), direct, "all", rollout.CommandStart, rollout.Note{Who: "ann"})
	require.NoError(t, err)
	var failing atomic.Uint64
	source := rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
		return []rollout.Sample{
			{Wanted: "v2", Served: "v2", Requests: 1000, Errors: failing.Load()},
			{Requests: 1000},
		}, nil
	})
	var rolledBack, unwritten, other atomic.Int64
	count := rollout.WithAlerter(rollout.AlerterFunc(func(_ context.Context, e rollout.Event) error {
		switch e.Kind {
		case rollout.KindRolledBack:
			rolledBack.Add(1)
		case rollout.KindUnwritten:
			unwritten.Add(1)
		default:
			other.Add(1)
		}
		return nil
	}))
	process := func(r *consul.Registry) (*rollout.Controller, *rule.Engine) {
		store := ruleStore(t, r, rulesKey)
		e, err := rule.NewEngine(nil, rule.WithLogger(quiet))
		require.NoError(t, err)
		follow(t, e, store)
		c, _ := control(t, store, source, rollout.WithEngine(e), rollout.WithElector(elector(t, r)), count)
		return c, e
	}
	a, ea := process(open(t, front.config()))
	until(t, "a leads", func() bool { return a.Status(t.Context()).Leading })
	_, eb := process(open(t, agent.Config()))
	both := []*rule.Engine{ea, eb}
	until(t, "all are gray", all(both, "v2"))

	front.blackout()
	failing.Store(200)
	begun := time.Now()
	until(t, "a is stable", func() bool { return decided(ea) == "stable" })
	t.Logf("the one that is cut off is stable after %v", time.Since(begun))
	until(t, "b is stable", func() bool { return decided(eb) == "stable" })
	t.Logf("the other one after %v", time.Since(begun))
	front.light()
	begun = time.Now()
	until(t, "nothing is left to write", func() bool { return len(a.Status(t.Context()).Unwritten) == 0 && len(ea.Status().Suspended) == 0 })
	t.Logf("written %v after the connection came back", time.Since(begun))
	assert.EqualValues(t, 1, rolledBack.Load())
	assert.LessOrEqual(t, unwritten.Load(), int64(1))
	assert.Zero(t, other.Load())
	assert.True(t, all(both, "stable")())
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	e, err := a.Do(ctx, "all", rollout.CommandRollback, rollout.Note{Who: "ann"})
	assert.NoError(t, err)
	assert.Nil(t, e)
}
