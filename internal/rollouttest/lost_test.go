package rollouttest_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/rollouttest"
)

// faults counts what a test would fail for.
type faults struct {
	testing.TB
	n int
}

func (f *faults) Errorf(string, ...any) { f.n++ }
func (f *faults) Error(...any)          { f.n++ }
func (f *faults) Failed() bool          { return f.n > 0 }

// careless is a store that writes over whatever is there.
type careless struct{ *rule.MemoryStore }

func (c careless) Put(ctx context.Context, d rule.Document, _ uint64) (uint64, error) {
	for now := range c.Watch(ctx) {
		return c.MemoryStore.Put(ctx, d, now.Revision)
	}
	return 0, rule.ErrStoreEnded
}

func TestALostUpdateIsFound(t *testing.T) {
	f := &faults{TB: t}
	rollouttest.LostUpdates(f, careless{rule.NewMemoryStore()}, rand.New(rand.NewPCG(5, 1)), 20)
	assert.NotZero(t, f.n)
}
