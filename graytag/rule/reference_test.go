package rule_test

import (
	"cmp"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
)

// reference decides by the letter of the documentation, slowly: every rule in
// order, no index, no cache.
func reference(s *rule.Set, r *rule.Request) (graytag.Tag, []string) {
	if s.Stop {
		return graytag.Tag{}, nil
	}
	rules := slices.Clone(s.Rules)
	slices.SortFunc(rules, func(a, b rule.Rule) int {
		percent := func(r rule.Rule) int {
			if r.Percent.IsSet() {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(percent(a), percent(b)), cmp.Compare(a.ID, b.ID))
	})
	pairs := map[string]string{}
	put := func(k, v string) {
		if _, ok := pairs[k]; !ok {
			pairs[k] = v
		}
	}
	var ids []string
	global := false
	for _, x := range rules {
		if !referenceMatches(s, &x, r) {
			continue
		}
		ids = append(ids, x.ID)
		for k, v := range graytag.MustParse(x.Tag).All() {
			switch {
			case len(x.Services) == 0:
				put(k, v)
			case r.Service != "":
				put(k+"."+r.Service, v)
			default:
				for _, service := range x.Services {
					put(k+"."+service, v)
				}
			}
		}
		if global = len(x.Services) == 0; global {
			break
		}
	}
	if !global {
		for k, v := range graytag.MustParse(s.Default).All() {
			put(k, v)
		}
	}
	for _, name := range s.Carry {
		v, ok := referenceValue(s, r, name)
		if _, err := graytag.New(map[string]string{name: v}); ok && err == nil {
			put(name, v)
		}
	}
	tag, err := graytag.New(pairs)
	if err != nil {
		panic(err) // the sets of these tests are small
	}
	return tag, ids
}

func referenceMatches(s *rule.Set, x *rule.Rule, r *rule.Request) bool {
	if x.Enabled != nil && !*x.Enabled || !x.From.IsZero() && r.Time.Before(x.From) || !x.Until.IsZero() && !r.Time.Before(x.Until) {
		return false
	}
	if r.Service != "" && len(x.Services) > 0 && !slices.Contains(x.Services, r.Service) {
		return false
	}
	for _, c := range x.Match {
		v, ok := referenceValue(s, r, c.Attr)
		if !referenceCondition(&c, v, ok) {
			return false
		}
	}
	switch {
	case !x.Percent.IsSet() || x.Percent.Thousandths() == 100_000:
		return true
	case x.Percent.Thousandths() == 0:
		return false
	}
	hashBy, salt := x.HashBy, x.Salt
	if len(hashBy) == 0 {
		hashBy = []string{"uid"}
	}
	if salt == "" {
		salt = x.ID
	}
	for _, attr := range hashBy {
		if v, ok := referenceValue(s, r, attr); ok && v != "" {
			return rule.Bucket(salt, v) < x.Percent.Thousandths()
		}
	}
	return false
}

func referenceValue(s *rule.Set, r *rule.Request, attr string) (string, bool) {
	ask := func(f func(string) (string, bool), name string) (string, bool) {
		if f == nil {
			return "", false
		}
		return f(name)
	}
	if where, name, ok := strings.Cut(attr, ":"); ok {
		switch where {
		case "header":
			return ask(r.Header, name)
		case "cookie":
			return ask(r.Cookie, name)
		}
		return ask(r.Query, name)
	}
	switch attr {
	case "ip":
		if !r.IP.IsValid() {
			return "", false
		}
		return r.IP.Unmap().WithZone("").String(), true
	case "host":
		return r.Host, r.Host != ""
	case "path":
		return r.Path, r.Path != ""
	case "method":
		return r.Method, r.Method != ""
	case "source":
		return r.Source, r.Source != ""
	}
	sources, ok := s.Attributes[attr]
	if !ok {
		sources = rule.DefaultAttributes()[attr]
	}
	for _, source := range sources {
		if v, ok := referenceValue(s, r, source); ok && v != "" {
			return v, true
		}
	}
	return "", false
}

func referenceCondition(c *rule.Condition, v string, ok bool) bool {
	some := func(f func(w string) bool) bool { return slices.ContainsFunc(c.Values, f) }
	if !ok {
		return c.Op == rule.OpNotExists
	}
	switch c.Op {
	case rule.OpEquals, rule.OpIn:
		return slices.Contains(c.Values, v)
	case rule.OpNotEquals, rule.OpNotIn:
		return !slices.Contains(c.Values, v)
	case rule.OpPrefix:
		return some(func(w string) bool { return strings.HasPrefix(v, w) })
	case rule.OpSuffix:
		return some(func(w string) bool { return strings.HasSuffix(v, w) })
	case rule.OpContains:
		return some(func(w string) bool { return strings.Contains(v, w) })
	case rule.OpRegex:
		return some(func(w string) bool { return regexp.MustCompile(w).MatchString(v) })
	case rule.OpExists:
		return true
	case rule.OpMod:
		n, ok := new(big.Int).SetString(v, 10)
		if !ok || strings.Trim(v, "0123456789") != "" {
			return false
		}
		return n.Mod(n, big.NewInt(c.Mod)).Cmp(big.NewInt(c.Below)) < 0
	case rule.OpCIDR:
		a, err := netip.ParseAddr(v)
		if err != nil {
			return false
		}
		return some(func(w string) bool {
			if p, err := netip.ParsePrefix(w); err == nil {
				return p.Contains(a.Unmap())
			}
			return netip.MustParseAddr(w) == a.Unmap()
		})
	case rule.OpSemver:
		version, err := semver.NewVersion(v)
		return err == nil && some(func(w string) bool {
			r, err := semver.NewConstraint(w)
			return err == nil && r.Check(version)
		})
	}
	return false
}

// maker makes sets and requests over a small alphabet, so that rules meet.
type maker struct{ *rand.Rand }

func (m maker) pick(list ...string) string { return list[m.IntN(len(list))] }

func (m maker) some(max int, f func() string) []string {
	list := make([]string, 1+m.IntN(max))
	for i := range list {
		list[i] = f()
	}
	return list
}

func (m maker) attr() string {
	return m.pick("uid", "uid", "channel", "header:x-a", "header:X-A", "cookie:c", "query:q", "path", "ip", "tenant", "source")
}

func (m maker) value() string {
	return m.pick("", "a", "b", "ab", "ba", "aab", "1", "12", "120", "10.0.0.1", "10.1.0.1", "1.2.3", "/a/b")
}

func (m maker) condition() rule.Condition {
	c := rule.Condition{Attr: m.attr(), Op: rule.Ops()[m.IntN(len(rule.Ops()))]}
	switch c.Op {
	case rule.OpExists, rule.OpNotExists:
	case rule.OpMod:
		c.Mod = 1 + m.Int64N(20)
		c.Below = m.Int64N(20)
	case rule.OpRegex:
		c.Values = m.some(2, func() string { return m.pick("a", "^a", "b$", "1.", "[0-9]+") })
	case rule.OpCIDR:
		c.Values = m.some(2, func() string { return m.pick("10.0.0.0/8", "10.0.0.1", "10.1.0.0/16", "::/0") })
	case rule.OpSemver:
		c.Values = m.some(2, func() string { return m.pick(">=1.2", "<1", "^1.2.3") })
	default:
		c.Values = m.some(12, m.value)
	}
	return c
}

func (m maker) set() *rule.Set {
	s := &rule.Set{Attributes: map[string][]string{"tenant": {"query:q", "header:X-A"}}}
	for i := range m.IntN(30) {
		r := rule.Rule{ID: fmt.Sprint("r", i), Priority: m.IntN(3), Tag: m.pick("version=v1", "version=v2;lane=x", "lane=y")}
		for range m.IntN(3) {
			r.Match = append(r.Match, m.condition())
		}
		if m.IntN(3) > 0 {
			r.Services = m.some(2, func() string { return m.pick("order", "cart", "user") })
		}
		if m.IntN(3) == 0 {
			r.Percent = rule.MustPercent(m.pick("0", "10", "50", "99.999", "100"))
			r.Salt = m.pick("", "s")
			if m.IntN(2) == 0 {
				r.HashBy = m.some(2, m.attr)
			}
		}
		if m.IntN(8) == 0 {
			off := m.IntN(2) == 0
			r.Enabled = &off
		}
		if m.IntN(8) == 0 {
			r.From = time.Unix(int64(m.IntN(3)), 0)
		}
		if m.IntN(8) == 0 {
			r.Until = time.Unix(int64(4+m.IntN(3)), 0)
		}
		s.Rules = append(s.Rules, r)
	}
	if m.IntN(2) == 0 {
		s.Default = m.pick("version=stable", "zone=z")
	}
	if m.IntN(2) == 0 {
		s.Carry = m.some(2, func() string { return m.pick("uid", "channel", "path", "tenant") })
	}
	return s
}

func (m maker) request() *rule.Request {
	values := func() map[string]string {
		v := map[string]string{}
		for _, name := range []string{"X-A", "X-User-ID", "X-Channel", "c", "user_id", "q", "uid"} {
			if m.IntN(2) == 0 {
				v[name] = m.value()
			}
		}
		return v
	}
	r := &rule.Request{Header: lookup(values()), Query: exactly(values()), Cookie: exactly(values()), Time: time.Unix(int64(m.IntN(8)), 0)}
	if m.IntN(2) == 0 {
		r.IP = netip.MustParseAddr(m.pick("10.0.0.1", "10.1.0.1", "::ffff:10.0.0.1", "fe80::1%eth0"))
	}
	r.Path, r.Source, r.Service = m.value(), m.pick("", "a", "b"), m.pick("", "", "order", "cart", "pay")
	return r
}

func compare(t testing.TB, s *rule.Set, e *rule.Engine, r *rule.Request) {
	t.Helper()
	tag, ids := reference(s, r)
	d := e.Decide(r)
	if d.Tag.String() != tag.String() || strings.Join(d.Rules, " ") != strings.Join(ids, " ") || d.Truncated != 0 {
		doc, _ := rule.Marshal(s)
		t.Fatalf("by %v: %s\nwant by %v: %s\n%s", d.Rules, d.Tag, ids, tag, doc)
	}
	x := e.Explain(r)
	var applied []string
	noKey := 0
	for _, re := range x.Rules {
		if re.Applied {
			applied = append(applied, re.ID)
		}
		if re.Verdict == rule.VerdictNoKey {
			noKey++
		}
	}
	if !slices.Equal(applied, d.Rules) && len(applied)+len(d.Rules) > 0 {
		t.Fatalf("explained by %v, decided by %v", applied, d.Rules)
	}
	if d.NoKey > noKey {
		t.Fatalf("%d rules without key, explained %d", d.NoKey, noKey)
	}
}

// The index and the cache change nothing about what comes out.
func TestDecideAsTheReferenceDoes(t *testing.T) {
	for seed := range uint64(fewer(2000)) {
		m := maker{rand.New(rand.NewPCG(seed, 0))}
		s := m.set()
		e, err := rule.NewEngine(s)
		require.NoError(t, err)
		for range 20 {
			compare(t, s, e, m.request())
		}
		doc, err := rule.Marshal(s)
		require.NoError(t, err)
		require.Equal(t, s.Rules == nil, len(parse(t, string(doc)).Rules) == 0)
	}
}
