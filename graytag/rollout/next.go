package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Move is what becomes of a plan.
type Move struct {
	// Kind is "" where nothing does.
	Kind Kind
	// To is the state to be written; the present one where Kind is "" or a
	// suggestion.
	To State
	// Why says it for people.
	Why string
}

// Next returns what becomes of the plan at n.At, given a report of [Plan.Look]; n.Who
// is the controller, n.Why is not looked at. It is a function of its arguments
// alone: the same ones give the same move on every gateway.
//
// A fail goes before everything else, so that a breach in the tick that would have
// promoted is a breach. A step forward needs the end of the hold and a pass, and
// rules that are as the stage has them. A report about another stage or version,
// or one that is older than three evaluations, counts as none.
func (p *Plan) Next(r *Report, n Note) Move {
	s := &p.State
	none := Move{To: p.State}
	if !p.watched() || !r.about(p, n.At) {
		return none
	}
	phase := s.phase()
	switch {
	case r.Verdict == VerdictFail:
		return p.breach(r, n)
	case len(p.Drift) > 0: // a step forward would undo what somebody has done by hand
	case (phase == Running || phase == InternalOnly && p.Internal.Hold > 0) && r.Verdict == VerdictPass && !n.At.Before(s.Since.Add(p.hold(s.Stage))):
		return p.advance(r, n)
	}
	return none
}

// reportsLast is for how many evaluations a report counts.
const reportsLast = 3

// about tells whether the report is about the present stage of p. One from the
// future, where a clock was set back, is none.
func (r *Report) about(p *Plan, now time.Time) bool {
	return r != nil && r.Stage == p.State.Stage && r.Entered.Equal(p.State.Entered) && slices.Equal(r.Targets, p.Targets) &&
		now.Sub(r.Time).Abs() <= reportsLast*p.Analysis.Every
}

func (p *Plan) breach(r *Report, n Note) Move {
	n.Why = r.failures()
	n = n.cut()
	kind, to := KindRolledBack, p.back(n)
	switch {
	case p.OnBreach == BreachFreeze:
		kind, to = KindFrozen, p.State.clone()
		to.Phase, to.Since, to.Who, to.Why = Frozen, n.At, n.Who, n.Why
	case p.OnBreach == BreachPrevious && p.State.Stage > 1 && len(p.Drift) == 0:
		kind, to = KindWentBack, p.State.clone().enter(Paused, p.State.Stage-1, n)
	}
	if p.Mode == ModeSuggest {
		return Move{Kind: KindSuggestBreach, To: p.State, Why: n.Why}
	}
	return Move{Kind: kind, To: to, Why: n.Why}
}

func (p *Plan) advance(r *Report, n Note) Move {
	s := &p.State
	n.Why = fmt.Sprintf("passed at %s %% for %s", p.Percent(s.Stage), n.At.Sub(s.Since).Round(time.Second))
	n = n.cut()
	to := p.forward(n)
	for service, b := range r.Baseline {
		if to.Baseline == nil {
			to.Baseline = map[string]Baseline{}
		}
		to.Baseline[service] = b
	}
	kind := KindAdvanced
	if to.Phase == Done {
		kind, to.Baseline = KindDone, nil
	}
	if p.Mode == ModeSuggest {
		return Move{Kind: KindSuggestAdvance, To: p.State, Why: n.Why}
	}
	return Move{Kind: kind, To: to, Why: n.Why}
}

// failures says which checks failed.
func (r *Report) failures() string {
	var all []string
	for _, c := range r.Checks {
		if c.Verdict == VerdictFail {
			who := c.Target.Version
			if c.Target.Service != "" {
				who += " of " + c.Target.Service
			}
			all = append(all, who+": "+c.Why)
		}
	}
	return strings.Join(all, "; ")
}
