package httplb

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
)

const (
	// weyl is 2^64 divided by the golden ratio: its multiples, modulo 2^64, lie
	// as evenly as any sequence can at every length, so that few requests are
	// spread as smoothly as many.
	weyl = 0x9e3779b97f4a7c15
	// maxWeight bounds a weight so that no sum of weights overflows.
	maxWeight = 1 << 16
)

// alias chooses among weighted items in constant time (Vose's alias method): of
// n slots of equal size each holds a share of one or two items. Choosing takes no
// lock, does not allocate, and costs the same for any number of items. All fields
// but the counter are immutable.
type alias[T any] struct {
	slots   []slot[T]
	counter atomic.Uint64
}

type slot[T any] struct {
	item, other T
	share       uint32 // of item in the slot, as a fraction of 2^32; the rest is other's
}

// newAlias returns nil where there is nothing to choose.
func newAlias[T any](items []T, weight func(T) int) *alias[T] {
	n := len(items)
	if n == 0 {
		return nil
	}
	a := &alias[T]{slots: make([]slot[T], n)}
	a.counter.Store(rand.Uint64()) // clients that start together must not march in step
	weights := make([]uint64, n)
	var total uint64
	for i, item := range items {
		w := uint64(min(max(weight(item), 1), maxWeight))
		weights[i] = w * uint64(n) // a slot holds total of these
		total += w
	}
	var small, large []int
	for i, w := range weights {
		a.slots[i].item = items[i]
		if w < total {
			small = append(small, i)
		} else {
			large = append(large, i)
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.slots[s].share = uint32((weights[s] << 32) / total)
		a.slots[s].other = items[l]
		weights[l] -= total - weights[s]
		if weights[l] < total {
			large = large[:len(large)-1]
			small = append(small, l)
		}
	}
	// The arithmetic is exact: what is left fills its slot alone.
	for _, i := range append(small, large...) {
		a.slots[i].share, a.slots[i].other = 1<<32-1, items[i]
	}
	return a
}

// next returns the next item.
func (a *alias[T]) next() T {
	at, in := bits.Mul64(a.counter.Add(weyl), uint64(len(a.slots)))
	s := &a.slots[at]
	if uint32(in>>32) < s.share {
		return s.item
	}
	return s.other
}
