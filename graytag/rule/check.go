package rule

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/Masterminds/semver/v3"

	"github.com/graylane/graylane/graytag"
)

// check finds what is wrong with the meaning of a set.
func check(s *Set, f *faults) {
	if s.Key != "" && !graytag.ValidKey(s.Key) {
		f.add("key", "not the key of a tag")
	}
	if len(s.Attributes) > MaxNames {
		f.addOnly("attributes", fmt.Sprintf("more than %d attributes", MaxNames))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Attributes)) {
		checkAttribute(name, s.Attributes[name], f)
	}
	if len(s.Carry) > MaxNames {
		f.addOnly("carry", fmt.Sprintf("more than %d elements", MaxNames))
	}
	for i, name := range s.Carry {
		if reason := s.checkName(name); reason != "" {
			f.add(fmt.Sprintf("carry[%d]", i), reason)
		}
	}
	if _, err := graytag.Parse(s.Default); err != nil {
		f.add("default", tagReason(err))
	}
	if len(s.Rules) > MaxRules {
		f.addOnly("rules", fmt.Sprintf("more than %d rules", MaxRules))
	}
	first := make(map[string]int, len(s.Rules))
	for i := range s.Rules {
		r := &s.Rules[i]
		if before, twice := first[r.ID]; twice && r.ID != "" {
			f.addf(fmt.Sprintf("rules[%d].id", i), "used twice: rules[%d] has it", before)
		} else {
			first[r.ID] = i
		}
		s.checkRule(i, f)
	}
}

func checkAttribute(name string, sources []string, f *faults) {
	path := "attributes." + shorten(name)
	switch {
	case builtins[name] != 0:
		f.add(path, "built in, cannot be declared")
		return
	case !graytag.ValidKey(name):
		f.add(path, "a name consists of up to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit")
		return
	}
	if len(sources) > MaxSources {
		f.addOnly(path, fmt.Sprintf("more than %d sources", MaxSources))
	}
	for j, text := range sources {
		if _, reason := parseSource(text); reason != "" {
			f.add(fmt.Sprintf("%s[%d]", path, j), reason)
		}
	}
}

func tagReason(err error) string {
	if pe := (*graytag.ParseError)(nil); errors.As(err, &pe) {
		return fmt.Sprintf("not a tag: at byte %d: %s", pe.Offset, pe.Reason)
	}
	return "not a tag: " + err.Error()
}

