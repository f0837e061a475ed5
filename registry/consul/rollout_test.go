package consul_test

import (
	"math/rand/v2"
	"testing"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/internal/rollouttest"
)

// The races of case O6 on a real Consul: rollback wins every one.
func rulesRollbackRaces(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	promoted := 0
	for seed := range uint64(100) {
		promoted += rollouttest.RollbackRace(t, s, rand.New(rand.NewPCG(6, seed)))
	}
	t.Logf("100 interleavings ended rolled back, after %d promotions that came first", promoted)
}
