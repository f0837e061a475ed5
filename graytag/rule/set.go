package rule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Set is a rule set: the document that operators write. Read one with [Parse],
// write one with [Marshal]. A Set may be built and changed in code; [NewEngine]
// checks it and keeps nothing of it.
//
// See the documentation of the package for what the fields mean together.
type Set struct {
	// Key is the key of the tag that routing reads; "" is "version".
	Key string `json:"key,omitempty"`
	// Attributes says where the value of a name comes from: header:N, cookie:N,
	// query:N or a built-in name, tried in order. It adds to, or replaces, single
	// names of [DefaultAttributes]. A name without sources has the value that
	// code gives it, see [Request].
	Attributes map[string][]string `json:"attributes,omitempty"`
	// Carry names the attributes that are copied into every tag.
	Carry []string `json:"carry,omitempty"`
	// Rules may stand in any order.
	Rules []Rule `json:"rules"`
	// Default is the tag, in wire form, where no rule without services matched.
	Default string `json:"default,omitempty"`
	// Stop sends everyone to stable, at once.
	Stop bool `json:"stop,omitempty"`
	// Plans belongs to package rollout; the engine ignores what is in it.
	Plans map[string]json.RawMessage `json:"plans,omitempty"`
	// Meta belongs to whoever writes the set; the engine ignores what is in it.
	Meta map[string]json.RawMessage `json:"meta,omitempty"`
}

