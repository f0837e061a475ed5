package httplb

import (
	"net"
	"slices"

	"github.com/graylane/graylane/balancer/internal/roster"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
)

// instance is one instance as the registry last described it. It is immutable;
// what the balancer learns about it is in its endpoint.
type instance struct {
	registry.Instance
	version  string
	endpoint *endpoint
}

func (i *instance) weight() int { return i.Weight }

// group is the instances of one version: what the registry says of them.
type group struct {
	version    string
	registered int
	instances  []*instance // those that may serve, reachable or not
}

// groupInstances divides a snapshot by version.
func groupInstances(set []registry.Instance, selector *subset.Selector, warning bool, endpoint func(registry.Instance) *endpoint) []group {
	var groups []group
	at := make(map[string]int)
	for _, in := range roster.Read(set, warning) {
		version := selector.Version(in.Metadata)
		g, ok := at[version]
		if !ok {
			g = len(groups)
			at[version] = g
			groups = append(groups, group{version: version})
		}
		groups[g].registered++
		if in.Usable && dialable(in.Address) {
			groups[g].instances = append(groups[g].instances, &instance{Instance: in.Instance, version: version, endpoint: endpoint(in.Instance)})
		}
	}
	return groups
}

func dialable(address string) bool {
	host, port, err := net.SplitHostPort(address)
	return err == nil && host != "" && port != ""
}

// view is everything that a request needs to choose an instance. It is immutable
// but for the counters in its aliases; a new one replaces it with every change.
type view struct {
	table   *subset.Table             // instances that are aside do not count as ready
	aside   bool                      // some are
	groups  []group                   // as the registry has them
	subsets []*alias[*instance]       // parallel to groups; nil where none is ready
	any     *alias[*alias[*instance]] // over the subsets that are ready, by their size
	size    int                       // instances that may serve
}

// newView builds a view of what the endpoints are at this moment.
func newView(groups []group, selector *subset.Selector) *view {
	v := &view{groups: groups, subsets: make([]*alias[*instance], len(groups))}
	table := make([]subset.Subset, len(groups))
	var all []*alias[*instance]
	for i, g := range groups {
		v.size += len(g.instances)
		ready := make([]*instance, 0, len(g.instances))
		for _, in := range g.instances {
			if in.endpoint.due.Load() == 0 {
				ready = append(ready, in)
			} else {
				v.aside = true
			}
		}
		table[i] = subset.Subset{Version: g.version, Registered: g.registered, Ready: len(ready)}
		if a := newAlias(ready, (*instance).weight); a != nil {
			v.subsets[i] = a
			all = append(all, a)
		}
	}
	v.table = selector.NewTable(table)
	v.any = newAlias(all, func(a *alias[*instance]) int { return len(a.slots) })
	return v
}

// pick chooses the instance for a request with tag; none where the choice is
// Unavailable. It takes no lock, does not allocate, and its cost does not depend
// on the number of instances.
func (v *view) pick(tag graytag.Tag) (in *instance, choice *subset.Choice, wanted string) {
	choice, wanted = v.table.Choose(tag)
	switch len(choice.Subsets) {
	case 0:
	case 1:
		in = v.subsets[choice.Subsets[0]].next()
	default:
		// Several are a choice of FallbackAny only, and then all that are ready.
		in = v.any.next().next()
	}
	return in, choice, wanted
}

// lastResort chooses where nothing is ready and something is aside: of the
// instances that may serve, if they can be reached, the one that is due first. It
// leaves out those that the request has found down itself.
func (v *view) lastResort(tag graytag.Tag, selector *subset.Selector, down []*endpoint) (first *instance, of *subset.Choice) {
	if !v.aside {
		return nil, nil
	}
	table := make([]subset.Subset, len(v.groups))
	for i, g := range v.groups {
		table[i] = subset.Subset{Version: g.version, Registered: g.registered, Ready: len(g.instances)}
	}
	var soonest int64
	for {
		// What the policy would choose, then what it would choose without that,
		// until it has nothing more to give.
		choice, _ := selector.NewTable(table).Choose(tag)
		if len(choice.Subsets) == 0 || choice.Wait {
			return first, of
		}
		for _, i := range choice.Subsets {
			table[i].Ready = 0
			for _, in := range v.groups[i].instances {
				if due := in.endpoint.due.Load(); due != 0 && (first == nil || due < soonest) && !slices.Contains(down, in.endpoint) {
					first, soonest, of = in, due, choice
				}
			}
		}
	}
}
