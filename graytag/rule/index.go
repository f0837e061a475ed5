package rule

import (
	"cmp"
	"slices"
)

// The index finds the rules that may match without looking at the others. Each
// rule that has an equals, in, prefix, suffix or exists condition hangs on one
// of them, its access; a decision collects the rules that hang on what the
// request holds, and tests those in the order of evaluation. What it costs
// depends on how many attributes are looked at and on how many rules hang on
// the same values, not on how many rules there are.

// slotIndex is the index of one attribute.
type slotIndex struct {
	slot     int32
	exact    map[string]posting
	prefixes []lengthIndex // the shortest first
	suffixes []lengthIndex
	present  []int32 // hang on exists
	lists    [][]int32
}

// lengthIndex holds the affixes of one length.
type lengthIndex struct {
	length int
	affix  map[string]posting
}

// posting is the rank of the one rule that hangs on a value or, below 0, the
// complement of the place of a list of ranks.
type posting int32

// use is a value that a rule could hang on.
type use struct {
	slot  int32
	kind  Op
	value string
}

func indexable(op Op) bool {
	switch op {
	case OpEquals, OpPrefix, OpSuffix, OpExists:
		return true
	}
	return false
}

// eachUse calls f with everything that a rule would hang on.
func (c *condition) eachUse(f func(use)) {
	if c.op == OpExists {
		f(use{slot: c.slot, kind: OpExists})
		return
	}
	for _, v := range c.few {
		f(use{c.slot, c.op, v})
	}
}

// buildIndex chooses the access of every rule and builds the index.
func (p *program) buildIndex() {
	// How many rules could hang on a value tells how well it selects.
	crowd := map[use]int{}
	for i := range p.rules {
		r := &p.rules[i]
		if r.never() || countIndexable(r) < 2 {
			continue // has no choice
		}
		for j := range r.conditions {
			if c := &r.conditions[j]; indexable(c.op) {
				c.eachUse(func(u use) { crowd[u]++ })
			}
		}
	}
	places := map[int32]int{}
	for i := range p.rules {
		r := &p.rules[i]
		if r.never() {
			continue
		}
		if r.access = choose(r, crowd); r.access < 0 {
			p.always = append(p.always, int32(i))
			continue
		}
		c := &r.conditions[r.access]
		at, ok := places[c.slot]
		if !ok {
			at = len(p.index)
			places[c.slot] = at
			p.index = append(p.index, slotIndex{slot: c.slot})
		}
		p.index[at].add(c, int32(i))
	}
}

func countIndexable(r *compiled) (n int) {
	for j := range r.conditions {
		if indexable(r.conditions[j].op) {
			n++
		}
	}
	return n
}

// choose returns the condition that the fewest other rules share, and of those
// the one that selects best by its operator.
func choose(r *compiled, crowd map[use]int) int {
	best, bestCrowd, bestRank := -1, 0, 0
	for j := range r.conditions {
		c := &r.conditions[j]
		if !indexable(c.op) {
			continue
		}
		worst, rank := 0, 0
		c.eachUse(func(u use) { worst = max(worst, crowd[u]) })
		switch {
		case c.op == OpPrefix || c.op == OpSuffix:
			rank = 1
		case c.op == OpExists:
			rank = 2
		}
		if best < 0 || worst < bestCrowd || worst == bestCrowd && rank < bestRank {
			best, bestCrowd, bestRank = j, worst, rank
		}
	}
	return best
}

func (x *slotIndex) add(c *condition, rank int32) {
	switch c.op {
	case OpExists:
		x.present = append(x.present, rank)
	case OpEquals:
		if x.exact == nil {
			x.exact = make(map[string]posting, len(c.few))
		}
		for _, v := range c.few {
			x.post(x.exact, v, rank)
		}
	case OpPrefix:
		x.prefixes = x.addAffixes(x.prefixes, c.few, rank)
	case OpSuffix:
		x.suffixes = x.addAffixes(x.suffixes, c.few, rank)
	}
}

func (x *slotIndex) addAffixes(lengths []lengthIndex, values []string, rank int32) []lengthIndex {
	for _, v := range values {
		i, ok := slices.BinarySearchFunc(lengths, len(v), func(l lengthIndex, n int) int { return cmp.Compare(l.length, n) })
		if !ok {
			lengths = slices.Insert(lengths, i, lengthIndex{len(v), map[string]posting{}})
		}
		x.post(lengths[i].affix, v, rank)
	}
	return lengths
}

// post hangs the rule on the value. Ranks come in ascending order.
func (x *slotIndex) post(m map[string]posting, v string, rank int32) {
	switch at, ok := m[v]; {
	case !ok:
		m[v] = posting(rank)
	case at < 0:
		if list := x.lists[^at]; list[len(list)-1] != rank {
			x.lists[^at] = append(list, rank)
		}
	case int32(at) != rank:
		m[v] = posting(^len(x.lists))
		x.lists = append(x.lists, []int32{int32(at), rank})
	}
}

// candidates are the rules that may match, in several ascending lists which are
// read together as one, through a heap. It is handed on by value, so that it can
// live on the stack.
type candidates []head

// head is a list: its next rank, and those after it.
type head struct {
	rank int32
	rest []int32
}

func (c candidates) add(list []int32) candidates {
	if len(list) == 0 {
		return c
	}
	return append(c, head{list[0], list[1:]})
}

func (c candidates) find(x *slotIndex, m map[string]posting, v string) candidates {
	at, ok := m[v]
	if !ok {
		return c
	}
	if at < 0 {
		return c.add(x.lists[^at])
	}
	return append(c, head{rank: int32(at)})
}

// collect adds what hangs on the value of the attribute.
func (c candidates) collect(x *slotIndex, v string) candidates {
	if x.exact != nil {
		c = c.find(x, x.exact, v)
	}
	for i := range x.prefixes {
		l := &x.prefixes[i]
		if l.length > len(v) {
			break
		}
		c = c.find(x, l.affix, v[:l.length])
	}
	for i := range x.suffixes {
		l := &x.suffixes[i]
		if l.length > len(v) {
			break
		}
		c = c.find(x, l.affix, v[len(v)-l.length:])
	}
	return c.add(x.present)
}

// order makes the lists ready for next.
func (c candidates) order() {
	for i := len(c)/2 - 1; i >= 0; i-- {
		c.sink(i)
	}
}

// next takes the lowest rank; there must be one. A rule may come twice in a row.
func (c candidates) next() (int32, candidates) {
	top := &c[0]
	rank := top.rank
	if len(top.rest) > 0 {
		top.rank, top.rest = top.rest[0], top.rest[1:]
	} else {
		last := len(c) - 1
		c[0] = c[last]
		c = c[:last]
	}
	c.sink(0)
	return rank, c
}

func (c candidates) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(c); child++ {
			if c[child].rank < c[least].rank {
				least = child
			}
		}
		if least == i {
			return
		}
		c[i], c[least] = c[least], c[i]
		i = least
	}
}