// checkID returns what is wrong with an id or a salt.
func checkID(id string) string {
	switch {
	case len(id) > MaxIDBytes:
		return fmt.Sprintf("over %d bytes", MaxIDBytes)
	case !utf8.ValidString(id):
		return "not UTF-8"
	case strings.Contains(id, ":"):
		return "must not hold ':'"
	case strings.ContainsFunc(id, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return "must not hold spaces or control characters"
	}
	return ""
}

// place is a rule, or a condition of one. It spells paths, which only faults
// need.
type place struct{ rule, condition int }

func (p place) path(rest string, args ...any) string {
	rest = fmt.Sprintf(rest, args...)
	if p.condition >= 0 {
		return fmt.Sprintf("rules[%d].match[%d].%s", p.rule, p.condition, rest)
	}
	return fmt.Sprintf("rules[%d].%s", p.rule, rest)
}

func (s *Set) checkRule(i int, f *faults) {
	r, at := &s.Rules[i], place{i, -1}
	if r.ID == "" {
		f.addMissing(at.path("id"), "an id is required")
	} else if reason := checkID(r.ID); reason != "" {
		f.add(at.path("id"), reason)
	}
	if reason := checkID(r.Salt); reason != "" {
		f.add(at.path("salt"), reason)
	}
	if r.Priority > maxPriority || r.Priority < -maxPriority {
		f.addf(at.path("priority"), "must be between -%d and %d", maxPriority, maxPriority)
	}
	tag, err := f.tag(r.Tag)
	switch {
	case err != nil:
		f.add(at.path("tag"), tagReason(err))
	case tag.IsZero():
		f.addMissing(at.path("tag"), "a tag is required; version=stable sends to stable")
	}
	if len(r.Services) > MaxServices {
		f.addOnly(at.path("services"), fmt.Sprintf("more than %d elements", MaxServices))
	}
	for j, service := range r.Services {
		if reason := s.checkService(service, tag); reason != "" {
			f.add(at.path("services[%d]", j), reason)
		}
	}
	if !r.From.IsZero() && !r.Until.IsZero() && !r.Until.After(r.From) {
		f.add(at.path("until"), "not after from: the rule would never be in force")
	}
	if len(r.HashBy) > MaxNames {
		f.addOnly(at.path("hashBy"), fmt.Sprintf("more than %d elements", MaxNames))
	}
	for j, attr := range r.HashBy {
		if reason := s.checkRef(attr); reason != "" {
			f.add(at.path("hashBy[%d]", j), reason)
		}
	}
	if len(r.Match) > MaxConditions {
		f.addOnly(at.path("match"), fmt.Sprintf("more than %d conditions", MaxConditions))
	}
	for j := range r.Match {
		s.checkCondition(&r.Match[j], place{i, j}, f)
	}
}

// checkService returns what is wrong with the name of a target service.
func (s *Set) checkService(service string, tag graytag.Tag) string {
	if service == "" {
		return "the name of a service is required"
	}
	for key := range tag.All() {
		if !graytag.ValidKey(key + "." + service) {
			return fmt.Sprintf("%s.%s is not the key of a tag", key, shorten(service))
		}
	}
	if !graytag.ValidKey(s.routingKey() + "." + service) {
		return fmt.Sprintf("%s.%s is not the key of a tag", s.routingKey(), shorten(service))
	}
	return ""
}

func (s *Set) routingKey() string {
	if s.Key == "" || !graytag.ValidKey(s.Key) {
		return graytag.KeyVersion
	}
	return s.Key
}

func (s *Set) checkCondition(c *Condition, at place, f *faults) {
	if c.Attr == "" {
		f.addMissing(at.path("attr"), "an attribute is required")
	} else if reason := s.checkRef(c.Attr); reason != "" {
		f.add(at.path("attr"), reason)
	}
	if c.Op == "" {
		f.addMissing(at.path("op"), "an operator is required")
		return
	}
	if !slices.Contains(ops, c.Op) {
		f.add(at.path("op"), fmt.Sprintf("no such operator: %s, want one of %v", shorten(string(c.Op)), ops))
		return
	}
	if c.Op == OpMod {
		if c.Mod <= 0 || c.Mod > maxMod {
			f.addMissing(at.path("mod"), fmt.Sprintf("must be between 1 and %d", int64(maxMod)))
		}
		if c.Below < 0 || c.Below > maxMod {
			f.addf(at.path("below"), "must be between 0 and %d", int64(maxMod))
		}
	} else {
		if c.Mod != 0 {
			f.add(at.path("mod"), onlyMod)
		}
		if c.Below != 0 {
			f.add(at.path("below"), onlyMod)
		}
	}
	switch c.Op {
	case OpMod, OpExists, OpNotExists:
		if len(c.Values) > 0 {
			f.addf(at.path("values"), "the operator %s takes none", c.Op)
		}
		return
	}
	if len(c.Values) == 0 {
		f.addMissing(at.path("values"), fmt.Sprintf("the operator %s needs one at least", c.Op))
	}
	for k, v := range c.Values {
		if f.full() {
			return
		}
		reason, size := checkValue(c.Op, v)
		if f.size += size; f.size > maxRegexSizes && f.size-size <= maxRegexSizes {
			reason = "the regular expressions of the set are too large together"
		}
		if reason != "" {
			f.add(at.path("values[%d]", k), reason)
		}
	}
}

// checkValue returns what is wrong with a value, and what it costs.
func checkValue(op Op, v string) (reason string, size int) {
	switch op {
	case OpRegex:
		if len(v) > MaxRegexBytes {
			return fmt.Sprintf("a regular expression of more than %d bytes", MaxRegexBytes), 0
		}
		re, err := syntax.Parse(v, syntax.Perl)
		if err != nil {
			return "not a regular expression: " + shorten(strings.TrimPrefix(err.Error(), "error parsing regexp: ")), 0
		}
		if size = regexSize(re); size > maxRegexSize {
			return "a regular expression that repeats too much", 0
		}
		return "", size
	case OpCIDR:
		if _, err := parseRange(v); err != nil {
			return "not an address range such as 10.0.0.0/8, nor an address", 0
		}
	case OpSemver:
		if _, err := newConstraint(v); err != nil {
			return "not a version range such as >=3.2.0 <5", 0
		}
	}
	return "", 0
}

// maxRegexSize bounds what an expression of a few bytes, such as (abcdefghij){999},
// may grow to, in instructions, and maxRegexSizes all those of a set together;
// each instruction takes some 40 bytes.
const (
	maxRegexSize  = 5_000 // a list of the 4096 bytes that are allowed, and no more
	maxRegexSizes = 2_000_000
)

// regexSize estimates how many instructions an expression makes.
func regexSize(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		size += regexSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Min, re.Max, 1)
	}
	return min(size, maxRegexSize+1)
}

// newConstraint reads a version range. Masterminds takes "" for any version,
// which nobody means.
func newConstraint(v string) (*semver.Constraints, error) {
	if strings.TrimSpace(v) == "" || len(v) > MaxIDBytes {
		return nil, errors.New("empty or too long")
	}
	return semver.NewConstraint(v)
}

// parseRange reads a range or a single address; v4-mapped v6 is v4.
func parseRange(v string) (netip.Prefix, error) {
	if !strings.Contains(v, "/") {
		a, err := netip.ParseAddr(v)
		if err != nil {
			return netip.Prefix{}, err
		}
		a = plainAddr(a)
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(v)
	if err != nil {
		return netip.Prefix{}, err
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}
