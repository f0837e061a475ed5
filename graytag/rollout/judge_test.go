package rollout_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rollout"
)

// traffic is requests of a window.
type traffic struct {
	gray, grayErrors     uint64
	stable, stableErrors uint64
	fallback             uint64        // wanted gray and got stable
	nothing              uint64        // wanted gray and got nothing
	grayP99, stableP99   time.Duration // 0 is 5 ms
}

func (c traffic) window() *rollout.Window {
	return rollout.NewWindow("v2", t0, t0.Add(5*time.Minute), c.samples())
}

func (c traffic) samples() []rollout.Sample {
	latency := func(n uint64, p99 time.Duration) *rollout.Histogram {
		if p99 == 0 {
			p99 = 5 * time.Millisecond
		}
		var h rollout.Histogram
		h.AddBucket(rollout.BucketOf(p99), n)
		return &h
	}
	return []rollout.Sample{
		{Wanted: "v2", Served: "v2", Requests: c.gray, Errors: c.grayErrors, Latency: latency(c.gray, c.grayP99)},
		{Wanted: "v2", Served: "", Requests: c.fallback, Latency: latency(c.fallback, 0)},
		{Wanted: "v2", Served: rollout.ServedNone, Requests: c.nothing, Errors: c.nothing, Latency: latency(c.nothing, 0)},
		{Wanted: "", Served: "", Requests: c.stable, Errors: c.stableErrors, Latency: latency(c.stable, c.stableP99)},
		{Wanted: "v7", Served: "v7", Requests: 1000, Errors: 1000}, // another release
		{Wanted: "", Served: "v2", Requests: 1000, Errors: 1000},   // misrouted
	}
}

// verdicts are those of each check, by its name, and of all.
func verdicts(checks []rollout.Check) map[string]rollout.Verdict {
	m := map[string]rollout.Verdict{}
	all := rollout.VerdictPass
	for _, c := range checks {
		m[c.Name] = c.Verdict
		switch {
		case c.Verdict == rollout.VerdictFail:
			all = rollout.VerdictFail
		case c.Verdict == rollout.VerdictInconclusive && all == rollout.VerdictPass:
			all = c.Verdict
		}
	}
	m[""] = all
	return m
}

const (
	pass  = rollout.VerdictPass
	fail  = rollout.VerdictFail
	maybe = rollout.VerdictInconclusive
)

