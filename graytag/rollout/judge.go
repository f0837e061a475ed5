package rollout

import (
	"fmt"
	"time"
)

// Verdict is what samples say about a gray version.
type Verdict string

// The verdicts.
const (
	// VerdictPass: there was traffic enough, gray served it, and it is not worse.
	VerdictPass Verdict = "pass"
	// VerdictFail: gray is credibly worse than stable, or over an absolute limit.
	VerdictFail Verdict = "fail"
	// VerdictInconclusive: neither can be said. No traffic is inconclusive, and so
	// is a source that fails.
	VerdictInconclusive Verdict = "inconclusive"
)

// worse returns the verdict of two together.
func (v Verdict) worse(o Verdict) Verdict {
	switch {
	case v == VerdictFail || o == VerdictFail:
		return VerdictFail
	case v == VerdictInconclusive || o == VerdictInconclusive:
		return VerdictInconclusive
	}
	return VerdictPass
}

// The names of checks.
const (
	CheckSource     = "source"      // that the samples are there
	CheckRules      = "rules"       // that the rules are as the stage has them
	CheckMatched    = "matched"     // that gray served what wanted gray
	CheckErrors     = "errors"      // the error rate against stable's
	CheckErrorsMax  = "errors_max"  // the error rate against the limit
	CheckLatency    = "latency"     // the p99 against stable's
	CheckLatencyMax = "latency_max" // the p99 against the limit
)

// Check is one comparison and what came out of it.
type Check struct {
	Target  Target  `json:"target"`
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Why says it in a sentence, with the numbers.
	Why string `json:"why"`
	// Gray and Stable are what was compared: shares of failed requests, seconds for
	// latencies; for CheckMatched, the share that gray served and the one required;
	// for the limits, Stable is the limit.
	Gray   float64 `json:"gray"`
	Stable float64 `json:"stable"`
	// P is the probability of the difference by chance, of [FisherGreater]; 1 where
	// no test was made.
	P float64 `json:"p"`

	// older tells that windows before the ones at hand may make a fail of it.
	older bool
}

// MaxConsecutive bounds how many windows a check may ask for.
const MaxConsecutive = 10

// pooled is how many windows at least are looked at together: a difference that
// one window of little traffic cannot prove, three may.
const pooled = 3

// Judge compares gray with stable in windows that follow each other, the newest
// first, as [Plan.Look] makes them: those before the newest matter only where that one
// is bad. base, where it is not nil, stands in for a stable that has fewer than the
// required requests. Judge changes nothing that it is given.
//
// A comparison with stable fails where gray is above the ratio and above the floor
// in each of the last windows, as many as the check asks for, and where in those
// together gray has had the minimum of requests and the difference is credible:
// [FisherGreater] is below the level. What is bad in the newest window and credible
// only in up to three together fails as well: little traffic needs more time. For
// latencies that is tested on the requests that took longer than what gray's p99 is
// held to. A limit fails without a test.
func (a *Analysis) Judge(windows []*Window, base *Baseline) []Check {
	if len(windows) == 0 {
		return []Check{{Name: CheckSource, Verdict: VerdictInconclusive, Why: "nothing has been seen of this stage yet", P: 1}}
	}
	checks := []Check{a.matched(windows[0])}
	if !a.Errors.Off {
		checks = append(checks, a.run(windows, a.Errors.Consecutive, CheckErrors, func(w *Window) measure { return a.errors(w, base) }))
	}
	if a.Errors.Max > 0 {
		checks = append(checks, a.run(windows, a.Errors.Consecutive, CheckErrorsMax, a.errorsMax))
	}
	if !a.Latency.Off {
		checks = append(checks, a.run(windows, a.Latency.Consecutive, CheckLatency, func(w *Window) measure { return a.latency(w, base) }))
	}
	if a.Latency.Max > 0 {
		checks = append(checks, a.run(windows, a.Latency.Consecutive, CheckLatencyMax, a.latencyMax))
	}
	return checks
}

