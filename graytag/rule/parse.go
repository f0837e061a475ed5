package rule

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a rule set.
const (
	MaxBytes      = 16 << 20 // of the document
	MaxDepth      = 32       // of its arrays and objects, plans and meta included
	MaxRules      = 100_000
	MaxConditions = 64  // of a rule
	MaxServices   = 256 // of a rule
	MaxNames      = 256 // of attributes, and of names in carry and hashBy
	MaxSources    = 16  // of an attribute
	MaxIDBytes    = 256 // of an id and of a salt
	MaxRegexBytes = 4096
	// MaxRegexValueBytes is the longest value that a regular expression is tried
	// on; a longer one does not match. A client chooses the value.
	MaxRegexValueBytes = 1024
)

// Parse reads and checks a rule set. It is strict: unknown fields, names in the
// wrong case, keys that stand twice and null are faults, and every fault, up to
// 10,000 of them, is reported; see [Faults]. On an error the Set is nil.
//
// Parse never panics; its time and memory are linear in the document, which it
// refuses where it is over [MaxBytes].
func Parse(data []byte) (*Set, error) {
	var f faults
	set := decode(data, &f)
	if set != nil {
		check(set, &f)
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	return set, nil
}

// decode reads the structure of a document; nil where it has none.
func decode(data []byte, f *faults) *Set {
	if len(data) > MaxBytes {
		f.addf("", "document of %d bytes, at most %d are allowed", len(data), MaxBytes)
		return nil
	}
	if !json.Valid(data) {
		f.add("", syntaxReason(data))
		return nil
	}
	d := &decoder{text: string(data), faults: f}
	var s Set
	if !d.set(&s) {
		return nil
	}
	return &s
}

func syntaxReason(data []byte) string {
	if len(strings.TrimSpace(string(data))) == 0 {
		return "empty document"
	}
	var raw json.RawMessage
	err := json.Unmarshal(data, &raw)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		before := data[:min(int(max(syntax.Offset-1, 0)), len(data))]
		line := 1 + strings.Count(string(before), "\n")
		column := len(before) - strings.LastIndexByte(string(before), '\n')
		return fmt.Sprintf("not JSON: line %d, column %d: %v", line, column, err)
	}
	return fmt.Sprintf("not JSON: %v", err)
}

// decoder walks over a document that is known to be valid JSON. What it does
// beyond encoding/json: it finds every fault and says where, it sees keys that
// stand twice, and it hands out numbers as text.
type decoder struct {
	text   string
	at     int
	path   []step
	faults *faults
}

// step is a field, or an element where the field is "".
type step struct {
	field string
	index int
}

// where spells the path of what is being read; only faults need it.
func (d *decoder) where() string {
	var b strings.Builder
	for _, s := range d.path {
		if s.field == "" && s.index >= 0 {
			fmt.Fprintf(&b, "[%d]", s.index)
			continue
		}
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(shorten(s.field))
	}
	return b.String()
}

func shorten(name string) string {
	if len(name) > 128 {
		return strings.ToValidUTF8(name[:128], "") + "…"
	}
	return name
}

func (d *decoder) fault(reason string) {
	if !d.faults.full() {
		d.faults.add(d.where(), reason)
	}
}

func (d *decoder) space() {
	for d.at < len(d.text) {
		switch d.text[d.at] {
		case ' ', '\t', '\r', '\n':
			d.at++
		default:
			return
		}
	}
}

// is tells whether the next value starts with c; where not, it reports a fault
// and goes past the value.
func (d *decoder) is(c byte, what string) bool {
	d.space()
	if d.text[d.at] == c {
		return true
	}
	if d.text[d.at] == 'n' {
		d.fault("null: leave the field out, or give it " + what)
	} else {
		d.fault("must be " + what)
	}
	d.skip()
	return false
}

// object calls field with each key; field reads the value.
func (d *decoder) object(field func(key string)) bool {
	if !d.is('{', "an object") || !d.deepEnough() {
		return false
	}
	var seen map[string]bool
	var few [16]string
	n := 0
	twice := func(key string) bool {
		if n < len(few) {
			for _, k := range few[:n] {
				if k == key {
					return true
				}
			}
			few[n] = key
			n++
			return false
		}
		if seen == nil {
			seen = map[string]bool{}
			for _, k := range few {
				seen[k] = true
			}
		}
		if seen[key] {
			return true
		}
		seen[key] = true
		return false
	}
	for d.at++; ; d.at++ {
		d.space()
		if d.text[d.at] == '}' {
			d.at++
			return true
		}
		key := d.quoted()
		d.space()
		d.at++ // the colon
		d.path = append(d.path, step{key, -1})
		if twice(key) {
			d.faults.addOnly(d.where(), "the same key twice")
			d.skip()
		} else {
			field(key)
		}
		d.path = d.path[:len(d.path)-1]
		d.space()
		if d.text[d.at] == '}' {
			d.at++
			return true
		}
	}
}

