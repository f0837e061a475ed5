package consul_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
)

// From the write's return to the first decision by the new rules in five
// followers, each with connections of its own, as five gateways have. The figures
// are for people; what is asserted is that every change arrives, in order, and
// that no follower waits for the end of a blocking query.
func TestRuleStore_ChangeToEffect(t *testing.T) {
	const followers, changes = 5, 200
	agent := consultest.Start(t)
	writer := ruleStore(t, open(t, agent.Config()), rulesKey)
	var engines []*rule.Engine
	for range followers {
		e, err := rule.NewEngine(nil)
		require.NoError(t, err)
		follow(t, e, ruleStore(t, open(t, agent.Config()), rulesKey))
		engines = append(engines, e)
	}
	at := put(t, writer, setOf("v0"), 0)
	for _, e := range engines {
		require.Eventually(t, func() bool { return e.Status().Revision == at }, patience, time.Millisecond)
	}

	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	all := make([]time.Duration, 0, changes*followers)
	last := make([]time.Duration, 0, changes)
	for n := 1; n <= changes; n++ {
		want := fmt.Sprintf("v%d", n)
		at = put(t, writer, setOf(want), at)
		written := time.Now()
		waiting := slices.Clone(engines)
		for len(waiting) > 0 {
			waiting = slices.DeleteFunc(waiting, func(e *rule.Engine) bool {
				d := e.Decide(nil)
				if d.Tag.Get("version") != want {
					return false
				}
				assert.Equal(t, at, d.Revision)
				all = append(all, time.Since(written))
				return true
			})
			require.Less(t, time.Since(written), patience, "%d followers do not see change %d", len(waiting), n)
			if len(waiting) > 0 {
				<-tick.C
			}
		}
		last = append(last, time.Since(written))
	}
	slices.Sort(all)
	slices.Sort(last)
	at50, at99 := func(d []time.Duration) time.Duration { return d[len(d)/2] }, func(d []time.Duration) time.Duration { return d[len(d)*99/100] }
	t.Logf("change to effect, %d changes, %d followers: p50 %v, p99 %v of each follower; p50 %v, p99 %v of the last one",
		changes, followers, at50(all), at99(all), at50(last), at99(last))
	assert.Less(t, at99(last), 5*time.Second)
}
