package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// document is a rule document that is about to be changed.
type document struct {
	set    *rule.Set
	splice splice
	root   int
	fields []member // of the document
	rules  []member
}

func readDocument(data []byte) (*document, error) {
	set, err := rule.Parse(data)
	if err != nil {
		return nil, err
	}
	d := &document{set: set, splice: splice{text: data}, root: space(data, 0)}
	d.fields = members(data, d.root)
	if m, ok := find(d.fields, "rules"); ok {
		d.rules = members(data, m.value)
	}
	return d, nil
}

// setRule changes fields of a rule; one that does not exist has none.
func (d *document) setRule(id string, percent rule.Percent, enabled bool) {
	i := slices.IndexFunc(d.set.Rules, func(r rule.Rule) bool { return r.ID == id })
	if i < 0 {
		return
	}
	r, at := &d.set.Rules[i], d.rules[i].value
	if percent.IsSet() && r.Percent != percent {
		d.splice.set(at, "percent", []byte(percent.String()))
	}
	if r.IsEnabled() != enabled {
		d.splice.set(at, "enabled", fmt.Append(nil, enabled))
	}
}

func (d *document) setState(plan string, s State) error {
	text, err := s.MarshalJSON()
	if err != nil {
		return fmt.Errorf("rollout: state of %s: %w", plan, err)
	}
	plans, _ := find(d.fields, "plans")
	p, _ := find(members(d.splice.text, plans.value), plan)
	if was := salvage(plan, d.splice.text[p.value:p.end]).State; was.phase() != Pending {
		if same, err := was.MarshalJSON(); err == nil && bytes.Equal(same, text) {
			return nil // as somebody may have laid it out
		}
	}
	d.splice.set(p.value, "state", text)
	return nil
}

// bytes returns the changed document, which has to be one.
func (d *document) bytes() ([]byte, error) {
	data := d.splice.bytes()
	if _, err := rule.Parse(data); err != nil {
		return nil, fmt.Errorf("rollout: the changed document would be no rule set: %w", err)
	}
	return data, nil
}

// setState returns the rule document with a plan in state s, and with all rules of
// the plan as s has them: one write moves them together. Nothing else in the text
// changes. In detail: internal enables the rules of testers and sets the
// percentages to 0; running, paused and frozen enable all rules, at the percentage
// of the stage; done is 100 %; rolled back disables all; pending touches none. At the
// stage where the plan is, paused, frozen and the phase that it is in touch none
// either: what somebody has switched off by hand stays off.
//
// The plan must be a good one, but for a rollback, which is done also where the
// plan or its rules are faulty: it disables what it finds. A plan that does not
// exist is a [*NoPlanError]. The error holds the faults of s, or of a plan that
// already governs one of the rules, as of [Parse].
func setState(data []byte, plan string, s State) ([]byte, error) {
	d, err := readDocument(data)
	if err != nil {
		return nil, err
	}
	raw, ok := d.set.Plans[plan]
	if !ok {
		return nil, &NoPlanError{plan}
	}
	if s.phase() == RolledBack {
		return d.rollback(plan, raw, s)
	}
	p, err := planOf(d.set, plan)
	if err != nil {
		return nil, err
	}
	switch phase := s.phase(); {
	case phase == Pending:
	case phase.live() && p.State.Phase.live() && s.Stage == p.State.Stage && (phase == Paused || phase == Frozen || phase == p.State.Phase):
	case phase == InternalOnly:
		d.setRules(p, zeroPercent)
	default:
		d.setRules(p, p.Percent(s.Stage))
	}
	if err := d.setState(plan, s); err != nil {
		return nil, err
	}
	if data, err = d.bytes(); err != nil {
		return nil, err
	}
	set, err := rule.Parse(data)
	if err != nil {
		return nil, err
	}
	if _, err := planOf(set, plan); err != nil {
		return nil, err
	}
	before, _ := Parse(d.set)
	good, _ := Parse(set)
	for _, id := range slices.Sorted(maps.Keys(before)) {
		if good[id] == nil {
			return nil, &Error{Path: "plans." + plan + ".rules", Reason: fmt.Sprintf("one of the rules is governed by plan %s", id)}
		}
	}
	return data, nil
}

func (d *document) setRules(p *Plan, percent rule.Percent) {
	for _, id := range p.Internal.Rules {
		d.setRule(id, rule.Percent{}, true)
	}
	for _, id := range p.Rules {
		d.setRule(id, percent, true)
	}
}

// planOf returns a plan of a set, or what is wrong with that plan.
func planOf(set *rule.Set, id string) (*Plan, error) {
	if _, ok := set.Plans[id]; !ok {
		return nil, &NoPlanError{id}
	}
	read, tooMany := readPlans(set)
	for _, r := range read {
		if err := r.faults.err(); r.id == id && err != nil {
			return nil, err
		} else if r.id == id {
			return r.plan, nil
		}
	}
	return nil, tooMany.err()
}

// rollback disables the rules of a plan. It trusts nothing in the plan but the
// names of rules, and those only as far as they exist.
func (d *document) rollback(plan string, raw json.RawMessage, s State) ([]byte, error) {
	v, err := value(raw)
	if err != nil {
		return nil, fmt.Errorf("rollout: plan %s: %w", plan, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, &Error{Path: "plans." + shorten(plan, 128), Reason: "must be an object"}
	}
	for _, name := range namedRules(m) {
		d.setRule(name, rule.Percent{}, false)
	}
	if err := d.setState(plan, s); err != nil {
		return nil, err
	}
	return d.bytes()
}

// namedRules returns the ids that stand in a plan of which nothing may be good.
func namedRules(plan map[string]any) (names []string) {
	internal, _ := plan["internal"].(map[string]any)
	seen := map[string]bool{}
	for _, list := range []any{plan["rules"], internal["rules"]} {
		ids, _ := list.([]any)
		for _, id := range ids {
			if name, ok := id.(string); ok && !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
		}
	}
	return names
}

// stopAlone is a document that does nothing but stop.
var stopAlone = []byte(`{"stop": true}`)

// setStop returns the rule document with the kill switch on or off. On sends
// everyone to stable whatever the rules say; data that is no rule set, or has no room
// for the switch, becomes a document that does nothing else, for engines would not take
// it otherwise. Off starts the holds of all plans anew at now: what happened before the
// stop is no evidence.
func setStop(data []byte, stop bool, now time.Time) ([]byte, error) {
	d, err := readDocument(data)
	if err != nil {
		if stop {
			return bytes.Clone(stopAlone), nil
		}
		return nil, err
	}
	if d.set.Stop == stop {
		return data, nil
	}
	d.splice.set(d.root, "stop", fmt.Append(nil, stop))
	if !stop {
		if err := d.renew(now); err != nil {
			return nil, err
		}
	}
	changed, err := d.bytes()
	if err != nil && stop {
		return bytes.Clone(stopAlone), nil // it has no room for the switch
	}
	return changed, err
}

// renew starts the holds of all plans that govern rules anew.
func (d *document) renew(now time.Time) error {
	now = now.UTC().Round(0)
	plans, _ := Parse(d.set) // one with a fault moves nothing anyway
	for id, p := range plans {
		if p.State.Phase.live() {
			if err := d.setState(id, p.State.renewed(now)); err != nil {
				return err
			}
		}
	}
	return nil
}
