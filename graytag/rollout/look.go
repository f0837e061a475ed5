package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
// stage began are not asked for. What src cannot tell is inconclusive, and so is a panic
// in it; where it says since when it knows everything, a fail is looked for in that.
// Services are asked about at once; ctx bounds how long that may take.
func (p *Plan) Look(ctx context.Context, src Source, now time.Time) Report {
	return p.look(ctx, src, now, p.State.Entered)
}

// look is Look where the stage is known to have begun at since.
func (p *Plan) look(ctx context.Context, src Source, now, since time.Time) Report {
	now, src = now.UTC().Round(0), calm{src}
	r := Report{Verdict: VerdictPass, Time: now, Stage: p.State.Stage, Entered: p.State.Entered, Targets: slices.Clone(p.Targets)}
	if len(p.Targets) == 0 {
		r.add(Check{Name: CheckSource, Verdict: VerdictInconclusive, Why: "the plan names no version to look at", P: 1})
	}
	if len(p.Drift) > 0 {
		r.add(Check{Name: CheckRules, Verdict: VerdictInconclusive, Why: fmt.Sprintf("somebody has changed the rules %q: they are not as the stage has them", p.Drift), P: 1})
	}
	// At once, so that a service which is slow to ask about hides no other.
	parts := make([]Report, len(p.Targets))
	slots := make(chan struct{}, looksAtOnce)
	var looks sync.WaitGroup
	for i, t := range p.Targets {
		looks.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			parts[i].Time = now
			p.lookAt(ctx, src, t, since, &parts[i])
		})
	}
	looks.Wait()
	for i := range parts {
		r.merge(&parts[i])
	}
	return r
}

// looksAtOnce bounds how many services a source is asked about at once.
const looksAtOnce = 8

func (r *Report) merge(o *Report) {
	for _, c := range o.Checks {
		r.add(c)
	}
	for service, b := range o.Baseline {
		if r.Baseline == nil {
			r.Baseline = map[string]Baseline{}
		}
		r.Baseline[service] = b
	}
}

func (r *Report) add(c Check) {
	r.Checks = append(r.Checks, c)
	r.Verdict = r.Verdict.worse(c.Verdict)
}

// calm is a source that does not panic.
type calm struct{ Source }

// Samples implements [Source].
func (c calm) Samples(ctx context.Context, q Query) (samples []Sample, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rollout: the source panicked: %v", p)
		}
	}()
	return c.Source.Samples(ctx, q)
}

func (p *Plan) lookAt(ctx context.Context, src Source, t Target, since time.Time, r *Report) {
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
		if from.Before(since) {
			from = since
		}
		if !from.Before(to) || len(windows) == most {
			break
		}
		q := Query{Service: t.Service, Version: t.Version, From: from, To: to}
		samples, err := src.Samples(ctx, q)
		failed := err
		if gap := (*IncompleteError)(nil); errors.As(err, &gap) && gap.Since.After(from) && gap.Since.Before(to) {
			q.From = gap.Since
			samples, err = src.Samples(ctx, q)
		}
		if err == nil {
			windows = append(windows, NewWindow(t.Version, q.From, to, samples))
			checks = a.Judge(windows, base)
		}
		if failed != nil {
			// What the newer windows say stands, a fail that is: it needs no older ones.
			checks = append(checks, Check{Name: CheckSource, Verdict: VerdictInconclusive, Why: fmt.Sprintf("the samples cannot be read: %v", failed), P: 1})
			break
		}
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