// array calls element for each element, which reads it. Elements from limit on
// are a fault and skipped.
func (d *decoder) array(limit int, element func(i int)) bool {
	if !d.is('[', "an array") || !d.deepEnough() {
		return false
	}
	d.at++
	if d.space(); d.text[d.at] == ']' {
		d.at++
		return true
	}
	for i := 0; ; i++ {
		if i < limit {
			d.path = append(d.path, step{"", i})
			element(i)
			d.path = d.path[:len(d.path)-1]
		} else {
			if i == limit {
				d.faults.addOnly(d.where(), fmt.Sprintf("more than %d elements", limit))
			}
			d.skip()
		}
		d.space()
		d.at++ // a comma or the end
		if d.text[d.at-1] == ']' {
			return true
		}
	}
}

// deepEnough refuses what is nested too deep and goes past it.
func (d *decoder) deepEnough() bool {
	if len(d.path) < MaxDepth {
		return true
	}
	d.fault(fmt.Sprintf("nested deeper than %d", MaxDepth))
	d.leap()
	return false
}

// leap goes past an object or array without looking into it.
func (d *decoder) leap() {
	for depth := 0; ; {
		switch d.text[d.at] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			d.at = d.endOfString()
			continue
		}
		if d.at++; depth == 0 {
			return
		}
	}
}

// endOfString returns where the string that starts here ends, its quotes
// included.
func (d *decoder) endOfString() int {
	for i := d.at + 1; ; i++ {
		switch d.text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
}

// quoted reads a string that is known to be one.
func (d *decoder) quoted() string {
	end := d.endOfString()
	raw := d.text[d.at:end]
	inner := raw[1 : len(raw)-1]
	d.at = end
	if !utf8.ValidString(inner) {
		d.fault("not UTF-8")
		return strings.ToValidUTF8(inner, "\uFFFD")
	}
	if strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	_ = json.Unmarshal([]byte(raw), &s) // is valid
	if strings.Contains(s, "\uFFFD") && !strings.Contains(inner, "\uFFFD") && !strings.Contains(strings.ToLower(inner), `\ufffd`) {
		d.fault("half a surrogate pair")
	}
	return s
}

// skip goes past any value; keys that stand twice in it are faults.
func (d *decoder) skip() {
	d.space()
	switch d.text[d.at] {
	case '{':
		d.object(func(string) { d.skip() })
	case '[':
		d.array(int(^uint(0)>>1), func(int) { d.skip() })
	case '"':
		d.quoted()
	default:
		d.scalar()
	}
}

// scalar reads a number, true, false or null as text.
func (d *decoder) scalar() string {
	start := d.at
	for d.at < len(d.text) && strings.IndexByte(",]} \t\r\n", d.text[d.at]) < 0 {
		d.at++
	}
	return d.text[start:d.at]
}

func (d *decoder) string() string {
	if !d.is('"', "a string") {
		return ""
	}
	return d.quoted()
}

func (d *decoder) bool() bool {
	d.space()
	if c := d.text[d.at]; c == 't' || c == 'f' {
		return d.scalar() == "true"
	}
	d.is('t', "true or false")
	return false
}

// number returns the text of a number.
func (d *decoder) number() (string, bool) {
	d.space()
	if c := d.text[d.at]; c == '-' || c >= '0' && c <= '9' {
		return d.scalar(), true
	}
	return "", d.is('0', "a number")
}

// strings reads an array of strings; an element that is none is left empty, so
// that the others keep their places. An empty array is nil.
func (d *decoder) strings(limit int) (list []string) {
	d.array(limit, func(int) { list = append(list, d.string()) })
	return list
}

// raw reads an object whose values stay as they are.
func (d *decoder) raw() map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	d.object(func(key string) {
		d.space()
		start := d.at
		d.skip()
		m[key] = json.RawMessage(d.text[start:d.at])
	})
	if len(m) == 0 {
		return nil
	}
	return m
}

func (d *decoder) time() (t time.Time) {
	text := d.string()
	if d.faults.done(d.where()) {
		return t
	}
	if err := t.UnmarshalText([]byte(text)); err != nil || !strictTime(text) {
		d.fault("not a time as in RFC 3339, such as 2026-12-01T00:00:00Z")
		return time.Time{}
	}
	if t.IsZero() {
		d.fault("not a usable time: leave the field out for no bound")
	}
	return t
}

// strictTime tells whether a text that package time takes for RFC 3339 is: it also
// takes an hour of one digit, a comma, and offsets that no clock has, which neither
// it writes nor others read.
func strictTime(text string) bool {
	if len(text) < len("2006-01-02T15:04:05Z") || text[13] != ':' || strings.Contains(text, ",") {
		return false
	}
	if strings.HasSuffix(text, "Z") {
		return true
	}
	offset := text[len(text)-len("15:04"):]
	return offset < "24:00" && offset[3:] < "60"
}

