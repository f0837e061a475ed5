package rollout

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/graylane/graylane/graytag/rule"
)

// Change returns the rule document after command c on a plan, and the event that
// this is. Both are nil where there is nothing to change: a rollback of what is
// rolled back. It writes nothing; [Run] does.
//
// All rules of the plan change with its state: internal enables those of testers and
// sets the percentages to 0; running enables all, at the percentage of the stage; done
// is 100 %; rolled back disables all. A pause and a freeze touch none: what somebody
// has switched off by hand stays off until the plan is resumed. Nothing else in the
// text changes.
//
// The error is a [*NoPlanError], a [*CommandError] where the phase does not fit, or
// holds faults of the document or of the plan. A rollback is done also where the
// plan or its state is faulty.
func Change(data []byte, plan string, c Command, n Note) ([]byte, *Event, error) {
	n = n.cut()
	set, err := rule.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	p, err := planOf(set, plan)
	if err != nil {
		if _, there := set.Plans[plan]; !there || c != CommandRollback {
			return nil, nil, err
		}
		p = salvage(plan, set.Plans[plan])
		n.Why = shorten(strings.TrimSpace(n.Why+" "+unknownRules(set, plan)), MaxWhyBytes)
	}
	to, err := p.Do(c, n)
	if err != nil {
		return nil, nil, err
	}
	kind := kindOf[c]
	if kind == KindPromoted && to.Phase == Done {
		kind = KindDone
	}
	return p.write(data, Move{Kind: kind, To: to, Why: n.Why}, nil, n)
}

// unknownRules says which rules a faulty plan names in vain: a rollback cannot disable
// them, and people have to know.
func unknownRules(set *rule.Set, plan string) string {
	v, err := value(set.Plans[plan])
	if err != nil {
		return ""
	}
	m, _ := v.(map[string]any)
	names := slices.DeleteFunc(namedRules(m), func(name string) bool {
		return slices.ContainsFunc(set.Rules, func(r rule.Rule) bool { return r.ID == name })
	})
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("(no rule has the id %q)", names)
}

// salvage is a plan of which nothing but the state may be good.
func salvage(id string, raw []byte) *Plan {
	p := &Plan{ID: id, State: State{Phase: Pending}}
	v, err := value(raw)
	if err != nil {
		return p
	}
	m, _ := v.(map[string]any)
	if s, ok := m["state"]; ok {
		var f faults
		if state := (&decoder{&f}).state("state", s, true); len(f.list) == 0 {
			p.State = state
		}
	}
	return p
}

// Step returns the rule document after what [Plan.Next] makes of a report, and the
// event. The document is nil where nothing is to be written, be it that there is
// only something to suggest; the event is nil where there is nothing at all. While
// the kill switch is on no plan goes forward.
func Step(data []byte, plan string, r *Report, n Note) ([]byte, *Event, error) {
	set, err := rule.Parse(data)
	if err != nil {
		return nil, nil, err
	}
	p, err := planOf(set, plan)
	if err != nil {
		return nil, nil, err
	}
	m := p.Next(r, n)
	if m.Kind == "" || set.Stop && r.Verdict != VerdictFail {
		return nil, nil, nil
	}
	return p.write(data, m, r, n)
}

// write returns the document after a move.
func (p *Plan) write(data []byte, m Move, r *Report, n Note) ([]byte, *Event, error) {
	n = n.cut()
	e := &Event{
		Kind: m.Kind, Plan: p.ID, From: p.State, To: m.To, Percent: p.Percent(m.To.Stage),
		Time: n.At, Who: n.Who, Why: shorten(m.Why, MaxWhyBytes), Report: r,
	}
	if m.To.phase() == RolledBack {
		e.Percent = zeroPercent
	}
	if m.Kind == KindSuggestAdvance || m.Kind == KindSuggestBreach {
		return nil, e, nil
	}
	changed, err := setState(data, p.ID, m.To)
	if err != nil {
		return nil, nil, err
	}
	if bytes.Equal(changed, data) {
		return nil, nil, nil
	}
	return changed, e, nil
}

// reason is what the history of the store says about the event.
func (e *Event) reason() string {
	text := string(e.Kind)
	if e.Plan != "" {
		text = fmt.Sprintf("plan %s: %s", e.Plan, e.Kind)
	}
	switch e.To.Phase {
	case Running, Done:
		text += fmt.Sprintf(", stage %d at %s %%", e.To.Stage, e.Percent)
	}
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}
