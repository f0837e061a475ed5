package rule

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/graylane/graylane/graytag"
)

// Finding is something in a rule set that is legal but surely not meant.
type Finding struct {
	// Code is one of the Code constants.
	Code string `json:"code"`
	// Rules holds the ids of the rules that it is about, the one to look at first;
	// it is empty where it is about the set.
	Rules []string `json:"rules,omitempty"`
	// Path is where in the document, as in [Error].
	Path string `json:"path,omitempty"`
	// Message says it in a sentence.
	Message string `json:"message"`
}

// The codes of findings.
const (
	// CodeShadowed is a rule that never counts, because one before it matches
	// whenever it does.
	CodeShadowed = "shadowed"
	// CodeNeverMatches is a rule that no request can match.
	CodeNeverMatches = "never_matches"
	// CodeExpired is a rule whose window has ended.
	CodeExpired = "expired"
	// CodeSameUsers is two rules that choose the same users, by one salt, though
	// no plan holds them together.
	CodeSameUsers = "same_users"
	// CodeDifferentUsers is two rules of one lane that choose different users for
	// different services: a user is gray on one of them and stable on the other.
	CodeDifferentUsers = "different_users"
	// CodeNoInstance is a version that a service named with it has no instance of.
	CodeNoInstance = "no_instance"
	// CodeGlobalFits is a version for all services that also fits a service which
	// has rules of its own, none of which names that version.
	CodeGlobalFits = "global_fits"
	// CodeUnindexed is more than [UnindexedLimit] rules without an equals, in,
	// prefix, suffix or exists condition: each is tried for every request.
	CodeUnindexed = "unindexed"
	// CodeTooLong is a rule for so many services that its pairs fit no tag.
	CodeTooLong = "too_long"
	// CodeOutsideVersion is a carried attribute that lets clients choose their
	// version themselves.
	CodeOutsideVersion = "outside_version"
	// CodeIncomplete says that the set has too many rules, or too long lists, to
	// compare them all.
	CodeIncomplete = "incomplete"
)

// UnindexedLimit is how many rules that cannot be indexed are no finding.
const UnindexedLimit = 100

// Lint returns what is legal in s but surely not meant; nothing where s is no
// valid set, which is for [Parse] to say. versions returns the versions that a
// service has instances of, "" and "stable" being the stable ones; nil is not to
// look. Rules that are switched off, and rules at 0 %, are left alone.
func Lint(s *Set, versions func(service string) []string) []Finding {
	if s == nil {
		return nil
	}
	var f faults
	if check(s, &f); f.err() != nil {
		return nil
	}
	l := &linter{set: s, program: compile(s), places: evaluationOrder(s), now: time.Now()}
	for rank := range l.program.rules {
		r := &l.program.rules[rank]
		if !r.never() {
			l.live = append(l.live, rank)
		}
		if r.access >= 0 {
			r.conditions[r.access].hash() // no index looks up here
		}
	}
	l.single()
	l.shadows()
	l.users()
	l.instances(versions)
	return l.findings
}

type linter struct {
	set      *Set
	program  *program
	places   []int // in the document, by rank
	live     []int // ranks of the rules that can count
	now      time.Time
	findings []Finding
}

// comparisons bounds the work that pairs of rules make, in steps; tests lower it.
var comparisons = 5_000_000

// steps is what it may cost to compare the conditions of two rules: one, and more
// where they list many values of one attribute.
func steps(a, b *compiled) int {
	n := 1
	for i := range a.conditions {
		for j := range b.conditions {
			if x, y := &a.conditions[i], &b.conditions[j]; x.slot == y.slot {
				n += (len(x.few)*y.tests() + len(y.few)*x.tests()) / 8
			}
		}
	}
	return n
}

// tests is how many tests of c one value may take.
func (c *condition) tests() int {
	if c.op == OpEquals || c.op == OpNotEquals {
		return 1 // a look-up
	}
	return 1 + len(c.few) + len(c.regexs) + len(c.semver)
}

func (l *linter) rule(rank int) *Rule { return &l.set.Rules[l.places[rank]] }

func (l *linter) path(rank int, rest string) string {
	return fmt.Sprintf("rules[%d]%s", l.places[rank], rest)
}

func (l *linter) found(code, path, message string, rules ...string) {
	l.findings = append(l.findings, Finding{Code: code, Rules: rules, Path: path, Message: message})
}

