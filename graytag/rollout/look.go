package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Report is what samples say about a plan at its stage.
type Report struct {
	Verdict Verdict `json:"verdict"`
	Checks  []Check `json:"checks"`
	// Time is the end of the newest window.
	Time time.Time `json:"time"`
	// Stage and Entered are those of the state that the report is about: it says
	// nothing about another one.
	Stage   int       `json:"stage"`
	Entered time.Time `json:"entered"`
	// Targets are those of the plan that the report is about: somebody may give the
	// rules another version meanwhile.
	Targets []Target `json:"-"`
	// Baseline is how stable was in the newest window, by service, where it had the
	// minimum of requests.
	Baseline map[string]Baseline `json:"-"`
}

// Look asks src how the plan does at now and judges it. Samples from before the
// stage began are not asked for. What src cannot tell is inconclusive; a panic in
// it is not caught, and ctx bounds how long it may take.
func (p *Plan) Look(ctx context.Context, src Source, now time.Time) Report {
	now = now.UTC().Round(0)
	r := Report{Verdict: VerdictPass, Time: now, Stage: p.State.Stage, Entered: p.State.Entered, Targets: slices.Clone(p.Targets)}
	if len(p.Targets) == 0 {
		r.add(Check{Name: CheckSource, Verdict: VerdictInconclusive, Why: "the plan names no version to look at", P: 1})
	}
	if len(p.Drift) > 0 {
		r.add(Check{Name: CheckRules, Verdict: VerdictInconclusive, Why: fmt.Sprintf("somebody has changed the rules %q: they are not as the stage has them", p.Drift), P: 1})
	}
	for _, t := range p.Targets {
		p.lookAt(ctx, src, t, &r)
	}
	return r
}

func (r *Report) add(c Check) {
	r.Checks = append(r.Checks, c)
	r.Verdict = r.Verdict.worse(c.Verdict)
}

func (p *Plan) lookAt(ctx context.Context, src Source, t Target, r *Report) {
	a := &p.Analysis
	most := max(pooled, a.Errors.Consecutive, a.Latency.Consecutive)
	var base *Baseline
	if b, ok := p.State.Baseline[t.Service]; ok && p.Percent(p.State.Stage) == allPercent {
		base = &b
	}
	var windows []*Window
	var checks []Check
	for to := r.Time; ; {
		from := to.Add(-a.Window)
		if from.Before(p.State.Entered) {
			from = p.State.Entered
		}
		if !from.Before(to) || len(windows) == most {
			break
		}
		samples, err := src.Samples(ctx, Query{Service: t.Service, Version: t.Version, From: from, To: to})
		if err != nil {
			// What the newer windows say stands: a fail needs no older ones.
			checks = append(checks, Check{Name: CheckSource, Verdict: VerdictInconclusive, Why: fmt.Sprintf("the samples cannot be read: %v", err), P: 1})
			break
		}
		windows = append(windows, NewWindow(t.Version, from, to, samples))
		checks = a.Judge(windows, base)
		if !older(checks) {
			break
		}
		to = from
	}
	if len(checks) == 0 {
		checks = a.Judge(nil, nil)
	}
	for _, c := range checks {
		c.Target = t
		r.add(c)
	}
	if len(windows) > 0 {
		if s := &windows[0].Stable; s.Requests >= a.Errors.MinRequests {
			if r.Baseline == nil {
				r.Baseline = map[string]Baseline{}
			}
			r.Baseline[t.Service] = Baseline{Requests: s.Requests, Errors: s.Errors, P99: s.Latency.Quantile(0.99)}
		}
	}
}

// older tells whether windows from before may turn what is inconclusive into a
// fail.
func older(checks []Check) bool {
	some := false
	for i := range checks {
		if checks[i].Verdict == VerdictFail {
			return false
		}
		some = some || checks[i].older
	}
	return some
}