// matched wants gray to have served what wanted gray: a gray that is down and whose
// requests all fall back looks as healthy as stable.
func (a *Analysis) matched(w *Window) Check {
	c := Check{Name: CheckMatched, Verdict: VerdictPass, Stable: a.MinMatched, P: 1}
	if w.Wanted == 0 {
		c.Verdict, c.Why = VerdictInconclusive, "no request wanted gray"
		if w.Stable.Requests == 0 {
			c.Why = "the source knows of no requests, gray or stable: is this its name of the service?"
		}
		return c
	}
	c.Gray = float64(w.Matched) / float64(w.Wanted)
	c.Why = fmt.Sprintf("gray served %d of the %d requests that wanted it", w.Matched, w.Wanted)
	if need := min(a.Errors.MinRequests, a.Latency.MinRequests); w.Wanted < need {
		c.Verdict, c.Why = VerdictInconclusive, fmt.Sprintf("%s: %d are needed", c.Why, need)
	} else if c.Gray < a.MinMatched {
		c.Verdict, c.Why = VerdictInconclusive, fmt.Sprintf("%s: too few to tell, %s are needed", c.Why, percentText(a.MinMatched))
	}
	return c
}

// measure is what a check sees in a window, or in several together.
type measure struct {
	bad          bool    // by the numbers alone
	missing      string  // what keeps it from a pass; "" where nothing does
	enough       bool    // gray had the minimum of requests
	gray, stable float64 // as in Check
	why          string
	p            func() float64 // nil where no test is asked for
}

// run follows the windows back for as long as they are bad.
func (a *Analysis) run(windows []*Window, consecutive int, name string, see func(*Window) measure) Check {
	newest := see(windows[0])
	c := Check{Name: name, Verdict: VerdictPass, Gray: newest.gray, Stable: newest.stable, Why: newest.why, P: 1}
	if !newest.bad {
		if newest.missing != "" {
			c.Verdict, c.Why = VerdictInconclusive, newest.missing
		}
		return c
	}
	c.Verdict = VerdictInconclusive
	together := *windows[0]
	var doubt string
	whole := 1 // what is left of the stage before the others is no window of its own
	for i, w := range windows {
		if i > 0 {
			if i < consecutive && !see(w).bad {
				c.Why = fmt.Sprintf("%s: bad in %d of %d windows", newest.why, i, consecutive)
				return c
			}
			together.merge(w)
			if w.To.Sub(w.From) >= a.Window {
				whole++
			}
		}
		m := see(&together)
		p := 0.0
		if m.p != nil {
			p = m.p()
			c.P = min(c.P, p)
		}
		if whole >= consecutive && m.bad && m.enough && p < a.Level {
			c.Verdict, c.Gray, c.Stable, c.Why = VerdictFail, m.gray, m.stable, m.why
			if m.p != nil {
				c.P = p
				c.Why += fmt.Sprintf("; by chance with a probability of %.2g", p)
			}
			return c
		}
		switch {
		case whole < consecutive:
			doubt = fmt.Sprintf("bad in %d of %d windows", whole, consecutive)
		case !m.bad:
			doubt = "not bad in the windows before"
		case !m.enough:
			doubt = "more gray requests are needed"
		default:
			doubt = fmt.Sprintf("by chance with a probability of %.2g, which is to be below %.2g", p, a.Level)
		}
	}
	c.older = true
	c.Why = newest.why + ": " + doubt
	return c
}

// stable returns what gray is compared with: what stable did in the window, or the
// baseline where that is too little.
func stable(g *Group, base *Baseline, need uint64) (requests, errors uint64, fromBase bool) {
	if g.Requests < need && base != nil && base.Requests > g.Requests {
		return base.Requests, base.Errors, true
	}
	return g.Requests, g.Errors, false
}