// single looks at each rule by itself, and at the set.
func (l *linter) single() {
	left := comparisons
	for _, rank := range l.live {
		r, c := l.rule(rank), &l.program.rules[rank]
		if !r.Until.IsZero() && !l.now.Before(r.Until) {
			l.found(CodeExpired, l.path(rank, ".until"), fmt.Sprintf("rule %s is over since %s", r.ID, r.Until.Format(time.RFC3339)), r.ID)
		}
		if left >= 0 {
			if left -= steps(c, c); left < 0 {
				l.found(CodeIncomplete, "", "too many conditions: not all of them were compared")
			}
		}
		if at, why := l.impossible(c, left >= 0); why != "" {
			l.found(CodeNeverMatches, l.path(rank, fmt.Sprintf(".match[%d]", at)), fmt.Sprintf("rule %s matches no request: %s", r.ID, why), r.ID)
		}
		pairs := map[string]string{}
		for key, value := range c.tag.All() {
			for _, s := range c.services {
				pairs[key+"."+s] = value
			}
		}
		if _, err := graytag.New(pairs); err != nil {
			l.found(CodeTooLong, l.path(rank, ".services"), fmt.Sprintf("rule %s makes %d pairs, which fit no tag: at an entrance it comes to nothing", r.ID, len(pairs)), r.ID)
		}
	}
	if n := len(l.program.always); n > UnindexedLimit {
		l.found(CodeUnindexed, "", fmt.Sprintf("%d rules have no equals, in, prefix, suffix or exists condition and are tried for every request", n))
	}
	for i, name := range l.set.Carry {
		if name == l.program.key || strings.HasPrefix(name, l.program.key+".") {
			l.found(CodeOutsideVersion, fmt.Sprintf("carry[%d]", i), fmt.Sprintf("%s is what routing reads: where no rule sets it, a client chooses its version itself", name))
		}
	}
}

// impossible returns the condition that no request can meet, by itself or, where
// that is to be looked at, beside the others, and why; "" where there is none.
func (l *linter) impossible(c *compiled, beside bool) (at int, why string) {
	for i := range c.conditions {
		a := &c.conditions[i]
		slot := &l.program.slots[a.slot]
		if a.op == OpMod && a.below == 0 {
			return i, "no number is below 0"
		}
		if a.op == OpEquals && slot.declared && !slices.ContainsFunc(a.few, func(v string) bool { return v != "" }) {
			return i, "an empty " + slot.name + " counts as missing"
		}
		if a.op == OpEquals && !slices.ContainsFunc(a.few, slot.mayBe) {
			return i, slot.name + " is never spelt like that"
		}
		if !beside {
			continue
		}
		for j := range c.conditions {
			b := &c.conditions[j]
			if i == j || a.slot != b.slot {
				continue
			}
			switch {
			case a.op == OpNotExists && b.op != OpNotExists:
				return i, slot.name + " must be there and must not"
			case a.op == OpEquals && !slices.ContainsFunc(a.few, b.test):
				return i, fmt.Sprintf("no value of %s passes both this condition and match[%d]", slot.name, j)
			}
		}
	}
	return 0, ""
}

// mayBe tells whether the attribute can have the value, as far as its spelling is
// fixed: ip is an address and no range, host has no port and no upper case.
func (s *slot) mayBe(v string) bool {
	if s.declared || len(s.sources) != 1 {
		return true
	}
	switch s.sources[0].kind {
	case fromIP:
		_, err := netip.ParseAddr(v)
		return err == nil
	case fromHost:
		return v != "" && plainHost(v) == v
	case fromPath, fromMethod, fromSource:
		return v != ""
	}
	return true
}

// shadows finds rules that one before them makes useless.
func (l *linter) shadows() {
	type value struct {
		slot int32
		text string
	}
	exact := map[value][]int{} // rules with an equals condition, by each of its values
	var others []int           // rules without
	left := comparisons
	for _, rank := range l.live {
		c := &l.program.rules[rank]
		candidates := slices.Clone(others)
		for i := range c.conditions {
			if k := &c.conditions[i]; k.op == OpEquals {
				candidates = append(candidates, exact[value{k.slot, k.few[0]}]...)
			}
		}
		slices.Sort(candidates)
		for _, before := range slices.Compact(candidates) {
			if left -= steps(&l.program.rules[before], c); left < 0 {
				l.found(CodeIncomplete, "", "too many rules: not every pair was compared")
				return
			}
			if l.covers(before, rank) {
				id, by := l.rule(rank).ID, l.rule(before).ID
				l.found(CodeShadowed, l.path(rank, ""), fmt.Sprintf("rule %s never counts: %s matches whenever it does, and comes first", id, by), id, by)
				break
			}
		}
		at := slices.IndexFunc(c.conditions, func(k condition) bool { return k.op == OpEquals })
		if at < 0 {
			others = append(others, rank)
			continue
		}
		for _, v := range c.conditions[at].few {
			k := value{c.conditions[at].slot, v}
			exact[k] = append(exact[k], rank)
		}
	}
}

