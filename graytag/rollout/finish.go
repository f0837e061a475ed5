package rollout

import (
	"fmt"
	"strings"

	"github.com/graylane/graylane/graytag/rule"
)

// NotReadyError says which services keep the rules of a plan from being cleared.
type NotReadyError struct {
	Plan string
	// Missing are the services without a READY stable instance of the new release.
	Missing []string
}

// Error names them.
func (e *NotReadyError) Error() string {
	return fmt.Sprintf("rollout: %s: clearing the rules now would send everyone back: no READY stable instance of the new release of %s",
		e.Plan, strings.Join(e.Missing, ", "))
}

// Finish returns the rule document without a plan that is done, and without its
// rules: everybody gets stable, which has to be the new release by then. ready
// returns how many READY stable instances of the new release a service has, by
// whatever in their metadata tells; where it is none for one of the services of the
// plan, the error is a [*NotReadyError] and nothing changes.
func Finish(data []byte, plan string, ready func(service string) int, n Note) ([]byte, *Event, error) {
	n = n.cut()
	d, err := readDocument(data)
	if err != nil {
		return nil, nil, err
	}
	p, err := planOf(d.set, plan)
	if err != nil {
		return nil, nil, err
	}
	if p.State.Phase != Done {
		return nil, nil, &CommandError{Plan: plan, Command: commandFinish, Phase: p.State.Phase}
	}
	if len(p.Services) == 0 {
		return nil, nil, &Error{Path: "plans." + plan + ".services", Reason: "name the services of the lane: all of them have to be ready before the rules are cleared"}
	}
	var missing []string
	for _, s := range p.Services {
		if ready == nil || ready(s) < 1 {
			missing = append(missing, s)
		}
	}
	if len(missing) > 0 {
		return nil, nil, &NotReadyError{Plan: plan, Missing: missing}
	}
	gone := map[string]bool{}
	for _, id := range p.RuleIDs() {
		gone[id] = true
	}
	rules, _ := find(d.fields, "rules")
	d.splice.keep(rules.value, func(k int, _ member) bool { return !gone[d.set.Rules[k].ID] })
	plans, _ := find(d.fields, "plans")
	d.splice.keep(plans.value, func(_ int, m member) bool { return m.key != plan })
	if data, err = d.bytes(); err != nil {
		return nil, nil, err
	}
	e := &Event{Kind: KindFinished, Plan: plan, From: p.State, Percent: rule.Percent{}, Time: n.At, Who: n.Who, Why: n.Why}
	return data, e, nil
}
