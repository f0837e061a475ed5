package rule

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"github.com/Masterminds/semver/v3"

	"github.com/graylane/graylane/graytag"
)

// program is a set made ready for decisions. It is immutable but for its cache.
type program struct {
	key     string
	stop    bool
	slots   []slot
	rules   []compiled // in the order of evaluation, the disabled ones too
	index   []slotIndex
	always  []int32 // the rules that no index finds
	carry   []carried
	tag     graytag.Tag // the default
	none    *merged     // what it comes to where no rule matched
	timed   bool        // some rule has a window
	enabled int
	merged  mergeCache
}

// slot is one attribute that the rules look at.
type slot struct {
	name     string // as in the document, header names in canonical form
	declared bool   // code may replace it
	sources  []source
}

type carried struct {
	slot int32
	key  string
}

// compiled is one rule.
type compiled struct {
	id         string
	enabled    bool
	services   []string
	conditions []condition
	access     int // the condition that the index has tested already, or -1
	from       time.Time
	until      time.Time
	percent    Percent
	salt       string
	hashBy     []int32
	tag        graytag.Tag
	alone      *merged // what it decides where no other rule matched; only without services
}

// drawn tells whether the percentage has to be drawn; 0 and 100 need no key.
func (r *compiled) drawn() bool {
	return r.percent.set && r.percent.thousandths > 0 && r.percent.thousandths < hundred
}

// never tells whether the rule matches nobody.
func (r *compiled) never() bool {
	return !r.enabled || r.percent.set && r.percent.thousandths == 0
}

// compile makes a checked set ready. It keeps no slice of the set. What there is
// one of for each rule or condition is made in one piece: a reload should leave
// little for the garbage collector to do while requests are decided.
func compile(s *Set) *program {
	c := &compiler{
		byName: map[string]int32{}, set: s,
		regexs: map[string]*regexp.Regexp{}, semvers: map[string]*semver.Constraints{},
	}
	conditions, values := 0, 0
	for i := range s.Rules {
		conditions += len(s.Rules[i].Match)
		for j := range s.Rules[i].Match {
			values += len(s.Rules[i].Match[j].Values)
		}
	}
	c.values = make([]string, 0, values)
	all := make([]condition, conditions)
	tags := map[string]graytag.Tag{}
	alone, ids, ranks := make([]merged, len(s.Rules)), make([]string, len(s.Rules)), make([]int32, len(s.Rules))
	p := &program{key: s.routingKey(), stop: s.Stop}
	p.tag, _ = graytag.Parse(s.Default) // is checked
	p.none = &merged{tag: p.tag}
	order := evaluationOrder(s)
	p.rules = make([]compiled, len(order))
	for rank, i := range order {
		in, out := &s.Rules[i], &p.rules[rank]
		*out = compiled{
			id: in.ID, enabled: in.IsEnabled(), access: -1,
			from: in.From, until: in.Until,
			percent: in.Percent, salt: in.EffectiveSalt(),
		}
		if len(in.Services) > 0 {
			out.services = slices.Clone(in.Services)
			slices.Sort(out.services)
			out.services = slices.Compact(out.services)
		}
		var ok bool
		if out.tag, ok = tags[in.Tag]; !ok {
			out.tag, _ = graytag.Parse(in.Tag) // is checked
			tags[in.Tag] = out.tag
		}
		n := len(in.Match)
		out.conditions, all = all[:n:n], all[n:]
		for j := range in.Match {
			c.condition(&in.Match[j], &out.conditions[j])
		}
		if out.percent.set {
			for _, attr := range in.EffectiveHashBy() {
				out.hashBy = append(out.hashBy, c.slot(attr))
			}
		}
		if len(out.services) == 0 {
			ids[rank], ranks[rank] = in.ID, int32(rank)
			alone[rank] = merged{ranks: ranks[rank : rank+1 : rank+1], ids: ids[rank : rank+1 : rank+1], tag: out.tag}
			out.alone = &alone[rank]
		}
		if !out.never() {
			p.enabled++
			p.timed = p.timed || !in.From.IsZero() || !in.Until.IsZero()
		}
	}
	for _, name := range s.Carry {
		p.carry = append(p.carry, carried{c.slot(name), name})
	}
	p.slots = c.slots
	p.buildIndex()
	for i := range p.rules {
		for j := range p.rules[i].conditions {
			if j != p.rules[i].access { // the index looks that one up
				p.rules[i].conditions[j].hash()
			}
		}
	}
	return p
}

// evaluationOrder returns the places of the rules, in the order of evaluation:
// by priority, those without percent first, then by id.
func evaluationOrder(s *Set) []int {
	order := make([]int, len(s.Rules))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		a, b := &s.Rules[i], &s.Rules[j]
		if c := cmp.Compare(b.Priority, a.Priority); c != 0 {
			return c
		}
		if a.Percent.set != b.Percent.set {
			if b.Percent.set {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.ID, b.ID)
	})
	return order
}

// slot returns the slot of a checked attribute.
func (c *compiler) slot(attr string) int32 {
	if i, ok := c.byName[attr]; ok {
		return i
	}
	var made slot
	sources, declared := c.set.sourcesOf(attr)
	if builtins[attr] != 0 {
		declared = false
	}
	if declared {
		made = slot{name: attr, declared: true}
		for _, text := range sources {
			src, _ := parseSource(text) // is checked
			made.sources = append(made.sources, src)
		}
	} else {
		src, _ := parseSource(attr) // is checked
		made = slot{name: src.text, sources: []source{src}}
		if i, ok := c.byName[made.name]; ok { // header:x-a and header:X-A
			c.byName[attr] = i
			return i
		}
	}
	i := int32(len(c.slots))
	c.slots = append(c.slots, made)
	c.byName[attr], c.byName[made.name] = i, i
	return i
}