// covers tells whether rule a leaves nothing to a later rule b.
func (l *linter) covers(a, b int) bool {
	ca, cb := &l.program.rules[a], &l.program.rules[b]
	if len(ca.services) > 0 {
		if len(cb.services) == 0 || !subset(cb.services, ca.services) {
			return false
		}
		for key := range cb.tag.All() {
			if ca.tag.Get(key) == "" {
				return false
			}
		}
	}
	if !ca.from.IsZero() && (cb.from.IsZero() || cb.from.Before(ca.from)) {
		return false
	}
	if !ca.until.IsZero() && (cb.until.IsZero() || cb.until.After(ca.until)) {
		return false
	}
	if ca.drawn() {
		if !cb.drawn() || ca.salt != cb.salt || !slices.Equal(ca.hashBy, cb.hashBy) || cb.percent.thousandths > ca.percent.thousandths {
			return false
		}
	}
	for i := range ca.conditions {
		if !slices.ContainsFunc(cb.conditions, func(k condition) bool { return implies(&k, &ca.conditions[i]) }) {
			return false
		}
	}
	return true
}

func subset(a, b []string) bool {
	for _, s := range a {
		if !slices.Contains(b, s) {
			return false
		}
	}
	return true
}

// implies tells whether whatever meets a surely meets b. It may miss some.
func implies(a, b *condition) bool {
	if a.slot != b.slot {
		return false
	}
	every := func(fits func(string) bool) bool {
		return !slices.ContainsFunc(a.few, func(v string) bool { return !fits(v) })
	}
	each := func(fits func(v, w string) bool) bool {
		return every(func(v string) bool {
			return slices.ContainsFunc(b.few, func(w string) bool { return fits(v, w) })
		})
	}
	switch {
	case a.op == OpNotExists || b.op == OpNotExists:
		return a.op == b.op
	case b.op == OpExists:
		return true
	case a.op == OpEquals:
		if b.op == OpEquals && len(a.few) > len(b.few) {
			return false // unless values stand twice, which is not worth the look
		}
		return every(b.test)
	case a.op == OpNotEquals && b.op == OpNotEquals:
		return !slices.ContainsFunc(b.few, func(w string) bool { return !a.holds(w) })
	case a.op == OpPrefix && b.op == OpPrefix:
		return each(strings.HasPrefix)
	case a.op == OpSuffix && b.op == OpSuffix:
		return each(strings.HasSuffix)
	case (a.op == OpPrefix || a.op == OpSuffix || a.op == OpContains) && b.op == OpContains:
		return each(strings.Contains)
	case a.op == OpMod && b.op == OpMod:
		return a.mod == b.mod && a.below <= b.below || b.below >= b.mod
	case a.op == OpRegex && b.op == OpRegex:
		for _, re := range a.regexs {
			if !slices.Contains(b.regexs, re) { // the compiler shares them
				return false
			}
		}
		return true
	case a.op == OpSemver && b.op == OpSemver:
		for _, r := range a.semver {
			if !slices.Contains(b.semver, r) {
				return false
			}
		}
		return true
	case a.op == OpCIDR && b.op == OpCIDR:
		return a.ranges.within(b.ranges)
	}
	return false
}

// within tells whether each range of r is a part of one of s.
func (r ranges) within(s ranges) bool {
	for _, g := range r {
		for base := range g.bases {
			if !slices.ContainsFunc(s, func(h rangeGroup) bool {
				if h.is4 != g.is4 || h.bits > g.bits {
					return false
				}
				p, _ := base.Prefix(h.bits)
				_, ok := h.bases[p.Addr()]
				return ok
			}) {
				return false
			}
		}
	}
	return true
}

// users compares what percentages choose.
func (l *linter) users() {
	var drawn []int
	for _, rank := range l.live {
		if l.program.rules[rank].drawn() {
			drawn = append(drawn, rank)
		}
	}
	plans := l.planned()
	left := comparisons
	for i, b := range drawn {
		for _, a := range drawn[:i] {
			if left -= steps(&l.program.rules[a], &l.program.rules[b]); left < 0 {
				l.found(CodeIncomplete, "", "too many rules with a percentage: not every pair was compared")
				return
			}
			l.comparePair(a, b, plans)
		}
	}
}