func (a *Analysis) errors(w *Window, base *Baseline) (m measure) {
	k := &a.Errors
	requests, errors, _ := stable(&w.Stable, base, k.MinRequests)
	m.gray = w.Gray.rate()
	m.enough = w.Gray.Requests >= k.MinRequests
	if requests > 0 {
		m.stable = float64(errors) / float64(requests)
		m.bad = w.Gray.Requests > 0 && m.gray > k.Floor && m.gray > k.Ratio*m.stable
	}
	m.missing = lacking(w.Gray.Requests, requests, k.MinRequests)
	m.why = fmt.Sprintf("%d of %d gray requests failed (%s), %d of %d stable ones (%s)",
		w.Gray.Errors, w.Gray.Requests, percentText(m.gray), errors, requests, percentText(m.stable))
	m.p = func() float64 { return FisherGreater(w.Gray.Errors, w.Gray.Requests, errors, requests) }
	return m
}

func (a *Analysis) errorsMax(w *Window) (m measure) {
	m.gray, m.stable = w.Gray.rate(), a.Errors.Max
	m.bad = m.gray > a.Errors.Max
	m.enough = w.Gray.Requests >= a.Errors.MinRequests
	m.missing = lacking(w.Gray.Requests, a.Errors.MinRequests, a.Errors.MinRequests)
	m.why = fmt.Sprintf("%d of %d gray requests failed (%s), the limit is %s",
		w.Gray.Errors, w.Gray.Requests, percentText(m.gray), percentText(m.stable))
	return m
}

func (a *Analysis) latency(w *Window, base *Baseline) (m measure) {
	k := &a.Latency
	gray, stableLatency := &w.Gray.Latency, &w.Stable.Latency
	p99, stableP99 := gray.Quantile(0.99), stableLatency.Quantile(0.99)
	requests := stableLatency.Count()
	above := stableLatency.Above
	if requests < k.MinRequests && base != nil && base.Requests > requests && base.P99 > 0 {
		requests, stableP99 = base.Requests, base.P99
		above = func(time.Duration) uint64 { return base.Requests / 100 } // at most: what lies above its p99
	}
	limit := max(time.Duration(k.Ratio*float64(stableP99)), k.Floor)
	m.gray, m.stable = p99.Seconds(), stableP99.Seconds()
	m.enough = gray.Count() >= k.MinRequests
	m.bad = gray.Count() > 0 && requests > 0 && p99 > limit
	m.missing = lacking(gray.Count(), requests, k.MinRequests)
	m.why = fmt.Sprintf("the p99 of %d gray requests is %s, that of %d stable ones %s", gray.Count(), round(p99), requests, round(stableP99))
	m.p = func() float64 { return FisherGreater(gray.Above(limit), gray.Count(), above(limit), requests) }
	return m
}

func (a *Analysis) latencyMax(w *Window) (m measure) {
	p99 := w.Gray.Latency.Quantile(0.99)
	n := w.Gray.Latency.Count()
	m.gray, m.stable = p99.Seconds(), a.Latency.Max.Seconds()
	m.bad = p99 > a.Latency.Max
	m.enough = n >= a.Latency.MinRequests
	m.missing = lacking(n, a.Latency.MinRequests, a.Latency.MinRequests)
	m.why = fmt.Sprintf("the p99 of %d gray requests is %s, the limit is %s", n, round(p99), a.Latency.Max)
	return m
}

// lacking says what there is too little of; "" where there is enough.
func lacking(gray, stable, need uint64) string {
	switch {
	case gray < need:
		return fmt.Sprintf("%d gray requests, %d are needed", gray, need)
	case stable < need:
		return fmt.Sprintf("%d stable requests to compare with, %d are needed", stable, need)
	}
	return ""
}

func percentText(rate float64) string { return fmt.Sprintf("%.3g %%", rate*100) }

func round(d time.Duration) time.Duration {
	if d < time.Millisecond {
		return d.Round(time.Microsecond)
	}
	return d.Round(100 * time.Microsecond)
}
