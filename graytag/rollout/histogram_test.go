package rollout_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/internal/race"
)

func TestHistogramQuantilesAreAboutRight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var h rollout.Histogram
		var all []time.Duration
		scale := math.Pow(10, -3.5+5*rng.Float64()) // 0.3 ms to 30 s
		for range 1000 {
			d := time.Duration(scale * math.Exp(rng.NormFloat64()*0.7) * 1e9)
			d = min(max(d, 66*time.Microsecond), 137*time.Second)
			all = append(all, d)
			h.Add(d)
		}
		slices.Sort(all)
		assert.EqualValues(t, 1000, h.Count())
		for _, q := range []float64{0.001, 0.5, 0.9, 0.99, 0.999, 1} {
			want := all[int(math.Ceil(q*1000))-1]
			assert.InEpsilon(t, want.Seconds(), h.Quantile(q).Seconds(), 0.032, "%v of %v", q, scale)
		}
		limit := all[950]
		assert.InDelta(t, 49, float64(h.Above(limit)), 25)
	}
}

func TestHistogramAtItsEnds(t *testing.T) {
	var h rollout.Histogram
	assert.Zero(t, h.Quantile(0.99))
	assert.Zero(t, h.Above(0))
	assert.Zero(t, (*rollout.Histogram)(nil).Count())
	assert.Zero(t, (*rollout.Histogram)(nil).Above(0))
	h.Merge(nil)
	for _, d := range []time.Duration{-1, 0, 1, 65535} {
		assert.Equal(t, 0, rollout.BucketOf(d))
	}
	assert.Equal(t, 1, rollout.BucketOf(65536))
	assert.Equal(t, rollout.HistogramBuckets-2, rollout.BucketOf(rollout.MaxLatency-1))
	assert.Equal(t, rollout.HistogramBuckets-1, rollout.BucketOf(rollout.MaxLatency))
	assert.Equal(t, rollout.HistogramBuckets-1, rollout.BucketOf(math.MaxInt64))
	h.Add(time.Hour)
	assert.Equal(t, rollout.MaxLatency, h.Quantile(0.5))
	h.AddBucket(-1, 5)
	h.AddBucket(rollout.HistogramBuckets, 5)
	assert.EqualValues(t, 1, h.Count())
	last := -1
	for d := time.Duration(1); d < rollout.MaxLatency*2 && d > 0; d += d/40 + 1 {
		b := rollout.BucketOf(d)
		assert.True(t, b == last || b == last+1 || last == -1, "buckets follow each other")
		last = b
	}
}

// The buckets of another histogram keep their number, and their quantiles are those
// that linear interpolation gives.
func TestHistogramAddRange(t *testing.T) {
	var h rollout.Histogram
	h.AddRange(0, 5*time.Millisecond, 900)
	h.AddRange(5*time.Millisecond, 10*time.Millisecond, 90)
	h.AddRange(10*time.Millisecond, 25*time.Millisecond, 10)
	assert.EqualValues(t, 1000, h.Count())
	assert.InEpsilon(t, 0.010, h.Quantile(0.99).Seconds(), 0.05)
	assert.InEpsilon(t, 0.00278, h.Quantile(0.5).Seconds(), 0.05)
	assert.InDelta(t, 50, float64(h.Above(7800*time.Microsecond)), 3)

	var odd rollout.Histogram
	odd.AddRange(time.Second, time.Second, 3)
	odd.AddRange(time.Second, 0, 3)
	odd.AddRange(10*time.Second, math.MaxInt64, 7)
	odd.AddRange(time.Millisecond, time.Second, 1)
	odd.AddRange(-5, time.Second, 0)
	assert.EqualValues(t, 14, odd.Count())

	var both rollout.Histogram
	both.Merge(&h)
	both.Merge(&odd)
	assert.EqualValues(t, 1014, both.Count())
}

func TestHistogramDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		return
	}
	var h, o rollout.Histogram
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		h.Add(3 * time.Millisecond)
		h.AddRange(0, time.Second, 100)
		h.Merge(&o)
		h.Quantile(0.99)
	}))
}
