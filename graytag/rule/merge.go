package rule

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/graylane/graylane/graytag"
)

// merged is what one combination of rules comes to. It is immutable.
type merged struct {
	ranks     []int32
	service   string
	ids       []string
	tag       graytag.Tag
	truncated int
}

// mergeCache keeps the combinations that occurred last, one per slot: the
// combinations of a set are few, and where they are many the cache stays as
// small as it is.
type mergeCache [256]atomic.Pointer[merged]

// merge returns what the matched rules come to, with the default where none of
// them was global.
func (p *program) merge(matched []int32, service string, global bool) *merged {
	h := uint32(2166136261) // FNV-1a, to spread; nothing hangs on its quality
	for _, rank := range matched {
		h = (h ^ uint32(rank)) * 16777619
	}
	for i := 0; i < len(service); i++ {
		h = (h ^ uint32(service[i])) * 16777619
	}
	at := &p.merged[(h^h>>15)%uint32(len(p.merged))]
	if m := at.Load(); m != nil && m.service == service && slices.Equal(m.ranks, matched) {
		return m
	}
	m := p.build(matched, service, global)
	at.Store(m)
	return m
}

func (p *program) build(matched []int32, service string, global bool) *merged {
	m := &merged{ranks: slices.Clone(matched), service: service}
	b := builder{pairs: map[string]string{}}
	for _, rank := range matched {
		r := &p.rules[rank]
		m.ids = append(m.ids, r.id)
		b.open()
		for key, value := range r.tag.All() {
			switch {
			case len(r.services) == 0:
				b.put(key, value)
			case service != "":
				b.put(key+"."+service, value)
			default:
				for _, s := range r.services {
					b.put(key+"."+s, value)
				}
			}
		}
		b.close()
	}
	if !global {
		b.open()
		for key, value := range p.tag.All() {
			b.put(key, value)
		}
		b.close()
	}
	m.tag, m.truncated = b.tag, b.truncated
	return m
}

// builder puts a tag together, group by group, the highest priority first. The
// pairs of a group come in together or not at all: half a rule would send a
// request to a new version of one service and an old one of the next. Once a
// group did not fit, all later ones stay out.
type builder struct {
	pairs     map[string]string
	group     []string // the keys of the open group
	tag       graytag.Tag
	full      bool
	truncated int
}

func (b *builder) open() { b.group = b.group[:0] }

// put adds a pair; a key that stands already stays as it is.
func (b *builder) put(key, value string) {
	if _, stands := b.pairs[key]; stands {
		return
	}
	b.pairs[key] = value
	b.group = append(b.group, key)
}

func (b *builder) close() {
	if !b.full {
		if tag, err := graytag.New(b.pairs); err == nil {
			b.tag = tag
			return
		}
		b.full = true
	}
	b.truncated += len(b.group)
	for _, key := range b.group {
		delete(b.pairs, key)
	}
}

// carry copies attributes into the tag of the decision.
func (v *view) carry(d *Decision) {
	var buf [graytag.MaxBytes]byte
	text := append(buf[:0], d.Tag.String()...)
	added := 0
	for i := range v.p.carry {
		c := &v.p.carry[i]
		value, ok := v.value(c.slot)
		if !ok || value == "" || len(value) > graytag.MaxValueBytes || d.Tag.Get(c.key) != "" {
			continue
		}
		if len(text) > 0 {
			text = append(text, ';')
		}
		text = append(append(text, c.key...), '=')
		text = appendEscaped(text, value)
		added++
	}
	if added == 0 {
		return
	}
	if d.Truncated == 0 && len(text) <= graytag.MaxBytes {
		if tag, err := graytag.Parse(string(text)); err == nil {
			d.Tag = tag
			return
		}
	}
	v.carryOneByOne(d)
}

// carryOneByOne is for values that fit no tag, names that stand twice, and tags
// that get too long.
func (v *view) carryOneByOne(d *Decision) {
	full := d.Truncated > 0
	for i := range v.p.carry {
		c := &v.p.carry[i]
		value, ok := v.value(c.slot)
		if !ok || value == "" || d.Tag.Get(c.key) != "" {
			continue
		}
		if _, err := (graytag.Tag{}).With(c.key, value); err != nil {
			continue // it fits no tag at all
		}
		if !full {
			if tag, err := d.Tag.With(c.key, value); err == nil {
				d.Tag = tag
				continue
			}
			full = true
		}
		d.Truncated++
	}
}

// appendEscaped percent-encodes whatever might mean something in the wire form
// of a tag.
func appendEscaped(dst []byte, v string) []byte {
	const hex = "0123456789ABCDEF"
	for i := 0; i < len(v); i++ {
		switch c := v[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-._~!$'()*+:@/", c) >= 0:
			dst = append(dst, c)
		default:
			dst = append(dst, '%', hex[c>>4], hex[c&15])
		}
	}
	return dst
}
