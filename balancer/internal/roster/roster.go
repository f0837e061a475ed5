package roster

import "github.com/graylane/graylane/registry"

// Instance is an instance, and whether it may serve.
type Instance struct {
	registry.Instance
	Usable bool
}

// Read returns what is registered in set, each address once, in the order of set.
// Of several registrations of one address the newest holds, whatever its status:
// the others tell the version of a process that is gone. A registry that does not
// order registrations leaves it to health. Warning says that instances in warning
// may serve. What has no address is left out.
func Read(set []registry.Instance, warning bool) []Instance {
	usable := func(i registry.Instance) bool {
		return i.Status == registry.StatusPassing || warning && i.Status == registry.StatusWarning
	}
	newest := make(map[string]int, len(set))
	for i, in := range set {
		at, ok := newest[in.Address]
		if !ok || in.Seq > set[at].Seq || in.Seq == set[at].Seq && (usable(in) || !usable(set[at])) {
			newest[in.Address] = i
		}
	}
	kept := make([]Instance, 0, len(newest))
	for i, in := range set {
		if newest[in.Address] == i && in.Address != "" {
			kept = append(kept, Instance{in, usable(in)})
		}
	}
	return kept
}
