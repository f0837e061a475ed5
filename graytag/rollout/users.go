package rollout

import (
	"slices"
	"strings"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// checkUsers wants every service of a plan to get the same users, beyond the salt and
// hashBy that all rules share: what its rules ask for, taken together, has to be what
// those of every other service do.
func (c *checker) checkUsers(p *Plan, path string, f *faults) {
	var services []string
	first := map[string]int{} // the first rule of a service, "" is all of them
	for i, id := range p.Rules {
		for _, s := range servicesOrAll(c.rules[id]) {
			if _, seen := first[s]; !seen {
				first[s], services = i, append(services, s)
			}
		}
	}
	if len(services) < 2 {
		return
	}
	users := map[string][]string{}
	for _, id := range p.Rules {
		r := c.rules[id]
		asked := whom(r)
		for _, s := range servicesOrAll(r) {
			users[s] = append(users[s], asked)
		}
	}
	for _, s := range services {
		slices.Sort(users[s])
		users[s] = slices.Compact(users[s])
	}
	for _, s := range services[1:] {
		if one, other := p.Rules[first[services[0]]], p.Rules[first[s]]; !slices.Equal(users[s], users[services[0]]) {
			f.addf(at(path, first[s]), "rule %s does not choose the users of rule %s, by match, from or until: a user is to be gray on all services or on none", other, one)
		}
	}
}

func servicesOrAll(r *rule.Rule) []string {
	if len(r.Services) == 0 {
		return []string{""}
	}
	return r.Services
}

// whom spells what a rule asks for beside the percentage, the same for rules that
// ask the same in another order.
func whom(r *rule.Rule) string {
	asked := make([]string, 0, len(r.Match)+2)
	for _, m := range r.Match {
		m.Values = slices.Sorted(slices.Values(m.Values))
		asked = append(asked, text(m))
	}
	slices.Sort(asked)
	for _, t := range []time.Time{r.From, r.Until} {
		asked = append(asked, t.UTC().Format(time.RFC3339Nano))
	}
	return strings.Join(asked, "\n")
}
