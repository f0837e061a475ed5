package rollout_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/internal/race"
)

// binomial draws how many of n requests fail.
func binomial(rng *rand.Rand, n int, rate float64) (failed uint64) {
	for i := 0; ; failed++ {
		i += 1 + int(math.Log(1-rng.Float64())/math.Log(1-rate)) // the next one that fails
		if i > n {
			return failed
		}
	}
}

// errorsOnly is what the simulation of errors judges by: the defaults, with
// latencies out of the way.
func errorsOnly() rollout.Analysis {
	a := rollout.DefaultAnalysis()
	a.Latency.Off = true
	return a
}

func simulated(rng *rand.Rand, gray, stable int, grayRate, stableRate float64) *rollout.Window {
	return traffic{
		gray: uint64(gray), grayErrors: binomial(rng, gray, grayRate),
		stable: uint64(stable), stableErrors: binomial(rng, stable, stableRate),
	}.window()
}

// judged pushes a window in front of the last ones and judges them.
func judged(a *rollout.Analysis, last []*rollout.Window, w *rollout.Window) ([]*rollout.Window, rollout.Verdict) {
	last = append([]*rollout.Window{w}, last[:min(len(last), 2)]...)
	return last, verdicts(a.Judge(last, nil))[""]
}

func fewer(n int) int {
	if race.Enabled {
		return n / 10
	}
	return n
}

// 300 gray requests per window, at the stages of 1, 10 and 50 %.
func TestSimulationOfErrors(t *testing.T) {
	a := errorsOnly()
	for _, stable := range []int{29_700, 2_700, 300} {
		rng := rand.New(rand.NewPCG(300, uint64(stable)))
		windows, rolledBack, inconclusive := fewer(20_000), 0, 0
		var last []*rollout.Window
		for range windows {
			var v rollout.Verdict
			last, v = judged(&a, last, simulated(rng, 300, stable, 0.005, 0.005))
			switch v {
			case fail:
				rolledBack++
				last = nil // a new release
			case maybe:
				inconclusive++
			}
		}
		runs, within := fewer(2_000), map[int]int{}
		for range runs {
			last = nil
			for n := 1; n <= 3; n++ {
				var v rollout.Verdict
				if last, v = judged(&a, last, simulated(rng, 300, stable, 0.05, 0.005)); v == fail {
					within[n]++
					break
				}
			}
		}
		caught := within[1] + within[2] + within[3]
		t.Logf("%5d stable requests per window: both at 0.5 %%: %d false rollbacks in %d windows, %.1f %% of them inconclusive; "+
			"5 %% against 0.5 %%: %d of %d runs rolled back within 3 windows (%d, %d, %d)",
			stable, rolledBack, windows, 100*float64(inconclusive)/float64(windows), caught, runs, within[1], within[2], within[3])
		assert.Less(t, float64(rolledBack), float64(windows)/1000, "fewer than 1 in 1,000 windows")
		assert.GreaterOrEqual(t, float64(caught), 0.99*float64(runs), "99 of 100 runs")
	}
}

// As it is in use: the window slides on by 10 seconds, so that each of 5 minutes is
// judged 30 times, and what is by chance has 30 chances.
func TestSimulationOfASlidingWindow(t *testing.T) {
	a := errorsOnly()
	const perWindow, gray, stable = 30, 10, 90 // steps, and requests of each
	rng := rand.New(rand.NewPCG(10, 30))
	var steps [3 * perWindow][4]uint64 // a ring: gray, its errors, stable, its errors
	at, filled := 0, 0
	room := []*rollout.Window{{}, {}, {}}
	look := func(grayRate float64) rollout.Verdict {
		steps[at] = [4]uint64{gray, binomial(rng, gray, grayRate), stable, binomial(rng, stable, 0.005)}
		at, filled = (at+1)%len(steps), min(filled+1, len(steps))
		n := 0
		for from := 0; from < filled; from += perWindow {
			var sum [4]uint64
			for i := from; i < min(from+perWindow, filled); i++ {
				for k, x := range steps[(at-1-i+2*len(steps))%len(steps)] {
					sum[k] += x
				}
			}
			w := room[n]
			w.Wanted, w.Matched = sum[0], sum[0]
			w.Gray.Requests, w.Gray.Errors, w.Stable.Requests, w.Stable.Errors = sum[0], sum[1], sum[2], sum[3]
			n++
		}
		return verdicts(a.Judge(room[:n], nil))[""]
	}
	windows, rolledBack := fewer(5_000), 0
	for range windows * perWindow {
		if look(0.005) == fail {
			rolledBack++
			filled = 0
		}
	}
	runs, caught := fewer(500), 0
	var after time.Duration
	for range runs {
		filled = 0
		for n := 1; n <= 3*perWindow; n++ {
			if look(0.05) == fail {
				caught++
				after += time.Duration(n) * 10 * time.Second
				break
			}
		}
	}
	t.Logf("judged every 10 s: both at 0.5 %%: %d false rollbacks in %d windows of 5 min; 5 %% against 0.5 %%: %d of %d runs rolled back within 3 windows, after %s on average",
		rolledBack, windows, caught, runs, (after / time.Duration(max(caught, 1))).Round(time.Second))
	assert.Less(t, float64(rolledBack), float64(windows)/1000)
	assert.GreaterOrEqual(t, float64(caught), 0.99*float64(runs))
}

// Latencies with a long tail: the p99 of 300 requests is the third highest, and jumps.
func TestSimulationOfLatencies(t *testing.T) {
	a := rollout.DefaultAnalysis()
	rng := rand.New(rand.NewPCG(99, 99))
	draw := func(n int, median time.Duration) *rollout.Histogram {
		var h rollout.Histogram
		for range n {
			h.Add(time.Duration(float64(median) * math.Exp(rng.NormFloat64())))
		}
		return &h
	}
	window := func(slower float64) *rollout.Window {
		return rollout.NewWindow("v2", t0, t0.Add(5*time.Minute), []rollout.Sample{
			{Wanted: "v2", Served: "v2", Requests: 300, Latency: draw(300, time.Duration(slower*float64(20*time.Millisecond)))},
			{Requests: 2700, Latency: draw(2700, 20*time.Millisecond)},
		})
	}
	windows, rolledBack := fewer(3_000), 0
	var last []*rollout.Window
	for range windows {
		var v rollout.Verdict
		if last, v = judged(&a, last, window(1)); v == fail {
			rolledBack++
			last = nil
		}
	}
	report := ""
	for _, slower := range []float64{3, 4} {
		runs, caught := fewer(200), 0
		for range runs {
			last = nil
			for range 3 {
				var v rollout.Verdict
				if last, v = judged(&a, last, window(slower)); v == fail {
					caught++
					break
				}
			}
		}
		report += fmt.Sprintf("; %v times slower: %d of %d runs rolled back within 3 windows", slower, caught, runs)
		assert.GreaterOrEqual(t, float64(caught), 0.95*float64(runs))
	}
	t.Logf("latencies alike: %d false rollbacks in %d windows%s", rolledBack, windows, report)
	assert.LessOrEqual(t, float64(rolledBack), float64(windows)/1000)
}
