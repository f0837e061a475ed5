package registry

import (
	"cmp"
	"maps"
	"slices"
)

// Equal reports whether i and o say the same. A nil and an empty Metadata are
// the same, and so are the weights 0 and 1. Seq counts: it decides between two
// instances with one address.
func (i Instance) Equal(o Instance) bool {
	return i.ID == o.ID && i.Service == o.Service && i.Address == o.Address &&
		i.Status == o.Status && i.Seq == o.Seq &&
		max(i.Weight, 1) == max(o.Weight, 1) &&
		maps.Equal(i.Metadata, o.Metadata)
}

// Clone returns i with a copy of its Metadata, so that a change of either is not
// seen by the other.
func (i Instance) Clone() Instance {
	i.Metadata = maps.Clone(i.Metadata)
	return i
}

// EqualSnapshots reports whether two snapshots hold equal instances in the same
// order. A nil and an empty snapshot are equal.
func EqualSnapshots(a, b []Instance) bool {
	return slices.EqualFunc(a, b, Instance.Equal)
}

// SortSnapshot sorts s in place as a [Discovery] yields it: by ID, and where a
// registry has several instances of one ID, by Address and then by Seq.
func SortSnapshot(s []Instance) {
	slices.SortFunc(s, func(a, b Instance) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Seq, b.Seq))
	})
}