func (d *decoder) integer(limit int64) int64 {
	text, ok := d.number()
	if !ok {
		return 0
	}
	var n int64
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		d.fault("must be a whole number")
		return 0
	}
	if n > limit || n < -limit {
		d.fault(fmt.Sprintf("must be between -%d and %d", limit, limit))
		return 0
	}
	return n
}

func (d *decoder) percent() Percent {
	text, ok := d.number()
	if !ok {
		return Percent{}
	}
	p, err := parsePercent(text)
	if err != nil {
		d.fault(err.Error())
	}
	return p
}

// unknown reports a field that does not exist and goes past it.
func (d *decoder) unknown(key string, known ...string) {
	reason := "unknown field"
	if like := nearest(key, known); like != "" {
		reason += fmt.Sprintf("; did you mean %q?", like)
		if strings.EqualFold(key, like) {
			parent := d.path
			d.path = append(d.path[:len(d.path)-1:len(d.path)-1], step{like, -1})
			d.faults.excuse(d.where())
			d.path = parent
		}
	}
	d.fault(reason)
	d.skip()
}

func (d *decoder) set(s *Set) bool {
	return d.object(func(key string) {
		switch key {
		case "key":
			s.Key = d.string()
		case "attributes":
			d.object(func(name string) {
				if s.Attributes == nil {
					s.Attributes = map[string][]string{}
				}
				s.Attributes[name] = d.strings(MaxSources)
			})
		case "carry":
			s.Carry = d.strings(MaxNames)
		case "rules":
			d.array(MaxRules, func(int) { s.Rules = append(s.Rules, d.rule()) })
		case "default":
			s.Default = d.string()
		case "stop":
			s.Stop = d.bool()
		case "plans":
			s.Plans = d.raw()
		case "meta":
			s.Meta = d.raw()
		default:
			d.unknown(key, "key", "attributes", "carry", "rules", "default", "stop", "plans", "meta")
		}
	})
}

func (d *decoder) rule() (r Rule) {
	d.object(func(key string) {
		switch key {
		case "id":
			r.ID = d.string()
		case "name":
			r.Name = d.string()
		case "enabled":
			on := d.bool()
			r.Enabled = &on
		case "priority":
			r.Priority = int(d.integer(maxPriority))
		case "services":
			r.Services = d.strings(MaxServices)
		case "match":
			d.array(MaxConditions, func(int) { r.Match = append(r.Match, d.condition()) })
		case "percent":
			r.Percent = d.percent()
		case "hashBy":
			r.HashBy = d.strings(MaxNames)
		case "salt":
			r.Salt = d.string()
		case "from":
			r.From = d.time()
		case "until":
			r.Until = d.time()
		case "tag":
			r.Tag = d.string()
		default:
			d.unknown(key, "id", "name", "enabled", "priority", "services", "match", "percent", "hashBy", "salt", "from", "until", "tag")
		}
	})
	return r
}

func (d *decoder) condition() (c Condition) {
	var mod, below bool
	ok := d.object(func(key string) {
		switch key {
		case "attr":
			c.Attr = d.string()
		case "op":
			c.Op = Op(d.string())
		case "values":
			c.Values = d.strings(int(^uint(0) >> 1)) // bounded by the document
		case "mod":
			mod, c.Mod = true, d.integer(maxMod)
		case "below":
			below, c.Below = true, d.integer(maxMod)
		default:
			d.unknown(key, "attr", "op", "values", "mod", "below")
		}
	})
	// A Condition cannot tell 0 from nothing; the document can.
	if ok && c.Op == OpMod && !below {
		d.faults.addMissing(d.where()+".below", "required by the operator mod")
	}
	if ok && c.Op != OpMod && below && c.Below == 0 {
		d.faults.add(d.where()+".below", onlyMod)
	}
	if ok && c.Op != OpMod && mod && c.Mod == 0 {
		d.faults.add(d.where()+".mod", onlyMod)
	}
	return c
}

const (
	maxPriority = 1_000_000_000
	maxMod      = 1_000_000_000_000_000
	onlyMod     = "only the operator mod has it"
)

// nearest returns the name that was probably meant, "" where there is none.
func nearest(name string, known []string) string {
	if len(name) > 32 {
		return ""
	}
	best, like := 3, ""
	for _, k := range known {
		if strings.EqualFold(name, k) {
			return k
		}
		if n := distance(name, k); n < best && n*2 < len(k) {
			best, like = n, k
		}
	}
	return like
}

// distance counts the single-byte edits and swaps between two short strings.
func distance(a, b string) int {
	var before, last, row [40]int
	for j := 0; j <= len(b); j++ {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
