package rule

import (
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// condition is a Condition made ready for tests. It is immutable.
type condition struct {
	slot   int32 // of the attribute
	op     Op    // equals and not_equals stand for in and not_in, too
	few    []string
	many   map[string]struct{} // the same, to look up; nil where few is short or is the access
	regexs []*regexp.Regexp
	ranges ranges
	semver []*semver.Constraints
	mod    uint64
	below  uint64
}

// fewValues is how many values are compared one by one; more are looked up.
const fewValues = 8

// compiler keeps what conditions of one set share.
type compiler struct {
	slots   []slot
	byName  map[string]int32
	set     *Set
	values  []string // those of all conditions
	regexs  map[string]*regexp.Regexp
	semvers map[string]*semver.Constraints
}

// condition compiles a checked condition.
func (c *compiler) condition(in *Condition, out *condition) {
	*out = condition{slot: c.slot(in.Attr), op: in.Op, mod: uint64(in.Mod), below: uint64(in.Below)}
	start := len(c.values)
	c.values = append(c.values, in.Values...)
	values := c.values[start:len(c.values):len(c.values)]
	switch in.Op {
	case OpIn:
		out.op = OpEquals
	case OpNotIn:
		out.op = OpNotEquals
	}
	switch out.op {
	case OpEquals, OpNotEquals:
		if c.slots[out.slot].name == "ip" {
			canonicalAddrs(values)
		}
		out.few = values
	case OpPrefix, OpSuffix, OpContains:
		out.few = values
	case OpRegex:
		for _, v := range values {
			re, ok := c.regexs[v]
			if !ok {
				re = regexp.MustCompile(v) // is checked
				c.regexs[v] = re
			}
			out.regexs = append(out.regexs, re)
		}
	case OpSemver:
		for _, v := range values {
			r, ok := c.semvers[v]
			if !ok {
				r, _ = newConstraint(v) // is checked
				c.semvers[v] = r
			}
			out.semver = append(out.semver, r)
		}
	case OpCIDR:
		out.ranges = newRanges(values)
	}
}

// hash makes ready to look values up.
func (c *condition) hash() {
	if c.op != OpEquals && c.op != OpNotEquals || len(c.few) <= fewValues {
		return
	}
	c.many = make(map[string]struct{}, len(c.few))
	for _, v := range c.few {
		c.many[v] = struct{}{}
	}
}

// canonicalAddrs spells addresses as the attribute ip does.
func canonicalAddrs(values []string) {
	for i, v := range values {
		if a, err := netip.ParseAddr(v); err == nil {
			values[i] = plainAddr(a).String()
		}
	}
}

// test tells whether a value that is there passes.
func (c *condition) test(v string) bool {
	switch c.op {
	case OpEquals:
		return c.holds(v)
	case OpNotEquals:
		return !c.holds(v)
	case OpPrefix:
		for _, p := range c.few {
			if strings.HasPrefix(v, p) {
				return true
			}
		}
	case OpSuffix:
		for _, p := range c.few {
			if strings.HasSuffix(v, p) {
				return true
			}
		}
	case OpContains:
		for _, p := range c.few {
			if strings.Contains(v, p) {
				return true
			}
		}
	case OpRegex:
		if len(v) > MaxRegexValueBytes {
			return false // the time of a match grows with the value times the expression
		}
		for _, re := range c.regexs {
			if re.MatchString(v) {
				return true
			}
		}
	case OpExists:
		return true
	case OpMod:
		return c.testMod(v)
	case OpCIDR:
		a, ok := parseAddr(v)
		return ok && c.ranges.contains(a)
	case OpSemver:
		version, err := semver.NewVersion(v)
		if err != nil {
			return false
		}
		for _, r := range c.semver {
			if r.Check(version) {
				return true
			}
		}
	}
	return false // OpNotExists, too
}

func (c *condition) holds(v string) bool {
	if c.many != nil {
		_, ok := c.many[v]
		return ok
	}
	for _, w := range c.few {
		if v == w {
			return true
		}
	}
	return false
}

// testMod takes the value modulo mod digit by digit, so that it may be longer
// than any integer.
func (c *condition) testMod(v string) bool {
	if v == "" {
		return false
	}
	rest := uint64(0)
	for i := 0; i < len(v); i++ {
		if v[i] < '0' || v[i] > '9' {
			return false
		}
		hi, lo := bits.Mul64(rest, 10)
		lo, carry := bits.Add64(lo, uint64(v[i]-'0'), 0)
		_, rest = bits.Div64((hi+carry)%c.mod, lo, c.mod)
	}
	return rest < c.below
}

// parseAddr reads an address, with or without port, as a header may hold it.
func parseAddr(v string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(v); err == nil {
		return plainAddr(a), true
	}
	if ap, err := netip.ParseAddrPort(v); err == nil {
		return plainAddr(ap.Addr()), true
	}
	return netip.Addr{}, false
}

// ranges are address ranges, grouped by length: a look-up costs one map access
// for each length that occurs, however many ranges there are.
type ranges []rangeGroup

type rangeGroup struct {
	bits  int
	is4   bool
	bases map[netip.Addr]struct{}
}

func newRanges(values []string) (out ranges) {
	for _, v := range values {
		p, err := parseRange(v)
		if err != nil {
			continue // is checked
		}
		i := slices.IndexFunc(out, func(g rangeGroup) bool { return g.bits == p.Bits() && g.is4 == p.Addr().Is4() })
		if i < 0 {
			i = len(out)
			out = append(out, rangeGroup{p.Bits(), p.Addr().Is4(), map[netip.Addr]struct{}{}})
		}
		out[i].bases[p.Addr()] = struct{}{}
	}
	return out
}

func (r ranges) contains(a netip.Addr) bool {
	for _, g := range r {
		if g.is4 != a.Is4() {
			continue
		}
		p, err := a.Prefix(g.bits)
		if err != nil {
			continue
		}
		if _, ok := g.bases[p.Addr()]; ok {
			return true
		}
	}
	return false
}
