package rollout_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

type closed struct{ nobody }

func (closed) Lead(context.Context, func(context.Context) error) error { return errDown }

func TestAlertersThatMisbehave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		block := make(chan struct{})
		slow := rollout.AlerterFunc(func(ctx context.Context, e rollout.Event) error {
			select {
			case <-block:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
		panics := rollout.AlerterFunc(func(context.Context, rollout.Event) error { panic("at the disco") })
		c, stop := control(t, s, nil, rollout.WithAlerter(slow), rollout.WithAlerter(panics), rollout.WithAlerter(told), rollout.WithAlerter(nil))
		const n = rollout.MaxAlertsQueue + 10
		for i := range n {
			_, err := c.Do(t.Context(), "lane", []rollout.Command{rollout.CommandPause, rollout.CommandResume}[i%2], rollout.Note{Who: fmt.Sprint(i)})
			require.NoError(t, err)
			synctest.Wait()
		}
		assert.Len(t, told.kinds(), n, "nobody keeps the others waiting")
		assert.True(t, slices.IsSortedFunc(told.events, func(a, b rollout.Event) int { return int(a.Revision) - int(b.Revision) }))
		st := c.Status(t.Context())
		assert.EqualValues(t, n, st.AlertsFailed)
		assert.EqualValues(t, 9, st.AlertsDropped, "one is under way")
		assert.Contains(t, st.AlertError, "the alerter panicked: at the disco")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		assert.ErrorIs(t, c.Flush(ctx), context.DeadlineExceeded)
		begun := time.Now()
		stop()
		assert.Equal(t, 5*time.Second, time.Since(begun), "the end waits, but not for ever")
		assert.NoError(t, c.Flush(t.Context()))
		assert.EqualValues(t, n-1, c.Status(t.Context()).AlertsDropped)
	})
}

// What was told before the end is sent at the end.
func TestTheEndWaitsForAlerts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := startedLane(t, ""), &alerts{}
		late := rollout.AlerterFunc(func(ctx context.Context, e rollout.Event) error {
			time.Sleep(2 * time.Second)
			return told.Alert(ctx, e)
		})
		c, stop := control(t, s, nil, rollout.WithAlerter(late))
		_, err := c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
		require.NoError(t, err)
		stop()
		assert.Equal(t, []rollout.Kind{rollout.KindRolledBack}, told.kinds())
	})
}

func TestLogAlerter(t *testing.T) {
	var b strings.Builder
	a := rollout.NewLogAlerter(slog.New(slog.NewTextHandler(&b, nil)))
	for _, e := range []rollout.Event{
		{Kind: rollout.KindAdvanced, Plan: "lane", To: rollout.State{Phase: rollout.Running, Stage: 2}, Percent: rule.MustPercent("10"), Who: "gw", Why: "passed", Revision: 7},
		{Kind: rollout.KindRolledBack, Plan: "lane", Report: &rollout.Report{Verdict: rollout.VerdictFail}},
		{Kind: rollout.KindStopped, Who: "ann"},
		{Kind: rollout.KindFinished, Plan: "lane", Who: "ann"},
	} {
		require.NoError(t, a.Alert(t.Context(), e))
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 4)
	assert.NotContains(t, lines[3], "percent=", "there is none any more")
	assert.Contains(t, lines[0], `level=INFO msg="gray rollout: plan lane: advanced, at 10 %" kind=advanced plan=lane phase=running stage=2 percent=10 who=gw why=passed revision=7`)
	assert.Contains(t, lines[1], "level=ERROR")
	assert.Contains(t, lines[2], `level=WARN msg="gray rollout: the kill switch is on, everyone is stable" kind=stopped who=ann`)
	require.NoError(t, rollout.NewLogAlerter(nil).Alert(t.Context(), rollout.Event{Kind: rollout.KindUnstopped}))
}