func (l *linter) comparePair(a, b int, plans map[string]map[string]bool) {
	ca, cb := &l.program.rules[a], &l.program.rules[b]
	if exclusive(ca, cb) {
		return
	}
	same := ca.salt == cb.salt && slices.Equal(ca.hashBy, cb.hashBy)
	overlap := len(ca.services) == 0 || len(cb.services) == 0 || slices.ContainsFunc(ca.services, func(s string) bool { return slices.Contains(cb.services, s) })
	if same && overlap && !shared(plans[ca.id], plans[cb.id]) {
		l.found(CodeSameUsers, l.path(b, ".salt"),
			fmt.Sprintf("rules %s and %s choose the same users, by the salt %q, for services that both are for, and no plan holds both", cb.id, ca.id, cb.salt), cb.id, ca.id)
	}
	lane := l.lane(ca)
	if len(ca.services) == 0 || len(cb.services) == 0 || slices.Equal(ca.services, cb.services) || lane == "" || lane != l.lane(cb) {
		return
	}
	switch {
	case !same:
		l.found(CodeDifferentUsers, l.path(b, ".salt"),
			fmt.Sprintf("rules %s and %s are of one lane (%s) and choose different users: give them one salt and one hashBy", cb.id, ca.id, lane), cb.id, ca.id)
	case ca.percent != cb.percent:
		l.found(CodeDifferentUsers, l.path(b, ".percent"),
			fmt.Sprintf("rules %s and %s are of one lane (%s) and choose %s %% and %s %%: some users are gray on one service and stable on the other", cb.id, ca.id, lane, cb.percent, ca.percent), cb.id, ca.id)
	}
}

// exclusive tells whether no request can meet the conditions of both.
func exclusive(a, b *compiled) bool {
	for i := range a.conditions {
		for j := range b.conditions {
			x, y := &a.conditions[i], &b.conditions[j]
			if x.slot == y.slot && x.op == OpEquals && !slices.ContainsFunc(x.few, y.test) ||
				x.slot == y.slot && y.op == OpEquals && !slices.ContainsFunc(y.few, x.test) {
				return true
			}
		}
	}
	return false
}

// lane names the lane of a rule: its lane, where its tag has one, or else its
// version.
func (l *linter) lane(c *compiled) string {
	for _, key := range []string{graytag.KeyLane, l.program.key} {
		if v := c.tag.Get(key); v != "" && !isStable(v) {
			return key + "=" + v
		}
	}
	return ""
}

// planned returns, for each rule, the plans that mention it. What a plan looks
// like is not for this package to know: one mentions a rule where it holds the
// id as a string.
func (l *linter) planned() map[string]map[string]bool {
	plans := map[string]map[string]bool{}
	for name, raw := range l.set.Plans {
		var content any
		if json.Unmarshal(raw, &content) != nil {
			continue
		}
		eachString(content, func(id string) {
			if plans[id] == nil {
				plans[id] = map[string]bool{}
			}
			plans[id][name] = true
		})
	}
	return plans
}

func eachString(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, e := range v {
			eachString(e, f)
		}
	case map[string]any:
		for key, e := range v {
			f(key)
			eachString(e, f)
		}
	}
}

func shared(a, b map[string]bool) bool {
	for name := range a {
		if b[name] {
			return true
		}
	}
	return false
}

func isStable(version string) bool { return version == "" || version == "stable" }

// instances compares versions with what there is.
func (l *linter) instances(versions func(string) []string) {
	if versions == nil {
		return
	}
	known := map[string][]string{}
	has := func(service, version string) bool {
		list, ok := known[service]
		if !ok {
			list = versions(service)
			known[service] = list
		}
		return slices.Contains(list, version)
	}
	key := l.program.key
	own := map[string]string{}            // services with a rule of their own, and one such rule
	named := map[string]map[string]bool{} // the versions that those rules name
	missing := func(path, who, service, version string, rules ...string) {
		if !isStable(version) && !has(service, version) {
			l.found(CodeNoInstance, path, fmt.Sprintf("%s names version %s of %s, which has no such instance", who, version, service), rules...)
		}
	}
	for _, rank := range l.live {
		c := &l.program.rules[rank]
		for _, s := range c.services {
			if own[s] == "" {
				own[s], named[s] = c.id, map[string]bool{}
			}
			named[s][c.tag.Get(key)] = true
			missing(l.path(rank, ".tag"), "rule "+c.id, s, c.tag.Get(key), c.id)
		}
		if len(c.services) == 0 {
			for k, version := range c.tag.All() {
				if s, ok := strings.CutPrefix(k, key+"."); ok {
					missing(l.path(rank, ".tag"), "rule "+c.id, s, version, c.id)
				}
			}
		}
	}
	for k, version := range l.program.tag.All() {
		if s, ok := strings.CutPrefix(k, key+"."); ok {
			missing("default", "the default", s, version)
		}
	}
	for _, rank := range l.live {
		c := &l.program.rules[rank]
		version := c.tag.Get(key)
		if len(c.services) > 0 || isStable(version) {
			continue
		}
		for _, s := range slices.Sorted(maps.Keys(own)) {
			if c.tag.Get(key+"."+s) == "" && !named[s][version] && has(s, version) {
				l.found(CodeGlobalFits, l.path(rank, ".tag"),
					fmt.Sprintf("rule %s sends all services to version %s, which %s also has, though %s has rules of its own such as %s", c.id, version, s, s, own[s]), c.id, own[s])
			}
		}
	}
}
