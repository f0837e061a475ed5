package rule

import (
	"time"

	"github.com/graylane/graylane/graytag"
)

// Decision is what a request gets. It is a value; what its slices hold is
// shared and must not be changed.
type Decision struct {
	// Tag is the tag of the request; the zero Tag is untagged, that is, stable.
	Tag graytag.Tag
	// Rules holds the id of every rule that matched, in the order of evaluation;
	// it is empty where none did. It must not be changed.
	Rules []string
	// Key is the key of Tag that routing reads, "version" in most sets.
	Key string
	// Revision is that of the document that decided, 0 where the set came from
	// code or there is none.
	Revision uint64
	// NoKey counts the rules that matched in all but their percentage, which could
	// not be drawn because the request has none of the attributes to hash. An
	// entrance may give such a visitor a sticky group.
	NoKey int
	// Truncated counts the pairs that went because the tag would have been too
	// long, those of the lowest priority first.
	Truncated int
	// Stopped tells that the set sends everyone to stable.
	Stopped bool

	drawn [2]HashKey // by which a percentage was drawn; a zero one is none
	more  []HashKey
}

// HashKey is what a percentage was drawn with.
type HashKey struct {
	// Attr is the attribute as the rule names it.
	Attr string
	// Source is where the value came from, such as cookie:gray_group, or "code"
	// where [Request.Attr] gave it.
	Source string
	// Value is the user, so to speak.
	Value string
}

// SourceCode is the source of a value that code gave.
const SourceCode = "code"

// HashKeys returns the keys that percentages were drawn with, each of them once,
// whether or not the rule matched then. It is empty where none was drawn.
func (d *Decision) HashKeys() []HashKey {
	var keys []HashKey
	for _, k := range d.drawn {
		if k.Attr != "" {
			keys = append(keys, k)
		}
	}
	return append(keys, d.more...)
}

// HashedBy returns the value from a source, such as cookie:gray_group, that a
// percentage of this decision was drawn with, and whether there is one.
func (d *Decision) HashedBy(source string) (value string, ok bool) {
	for i := range d.drawn {
		if d.drawn[i].Source == source && d.drawn[i].Attr != "" {
			return d.drawn[i].Value, true
		}
	}
	for i := range d.more {
		if d.more[i].Source == source {
			return d.more[i].Value, true
		}
	}
	return "", false
}

func (d *Decision) noteKey(k HashKey) {
	for i := range d.drawn {
		if d.drawn[i].Attr == "" {
			d.drawn[i] = k
			return
		}
		if d.drawn[i].Attr == k.Attr {
			return
		}
	}
	for i := range d.more {
		if d.more[i].Attr == k.Attr {
			return
		}
	}
	d.more = append(d.more, k)
}

// cell is the value of a slot, once it was asked for.
type cell struct {
	value  string
	source string
	state  uint8
}

const (
	unasked uint8 = iota
	missing
	present
)

// view is a request as one program sees it. It lives on the stack of a decision.
type view struct {
	p     *program
	r     *Request
	cells []cell
	now   time.Time
}

// value returns the value of a slot and whether it is there.
func (v *view) value(slot int32) (string, bool) {
	c := &v.cells[slot]
	if c.state == unasked {
		v.ask(slot, c)
	}
	return c.value, c.state == present
}

func (v *view) ask(slot int32, c *cell) {
	s := &v.p.slots[slot]
	c.state = missing
	if !s.declared {
		value, ok := s.sources[0].value(v.r)
		if ok && len(value) <= MaxValueBytes {
			*c = cell{value, s.name, present}
		}
		return
	}
	if v.r.Attr != nil {
		if value, replaced := v.r.Attr(s.name); replaced {
			if value != "" && len(value) <= MaxValueBytes {
				*c = cell{value, SourceCode, present}
			}
			return
		}
	}
	for i := range s.sources {
		value, ok := s.sources[i].value(v.r)
		if ok && value != "" && len(value) <= MaxValueBytes {
			*c = cell{value, s.sources[i].text, present}
			return
		}
	}
}

