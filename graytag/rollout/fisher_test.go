package rollout_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rollout"
)

func TestFisherGreater(t *testing.T) {
	for _, c := range []struct {
		errors, n, stableErrors, stableN uint64
		want                             float64
	}{
		// The examples of R's fisher.test: the lady tasting tea, 0.2429, and the
		// convictions of twins, 0.0004652.
		{3, 4, 1, 4, 0.24285714285714285},
		{10, 13, 2, 17, 0.00046518094336290503},
		// Sums of exact fractions.
		{2, 17, 10, 13, 0.9999845190186861},
		{1, 1, 0, 100, 0.009900990099009901},
		{60, 1000, 0, 1000, 3.483393546207435e-19},
		{60, 1000, 60, 1000, 0.5374841166893309},
		{15, 300, 2, 300, 0.0010253576824977245},
		{15, 300, 13, 2700, 8.034272447392271e-09},
		{9, 300, 13, 2700, 0.0001362466165838839},
		{4, 300, 13, 2700, 0.08207395031719492},
		{1, 300, 13, 2700, 0.7720042522838394},
		{0, 300, 13, 2700, 1},
		{5, 1000, 300, 100000, 0.18699277879042114},
		{1000, 20000, 900, 20000, 0.009967541056381096},
		{300, 300, 0, 300, 7.401489395998409e-180},
		{5, 5, 5, 5, 1},
	} {
		got := rollout.FisherGreater(c.errors, c.n, c.stableErrors, c.stableN)
		assert.InEpsilon(t, c.want, got, 1e-9, "%+v", c)
	}
}

func TestFisherGreaterOfNothing(t *testing.T) {
	for _, c := range [][4]uint64{{0, 0, 5, 10}, {5, 10, 0, 0}, {0, 0, 0, 0}, {11, 10, 0, 10}, {1, 10, 11, 10}, {0, 10, 0, 10}} {
		assert.Equal(t, 1.0, rollout.FisherGreater(c[0], c[1], c[2], c[3]), "%v", c)
	}
}

// Counts of a busy service must neither take long nor lose the answer.
func TestFisherGreaterOfManyRequests(t *testing.T) {
	const billion = 1_000_000_000
	p := rollout.FisherGreater(5_000_000, billion, 5_000_000, billion)
	assert.InDelta(t, 0.5, p, 0.01)
	p = rollout.FisherGreater(4_990_000, billion, 5_010_000, billion)
	assert.Greater(t, p, 0.999)
	p = rollout.FisherGreater(5_020_000, billion, 5_000_000, billion)
	assert.Less(t, p, 1e-6)
	for _, n := range []uint64{1 << 40, math.MaxUint64} {
		p = rollout.FisherGreater(n/2, n, n/4, n)
		assert.True(t, p >= 0 && p <= 1, "%v", p)
	}
}