func TestJudge(t *testing.T) {
	with := func(change func(*rollout.Analysis)) rollout.Analysis {
		a := rollout.DefaultAnalysis()
		change(&a)
		return a
	}
	standard := rollout.DefaultAnalysis()
	for name, c := range map[string]struct {
		a       rollout.Analysis
		windows []traffic // the newest first
		base    *rollout.Baseline
		want    rollout.Verdict
		check   string
	}{
		"healthy":                             {standard, []traffic{{gray: 300, grayErrors: 1, stable: 2700, stableErrors: 13}}, nil, pass, ""},
		"no errors at all":                    {standard, []traffic{{gray: 300, stable: 2700}}, nil, pass, rollout.CheckErrors},
		"clearly worse":                       {standard, []traffic{{gray: 300, grayErrors: 15, stable: 2700, stableErrors: 13}}, nil, fail, rollout.CheckErrors},
		"stable without an error":             {standard, []traffic{{gray: 1000, grayErrors: 60, stable: 1000}}, nil, fail, rollout.CheckErrors},
		"as bad as stable":                    {standard, []traffic{{gray: 1000, grayErrors: 60, stable: 1000, stableErrors: 60}}, nil, pass, ""},
		"worse, but below the floor":          {standard, []traffic{{gray: 100_000, grayErrors: 900, stable: 100_000, stableErrors: 10}}, nil, pass, ""},
		"worse, but below the ratio":          {standard, []traffic{{gray: 10_000, grayErrors: 900, stable: 10_000, stableErrors: 500}}, nil, pass, ""},
		"worse by numbers, not credibly":      {standard, []traffic{{gray: 300, grayErrors: 4, stable: 2700, stableErrors: 13}}, nil, maybe, rollout.CheckErrors},
		"too few to tell, all of them failed": {standard, []traffic{{gray: 50, grayErrors: 50, stable: 5000}}, nil, maybe, rollout.CheckErrors},
		"too few, for two windows":            {standard, []traffic{{gray: 50, grayErrors: 50, stable: 5000}, {gray: 50, grayErrors: 50, stable: 5000}}, nil, fail, rollout.CheckErrors},
		"too few, after a good window":        {standard, []traffic{{gray: 50, grayErrors: 50, stable: 5000}, {gray: 50, stable: 5000}}, nil, fail, rollout.CheckErrors},
		"a little, after a good window":       {standard, []traffic{{gray: 150, grayErrors: 2, stable: 5000, stableErrors: 20}, {gray: 150, stable: 5000, stableErrors: 20}}, nil, maybe, rollout.CheckErrors},
		"credible in three windows together": {standard, []traffic{
			{gray: 300, grayErrors: 9, stable: 300, stableErrors: 1}, {gray: 300, grayErrors: 9, stable: 300, stableErrors: 1}, {gray: 300, grayErrors: 9, stable: 300, stableErrors: 1}}, nil, fail, rollout.CheckErrors},
		"two bad windows of two": {with(func(a *rollout.Analysis) { a.Errors.Consecutive = 2 }), []traffic{
			{gray: 300, grayErrors: 30, stable: 2700}, {gray: 300, grayErrors: 30, stable: 2700}}, nil, fail, rollout.CheckErrors},
		"one bad window of two": {with(func(a *rollout.Analysis) { a.Errors.Consecutive = 2 }), []traffic{
			{gray: 300, grayErrors: 30, stable: 2700}, {gray: 300, stable: 2700}}, nil, maybe, rollout.CheckErrors},
		"a bad window that is over": {standard, []traffic{{gray: 300, stable: 2700}, {gray: 300, grayErrors: 300, stable: 2700}}, nil, pass, ""},
		"few stable requests":       {standard, []traffic{{gray: 300, stable: 20}}, nil, maybe, rollout.CheckErrors},
		"no stable requests":        {standard, []traffic{{gray: 300, grayErrors: 300}}, nil, maybe, rollout.CheckErrors},
		"a baseline in their place": {standard, []traffic{{gray: 300, grayErrors: 1}}, &rollout.Baseline{Requests: 3000, Errors: 15, P99: 5 * time.Millisecond}, pass, ""},
		"worse than the baseline":   {standard, []traffic{{gray: 300, grayErrors: 20}}, &rollout.Baseline{Requests: 3000, Errors: 15, P99: 5 * time.Millisecond}, fail, rollout.CheckErrors},
		"slower than the baseline":  {standard, []traffic{{gray: 300, grayP99: 30 * time.Millisecond}}, &rollout.Baseline{Requests: 3000, P99: 5 * time.Millisecond}, fail, rollout.CheckLatency},
		"over a limit that stable is over, too": {with(func(a *rollout.Analysis) { a.Errors.Max = 0.05 }), []traffic{
			{gray: 1000, grayErrors: 60, stable: 1000, stableErrors: 60}}, nil, fail, rollout.CheckErrorsMax},
		"a limit without stable": {with(func(a *rollout.Analysis) { a.Errors.Max = 0.05; a.Errors.Off = true; a.Latency.Off = true }), []traffic{
			{gray: 1000, grayErrors: 40}}, nil, pass, ""},
		"a limit, too few":   {with(func(a *rollout.Analysis) { a.Errors.Max = 0.05 }), []traffic{{gray: 10, grayErrors: 10, stable: 1000}}, nil, maybe, rollout.CheckErrorsMax},
		"slower":             {standard, []traffic{{gray: 300, grayP99: 50 * time.Millisecond, stable: 2700}}, nil, fail, rollout.CheckLatency},
		"slower, below 2 x":  {standard, []traffic{{gray: 300, grayP99: 90 * time.Millisecond, stable: 2700, stableP99: 50 * time.Millisecond}}, nil, pass, ""},
		"slower, still fast": {standard, []traffic{{gray: 300, grayP99: 9 * time.Millisecond, stable: 2700, stableP99: 1 * time.Millisecond}}, nil, pass, ""},
		"latency is off":     {with(func(a *rollout.Analysis) { a.Latency.Off = true }), []traffic{{gray: 300, grayP99: time.Second, stable: 2700}}, nil, pass, ""},
		"over the limit":     {with(func(a *rollout.Analysis) { a.Latency.Off = true; a.Latency.Max = 100 * time.Millisecond }), []traffic{{gray: 300, grayP99: 110 * time.Millisecond, stable: 2700}}, nil, fail, rollout.CheckLatencyMax},
		"all fall back":      {standard, []traffic{{fallback: 300, stable: 2700}}, nil, maybe, rollout.CheckMatched},
		"a fifth falls back": {standard, []traffic{{gray: 800, fallback: 200, stable: 2700}}, nil, maybe, rollout.CheckMatched},
		"a few fall back":    {standard, []traffic{{gray: 950, fallback: 50, stable: 2700}}, nil, pass, ""},
		"a gray that fails the few that it serves": {standard, []traffic{{gray: 100, grayErrors: 90, fallback: 900, stable: 2700}}, nil, fail, rollout.CheckErrors},
		"strict, and nothing is there":             {standard, []traffic{{nothing: 300, stable: 2700}}, nil, fail, rollout.CheckErrors},
		"no traffic":                               {standard, []traffic{{}}, nil, maybe, rollout.CheckMatched},
		"no gray traffic":                          {standard, []traffic{{stable: 2700}}, nil, maybe, rollout.CheckMatched},
	} {
		var windows []*rollout.Window
		for _, w := range c.windows {
			windows = append(windows, w.window())
		}
		checks := c.a.Judge(windows, c.base)
		got := verdicts(checks)
		assert.Equal(t, c.want, got[""], "%s: %+v", name, checks)
		if c.check != "" {
			assert.Equal(t, c.want, got[c.check], "%s: %+v", name, checks)
		}
		for _, k := range checks {
			assert.NotEmpty(t, k.Why, "%s: %s", name, k.Name)
		}
	}
}