// passes tells whether the request meets the condition.
func (v *view) passes(c *condition) bool {
	if c.op == OpCIDR && v.p.slots[c.slot].name == "ip" {
		return v.r.IP.IsValid() && c.ranges.contains(plainAddr(v.r.IP)) // without the text
	}
	value, ok := v.value(c.slot)
	if !ok {
		return c.op == OpNotExists
	}
	return c.test(value)
}

// applies tells whether the rule is for the target of the request.
func (r *compiled) applies(service string) bool {
	if service == "" || len(r.services) == 0 {
		return true
	}
	for _, s := range r.services {
		if s == service {
			return true
		}
	}
	return false
}

func (r *compiled) inForce(now time.Time) bool {
	return (r.from.IsZero() || !now.Before(r.from)) && (r.until.IsZero() || now.Before(r.until))
}

// hashKey returns the first key of hashBy that is present and not empty.
func (v *view) hashKey(r *compiled) (HashKey, bool) {
	for _, slot := range r.hashBy {
		if value, ok := v.value(slot); ok && value != "" {
			return HashKey{v.p.slots[slot].name, v.cells[slot].source, value}, true
		}
	}
	return HashKey{}, false
}

// matches tells whether the rule matches a request that meets its access.
func (v *view) matches(r *compiled, d *Decision) bool {
	if !r.enabled || !r.applies(v.r.Service) || !r.inForce(v.now) {
		return false
	}
	for i := range r.conditions {
		if i != r.access && !v.passes(&r.conditions[i]) {
			return false
		}
	}
	if !r.drawn() {
		return true
	}
	key, ok := v.hashKey(r)
	if !ok {
		d.NoKey++
		return false
	}
	d.noteKey(key)
	return Bucket(r.salt, key.Value) < int(r.percent.thousandths)
}

// Room on the stack: sets that need more cost an allocation for each decision.
const (
	fewSlots   = 16
	fewLists   = 8
	fewMatches = 16
)

// decide fills in d, which is zero, with the decision by one program.
func (p *program) decide(r *Request, d *Decision) {
	d.Key = p.key
	if p.stop {
		d.Stopped = true
		return
	}
	// Most sets look at a few attributes; more room is cleared for those alone
	// that need it.
	switch n := len(p.slots); {
	case n <= fewSlots/4:
		var cells [fewSlots / 4]cell
		p.decideBy(r, d, cells[:n])
	case n <= fewSlots:
		var cells [fewSlots]cell
		p.decideBy(r, d, cells[:n])
	default:
		p.decideBy(r, d, make([]cell, n))
	}
}

// decideBy is decide with room for the value of each slot.
func (p *program) decideBy(r *Request, d *Decision, cells []cell) {
	v := view{p: p, r: r, cells: cells, now: r.Time}
	if p.timed && v.now.IsZero() {
		v.now = time.Now()
	}

	var heads [fewLists]head
	c := candidates(heads[:0]).add(p.always)
	for i := range p.index {
		if value, ok := v.value(p.index[i].slot); ok {
			c = c.collect(&p.index[i], value)
		}
	}
	c.order()
	var few [fewMatches]int32
	matched := few[:0]
	global := false
	for last := int32(-1); len(c) > 0; {
		var rank int32
		rank, c = c.next()
		if rank == last {
			continue
		}
		last = rank
		rule := &p.rules[rank]
		if !v.matches(rule, d) {
			continue
		}
		matched = append(matched, rank)
		if global = len(rule.services) == 0; global {
			break
		}
	}

	var m *merged
	switch {
	case len(matched) == 1 && global:
		m = p.rules[matched[0]].alone
	case len(matched) == 0:
		m = p.none
	default:
		m = p.merge(matched, r.Service, global)
	}
	d.Tag, d.Rules, d.Truncated = m.tag, m.ids, m.truncated
	if len(p.carry) > 0 {
		v.carry(d)
	}
}
