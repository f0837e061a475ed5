package rule_test

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
)

// FuzzParse: no panic; every fault has a reason; what is good survives Marshal,
// makes an engine and can be looked at.
func FuzzParse(f *testing.F) {
	f.Add([]byte(everything))
	v := loadRules(f)
	for _, s := range v.Sets {
		f.Add([]byte(s.Set))
	}
	for _, s := range v.Invalid {
		f.Add([]byte(s.Set))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		set, err := rule.Parse(doc)
		if err != nil {
			var fault *rule.Error
			if !errors.As(err, &fault) || set != nil {
				t.Fatalf("%v", err)
			}
			seen := map[string]bool{}
			for _, f := range rule.Faults(err) {
				if f.Reason == "" || seen[f.Path] {
					t.Fatalf("%q: %q", f.Path, f.Reason)
				}
				seen[f.Path] = true
			}
			return
		}
		data, err := rule.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		again, err := rule.Parse(data)
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if !reflect.DeepEqual(set, again) {
			t.Fatalf("%s\nbecame\n%s", doc, data)
		}
		e, err := rule.NewEngine(set)
		if err != nil {
			t.Fatal(err)
		}
		e.Decide(nil)
		rule.Lint(set, func(string) []string { return nil })
	})
}

// FuzzDecide: whatever a request holds, a decision comes out that is a tag, the
// one that Explain and the reference come to.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), "10086", "app", "10.0.0.1", "/a/b", "order")
	f.Add(uint64(2), "", "ab", "::ffff:10.1.0.1", "", "")
	f.Add(uint64(3), "120", "\xff", "fe80::1%eth0", "1.2.3", "cart")
	f.Fuzz(func(t *testing.T, seed uint64, uid, other, ip, path, service string) {
		m := maker{rand.New(rand.NewPCG(seed, 1))}
		s := m.set()
		e, err := rule.NewEngine(s)
		if err != nil {
			t.Fatal(err)
		}
		headers := map[string]string{"X-User-ID": uid, "X-A": other, "X-Channel": other}
		r := &rule.Request{
			Header: lookup(headers), Query: exactly(map[string]string{"q": uid}), Cookie: exactly(map[string]string{"c": other}),
			Path: path, Service: service, Source: other, Time: time.Unix(int64(seed%8), 0),
		}
		r.IP, _ = netip.ParseAddr(ip)
		d := e.Decide(r)
		if again, err := graytag.Parse(d.Tag.String()); err != nil || !again.Equal(d.Tag) {
			t.Fatalf("%q: %v", d.Tag, err)
		}
		if x := e.Explain(r); !reflect.DeepEqual(x.Decision.Rules, d.Rules) || !x.Decision.Tag.Equal(d.Tag) {
			t.Fatalf("decided %v, explained %v", d, x.Decision)
		}
		if max(len(uid), len(other), len(path)) > rule.MaxRegexValueBytes || d.Truncated > 0 || strings.ContainsAny(other, ":[") {
			return // the reference knows no bounds, and no ports
		}
		compare(t, s, e, r)
	})
}