// Rule gives a tag to the requests that it matches.
type Rule struct {
	// ID is unique in its set and holds no ':' and no space. At most 256 bytes.
	ID string `json:"id"`
	// Name is for people.
	Name string `json:"name,omitempty"`
	// Enabled switches the rule off where it points to false; nil is on.
	Enabled *bool `json:"enabled,omitempty"`
	// Priority orders rules, the highest first.
	Priority int `json:"priority,omitempty"`
	// Services are the target services that the tag is for; none is all of them.
	Services []string `json:"services,omitempty"`
	// Match holds conditions, all of which must be true.
	Match []Condition `json:"match,omitempty"`
	// Percent is the share of users, of those that Match lets through.
	Percent Percent `json:"percent,omitzero"`
	// HashBy names the attributes that identify a user; the first one that is
	// present counts. Empty is uid alone.
	HashBy []string `json:"hashBy,omitempty"`
	// Salt makes the choice of users; "" is the ID. Rules with one salt and one
	// HashBy choose the same users.
	Salt string `json:"salt,omitempty"`
	// From and Until bound the time in which the rule is in force: From is in it,
	// Until is not. Zero is no bound.
	From  time.Time `json:"from,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// Tag is what a matching request gets, in wire form. It is required;
	// "version=stable" pins a request to stable.
	Tag string `json:"tag"`
}

// IsEnabled tells whether the rule is switched on.
func (r *Rule) IsEnabled() bool { return r.Enabled == nil || *r.Enabled }

// EffectiveSalt returns the salt that the percentage is hashed with.
func (r *Rule) EffectiveSalt() string {
	if r.Salt == "" {
		return r.ID
	}
	return r.Salt
}

// EffectiveHashBy returns the attributes that identify a user to the rule.
func (r *Rule) EffectiveHashBy() []string {
	if len(r.HashBy) == 0 {
		return defaultHashBy
	}
	return r.HashBy
}

var defaultHashBy = []string{"uid"}

// Condition is one test of one attribute.
type Condition struct {
	// Attr is a declared or built-in name, or header:N, cookie:N or query:N.
	Attr string `json:"attr"`
	// Op says what is tested.
	Op Op `json:"op"`
	// Values are what the attribute is tested against: any of them must fit; for
	// not_equals and not_in none of them may.
	Values []string `json:"values,omitempty"`
	// Mod and Below belong to [OpMod]: the value modulo Mod is less than Below.
	Mod   int64 `json:"mod,omitempty"`
	Below int64 `json:"below,omitempty"`
}

// Op is the operator of a condition.
type Op string

// The operators. A missing attribute fails all of them but OpNotExists.
const (
	OpEquals    Op = "equals"     // is one of the values
	OpNotEquals Op = "not_equals" // is none of the values
	OpIn        Op = "in"         // the same as equals
	OpNotIn     Op = "not_in"     // the same as not_equals
	OpPrefix    Op = "prefix"     // starts with one of the values
	OpSuffix    Op = "suffix"     // ends with one of the values
	OpContains  Op = "contains"   // holds one of the values
	OpRegex     Op = "regex"      // RE2 (Go's regexp), unanchored
	OpExists    Op = "exists"     // is there; a header or cookie may be empty
	OpNotExists Op = "not_exists" // is not there
	OpMod       Op = "mod"        // ASCII digits of any length; their number modulo Mod is less than Below
	OpCIDR      Op = "cidr"       // an address in one of the ranges, or one of the addresses
	OpSemver    Op = "semver"     // a version in one of the ranges, in the syntax of Masterminds/semver
)

var ops = []Op{
	OpEquals, OpNotEquals, OpIn, OpNotIn, OpPrefix, OpSuffix, OpContains,
	OpRegex, OpExists, OpNotExists, OpMod, OpCIDR, OpSemver,
}

// Ops returns all operators.
func Ops() []Op { return slices.Clone(ops) }

// MarshalJSON writes mod and below where the operator has them, 0 included.
func (c Condition) MarshalJSON() ([]byte, error) {
	type bare Condition
	if c.Op != OpMod {
		return encode(bare(c))
	}
	return encode(struct {
		bare
		Mod   int64 `json:"mod"`
		Below int64 `json:"below"`
	}{bare(c), c.Mod, c.Below})
}

// encode is json.Marshal that leaves <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Marshal writes s as JSON that [Parse] reads back into an equal Set. What
// stands in Plans and Meta is written byte for byte. It does not check s beyond
// that; it fails where Plans or Meta hold no valid JSON, or a time is outside
// the years 0 to 9999.
func Marshal(s *Set) ([]byte, error) {
	type bare Set
	body := bare(*s)
	body.Plans, body.Meta = nil, nil
	if body.Rules == nil {
		body.Rules = []Rule{}
	}
	if len(s.Attributes) > 0 {
		body.Attributes = make(map[string][]string, len(s.Attributes))
		for name, sources := range s.Attributes {
			body.Attributes[name] = append([]string{}, sources...) // never null
		}
	}
	out, err := encode(body)
	if err != nil {
		return nil, fmt.Errorf("rule: marshal: %w", err)
	}
	for _, part := range []struct {
		name string
		raw  map[string]json.RawMessage
	}{{"plans", s.Plans}, {"meta", s.Meta}} {
		if len(part.raw) == 0 {
			continue
		}
		out = append(out[:len(out)-1], `,"`+part.name+`":{`...)
		for i, name := range slices.Sorted(maps.Keys(part.raw)) {
			if i > 0 {
				out = append(out, ',')
			}
			quoted, err := encode(name)
			if err != nil {
				return nil, fmt.Errorf("rule: marshal: %w", err)
			}
			raw := part.raw[name]
			if !json.Valid(raw) {
				return nil, fmt.Errorf("rule: marshal: %s.%s holds no valid JSON", part.name, name)
			}
			out = append(append(append(out, quoted...), ':'), raw...)
		}
		out = append(out, '}', '}')
	}
	return out, nil
}

// MarshalJSON is [Marshal]. Beware that json.Marshal and json.MarshalIndent
// change the white space of what a marshaler returns, and escape <, > and &
// in it, also in Plans and Meta: use Marshal where the bytes matter.
func (s Set) MarshalJSON() ([]byte, error) { return Marshal(&s) }

// UnmarshalJSON is [Parse]. On an error s stays as it was.
func (s *Set) UnmarshalJSON(data []byte) error {
	parsed, err := Parse(data)
	if err != nil {
		return err
	}
	*s = *parsed
	return nil
}

// Clone returns a copy that shares nothing with s.
func (s *Set) Clone() *Set {
	if s == nil {
		return nil
	}
	c := *s
	if s.Attributes != nil {
		c.Attributes = make(map[string][]string, len(s.Attributes))
		for name, sources := range s.Attributes {
			c.Attributes[name] = slices.Clone(sources)
		}
	}
	c.Carry = slices.Clone(s.Carry)
	c.Rules = slices.Clone(s.Rules)
	for i := range c.Rules {
		r := &c.Rules[i]
		if r.Enabled != nil {
			on := *r.Enabled
			r.Enabled = &on
		}
		r.Services, r.HashBy = slices.Clone(r.Services), slices.Clone(r.HashBy)
		r.Match = slices.Clone(r.Match)
		for j := range r.Match {
			r.Match[j].Values = slices.Clone(r.Match[j].Values)
		}
	}
	c.Plans, c.Meta = cloneRaw(s.Plans), cloneRaw(s.Meta)
	return &c
}

func cloneRaw(m map[string]json.RawMessage) map[string]json.RawMessage {
	if m == nil {
		return nil
	}
	c := make(map[string]json.RawMessage, len(m))
	for name, raw := range m {
		c[name] = slices.Clone(raw)
	}
	return c
}