// What is not clear says what it is waiting for.
func TestJudgeSaysWhatIsMissing(t *testing.T) {
	twice := rollout.DefaultAnalysis()
	twice.Errors.Consecutive = 2
	standard := rollout.DefaultAnalysis()
	for _, c := range []struct {
		a       *rollout.Analysis
		windows []traffic
		check   string
		why     string
	}{
		{&standard, []traffic{{}}, rollout.CheckMatched, "the source knows of no requests, gray or stable"},
		{&standard, []traffic{{stable: 100}}, rollout.CheckMatched, "no request wanted gray"},
		{&standard, []traffic{{gray: 50, grayErrors: 50, stable: 5000}}, rollout.CheckErrors, "0 of 5000 stable ones (0 %): more gray requests are needed"},
		{&standard, []traffic{{gray: 300, grayErrors: 4, stable: 2700, stableErrors: 13}}, rollout.CheckErrors, "by chance with a probability of 0.082, which is to be below 5e-05"},
		{&standard, []traffic{{gray: 300, grayErrors: 7, stable: 2700, stableErrors: 13}, {gray: 3000, stable: 2700}}, rollout.CheckErrors, "not bad in the windows before"},
		{&twice, []traffic{{gray: 300, grayErrors: 30, stable: 2700}}, rollout.CheckErrors, "bad in 1 of 2 windows"},
	} {
		var windows []*rollout.Window
		for _, w := range c.windows {
			windows = append(windows, w.window())
		}
		for _, k := range c.a.Judge(windows, nil) {
			if k.Name == c.check {
				assert.Equal(t, maybe, k.Verdict, k.Why)
				assert.Contains(t, k.Why, c.why)
			}
		}
	}
}

func TestJudgeWithoutLatencies(t *testing.T) {
	a := rollout.DefaultAnalysis()
	w := rollout.NewWindow("v2", t0, t0.Add(time.Minute), []rollout.Sample{
		{Wanted: "v2", Served: "v2", Requests: 300}, {Requests: 300},
	})
	assert.Equal(t, maybe, verdicts(a.Judge([]*rollout.Window{w}, nil))[rollout.CheckLatency], "what is not known is no pass")
	assert.Equal(t, maybe, verdicts(a.Judge(nil, nil))[""])
}

// One slow request of a hundred is the p99 of a hundred requests.
func TestJudgeWantsCredibleLatencies(t *testing.T) {
	a := rollout.DefaultAnalysis()
	var gray, stable rollout.Histogram
	gray.AddBucket(rollout.BucketOf(5*time.Millisecond), 148)
	gray.AddBucket(rollout.BucketOf(time.Second), 2)
	stable.AddBucket(rollout.BucketOf(5*time.Millisecond), 1490)
	stable.AddBucket(rollout.BucketOf(time.Second), 10)
	w := rollout.NewWindow("v2", t0, t0.Add(time.Minute), []rollout.Sample{
		{Wanted: "v2", Served: "v2", Requests: 150, Latency: &gray}, {Requests: 1500, Latency: &stable},
	})
	c := a.Judge([]*rollout.Window{w}, nil)
	assert.Equal(t, maybe, verdicts(c)[rollout.CheckLatency], "%+v", c)
}
