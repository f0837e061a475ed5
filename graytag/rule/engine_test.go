package rule_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
)

func one(t testing.TB, condition string) *rule.Engine {
	t.Helper()
	return engine(t, `{"attributes":{"user":[]},"rules":[{"id":"r","match":[`+condition+`],"tag":"version=v2"}]}`)
}

func TestNoRules(t *testing.T) {
	e, err := rule.NewEngine(nil, nil, rule.WithLogger(nil))
	require.NoError(t, err)
	d := e.Decide(nil)
	assert.True(t, d.Tag.IsZero())
	assert.Empty(t, d.Rules)
	assert.Equal(t, "version", d.Key)
	assert.Equal(t, "version", e.Key())
	assert.Empty(t, e.Explain(nil).Rules)
	s := e.Status()
	assert.Zero(t, s.Revision)
	assert.NoError(t, s.Err)
	assert.False(t, s.Following)
	assert.False(t, s.Loaded.IsZero())
	assert.GreaterOrEqual(t, s.Age, time.Duration(0))
}

func TestLoad(t *testing.T) {
	set := parse(t, `{"key":"gray","rules":[{"id":"r","tag":"gray=true"},{"id":"off","enabled":false,"tag":"gray=true"},{"id":"zero","percent":0,"tag":"gray=true"}]}`)
	e := started(t, set)
	assert.Equal(t, "gray", e.Decide(nil).Key)
	assert.Equal(t, 1, e.Status().Rules)
	set.Rules[0].Tag, set.Rules[0].ID = "gray=changed", "changed"
	assert.Equal(t, "gray=true", e.Decide(nil).Tag.String(), "the engine has a copy")

	bad := rule.Set{Rules: []rule.Rule{{ID: "r"}, {ID: "s", Tag: "a"}}}
	assert.Equal(t, []string{"rules[0].tag", "rules[1].tag"}, paths(e.Load(&bad)))
	assert.Equal(t, "gray=true", e.Decide(nil).Tag.String())
	_, err := rule.NewEngine(&bad)
	assert.Equal(t, []string{"rules[0].tag", "rules[1].tag"}, paths(err))
	require.NoError(t, e.Load(&rule.Set{Stop: true, Default: "gray=x"}))
	d := e.Decide(nil)
	assert.True(t, d.Stopped)
	assert.True(t, d.Tag.IsZero())
	assert.True(t, e.Status().Stopped)
	require.NoError(t, e.Load(nil))
	assert.False(t, e.Decide(nil).Stopped)
}

func TestCodeReplacesTheSourcesOfAnAttribute(t *testing.T) {
	asked := 0
	forged := user("admin")
	forged.Attr = func(name string) (string, bool) {
		switch name {
		case "uid":
			asked++
			return "7", true
		case "channel":
			return "", true
		case "ip", "header:X-User-Id":
			t.Errorf("asked for %s", name)
		}
		return "", false
	}
	e := engine(t, `{"carry":["uid","channel"],"rules":[
		{"id":"admin","match":[{"attr":"uid","op":"equals","values":["admin"]}],"tag":"r=admin"},
		{"id":"seven","percent":99.999,"hashBy":["uid"],"match":[{"attr":"uid","op":"equals","values":["7"]},{"attr":"ip","op":"not_exists"},{"attr":"header:x-user-id","op":"equals","values":["admin"]}],"tag":"r=seven"}]}`)
	d := e.Decide(forged)
	assert.Equal(t, "r=seven;uid=7", d.Tag.String())
	assert.Equal(t, []rule.HashKey{{Attr: "uid", Source: rule.SourceCode, Value: "7"}}, d.HashKeys())
	assert.Equal(t, 1, asked, "once for a decision")

	forged.Attr = func(string) (string, bool) { return "", true }
	assert.Empty(t, e.Decide(forged).Rules, "code says that nobody is logged in")
	forged.Attr = func(string) (string, bool) { return "x", false }
	assert.Equal(t, []string{"admin"}, e.Decide(forged).Rules)

	// A name without sources is for code alone.
	e = one(t, `{"attr":"user","op":"exists"}`)
	assert.Empty(t, e.Decide(user("7")).Rules)
	assert.NotEmpty(t, e.Decide(&rule.Request{Attr: func(name string) (string, bool) { return "7", name == "user" }}).Rules)
}

func TestBuiltinAttributes(t *testing.T) {
	for _, c := range []struct {
		attr, value string
		r           rule.Request
		want        bool
	}{
		{"host", "shop.example", rule.Request{Host: "Shop.Example:8080"}, true},
		{"host", "shop.example", rule.Request{Host: "shop.example"}, true},
		{"host", "::1", rule.Request{Host: "[::1]:8080"}, true},
		{"host", "::1", rule.Request{Host: "[::1]"}, true},
		{"host", "::1", rule.Request{Host: "::1"}, true},
		{"host", "shop.example:8080", rule.Request{Host: "shop.example:8080"}, false},
		{"ip", "2001:DB8::1", rule.Request{IP: from("[2001:db8::1]:1")}, true},
		{"ip", "10.0.0.1", rule.Request{IP: from("[::ffff:10.0.0.1]:1")}, true},
		{"method", "POST", rule.Request{Method: "POST"}, true},
		{"method", "post", rule.Request{Method: "POST"}, false},
		{"path", "/a b", rule.Request{Path: "/a b"}, true},
		{"source", "order", rule.Request{Source: "order"}, true},
		{"path", "", rule.Request{}, false},
		{"query:q", "", rule.Request{Query: exactly(map[string]string{"q": ""})}, true},
		{"query:q", "", rule.Request{Query: exactly(nil)}, false},
		{"header:x-a", "1", rule.Request{Header: exactly(map[string]string{"X-A": "1"})}, true},
		{"cookie:A", "1", rule.Request{Cookie: exactly(map[string]string{"a": "1"})}, false},
	} {
		e := one(t, fmt.Sprintf(`{"attr":%q,"op":"in","values":[%q]}`, c.attr, c.value))
		assert.Equal(t, c.want, len(e.Decide(&c.r).Rules) == 1, "%s %q %+v", c.attr, c.value, c.r)
	}
}

func TestLongValuesCountAsMissing(t *testing.T) {
	e := one(t, `{"attr":"header:X-User-ID","op":"prefix","values":["x"]}`)
	assert.NotEmpty(t, e.Decide(user(strings.Repeat("x", rule.MaxValueBytes))).Rules)
	assert.Empty(t, e.Decide(user(strings.Repeat("x", rule.MaxValueBytes+1))).Rules)
	e = one(t, `{"attr":"uid","op":"exists"}`)
	assert.Empty(t, e.Decide(user(strings.Repeat("x", rule.MaxValueBytes+1))).Rules)
}

func TestSemver(t *testing.T) {
	e := one(t, `{"attr":"uid","op":"semver","values":[">=3.2.0 <5","~1.4"]}`)
	for v, want := range map[string]bool{"3.2": true, "v4.9.9": true, "1.4.7": true, "1.5.0": false, "5.0.0": false, "3.3.0-beta.1": false, "": false, "x": false, strings.Repeat("9", 300): false} {
		assert.Equal(t, want, len(e.Decide(user(v)).Rules) == 1, v)
	}
}

func TestModOfLargeNumbers(t *testing.T) {
	e := one(t, `{"attr":"uid","op":"mod","mod":999999999999999,"below":1}`)
	assert.NotEmpty(t, e.Decide(user("999999999999999000000000000000")).Rules)
	assert.Empty(t, e.Decide(user("999999999999999000000000000001")).Rules)
	assert.NotEmpty(t, e.Decide(user(strings.Repeat("0", 5000))).Rules)
}

// On a hop, rules for the target add their pairs for it alone, and rules for all
// services apply as everywhere.
func TestHop(t *testing.T) {
	e := engine(t, `{"default":"zone=z1","rules":[
		{"id":"scoped","match":[{"attr":"source","op":"in","values":["order"]}],"services":["inventory","cart"],"tag":"version=v3;lane=l"},
		{"id":"all","match":[{"attr":"source","op":"in","values":["pay"]}],"tag":"version=v4"}]}`)
	for _, c := range []struct{ source, service, tag string }{
		{"order", "inventory", "lane.inventory=l;version.inventory=v3;zone=z1"},
		{"order", "cart", "lane.cart=l;version.cart=v3;zone=z1"},
		{"order", "user", "zone=z1"},
		{"order", "", "lane.cart=l;lane.inventory=l;version.cart=v3;version.inventory=v3;zone=z1"},
		{"pay", "inventory", "version=v4"},
		{"pay", "user", "version=v4"},
	} {
		for range 2 {
			assert.Equal(t, c.tag, e.Decide(&rule.Request{Source: c.source, Service: c.service}).Tag.String(), "%+v", c)
		}
	}
	x := e.Explain(&rule.Request{Source: "order", Service: "user"})
	assert.Equal(t, rule.VerdictCondition, x.Rules[0].Verdict)
	assert.Equal(t, rule.VerdictService, x.Rules[1].Verdict)
}

func TestCarry(t *testing.T) {
	e := engine(t, `{"carry":["uid","uid","channel","region","ip"],"default":"region=default","rules":[{"id":"r","match":[{"attr":"uid","op":"exists"}],"tag":"channel=rule"}]}`)
	r := func(header map[string]string) *rule.Request { return &rule.Request{Header: lookup(header)} }
	for _, c := range []struct {
		header map[string]string
		tag    string
	}{
		{nil, "region=default"},
		{map[string]string{"X-User-ID": "a b;=%,\"小"}, "channel=rule;uid=a%20b%3B%3D%25%2C%22%E5%B0%8F"},
		{map[string]string{"X-User-ID": "7", "X-Channel": "app", "X-Region": "sh"}, "channel=rule;region=sh;uid=7"},
		{map[string]string{"X-Channel": "app", "X-Region": "sh"}, "channel=app;region=default"},
		{map[string]string{"X-User-ID": "7\r\nX: y", "X-Region": "sh"}, "channel=rule;region=sh"},
		{map[string]string{"X-User-ID": "\xff", "X-Region": "sh"}, "channel=rule;region=sh"},
		{map[string]string{"X-User-ID": strings.Repeat("x", 257)}, "channel=rule"},
		{map[string]string{"X-User-ID": "", "X-Region": "sh"}, "region=default"},
	} {
		d := e.Decide(r(c.header))
		assert.Equal(t, c.tag, d.Tag.String(), "%v", c.header)
		assert.Zero(t, d.Truncated, "what fits no tag is skipped, not cut")
	}
}

func TestTagsThatGetTooLong(t *testing.T) {
	long := strings.Repeat("x", 250)
	e := engine(t, `{"carry":["uid","channel","region"],"rules":[{"id":"r","tag":"version=v2;a=`+long+`;b=`+long+`;c=`+long+`"}]}`)
	d := e.Decide(&rule.Request{Header: lookup(map[string]string{"X-User-ID": "7", "X-Channel": long, "X-Region": "sh"})})
	assert.Equal(t, "7", d.Tag.Get("uid"))
	assert.Equal(t, "v2", d.Tag.Get("version"))
	assert.Equal(t, "", d.Tag.Get("channel"))
	assert.Equal(t, "", d.Tag.Get("region"), "what comes after is of lower priority still")
	assert.Equal(t, 2, d.Truncated)
	assert.EqualValues(t, 2, e.Status().Truncated)

	// 40 rules of one service each: the tag holds 32 pairs.
	set := rule.Set{Carry: []string{"uid"}}
	for i := range 40 {
		set.Rules = append(set.Rules, rule.Rule{ID: fmt.Sprintf("r%02d", i), Services: []string{fmt.Sprintf("s%02d", i)}, Tag: "version=v2"})
	}
	set.Rules = append(set.Rules, rule.Rule{ID: "z", Tag: "lane=x;version=v3"})
	e = started(t, &set)
	for range 2 {
		d = e.Decide(user("7"))
		assert.Equal(t, graytag.MaxPairs, d.Tag.Len())
		assert.Equal(t, "v2", d.Tag.Get("version.s31"))
		assert.Len(t, d.Rules, 41)
		assert.Equal(t, 8+2+1, d.Truncated)
	}
	d = e.Decide(&rule.Request{Service: "s39"})
	assert.Equal(t, "lane=x;version=v3;version.s39=v2", d.Tag.String())

	// A rule comes in as a whole or not at all.
	wide := rule.Rule{ID: "wide", Tag: "version=v2"}
	for i := range 33 {
		wide.Services = append(wide.Services, fmt.Sprintf("s%02d", i))
	}
	e = started(t, &rule.Set{Rules: []rule.Rule{wide}, Default: "version=v1"})
	d = e.Decide(nil)
	assert.True(t, d.Tag.IsZero())
	assert.Equal(t, 34, d.Truncated)
	assert.Equal(t, "version=v1;version.s05=v2", e.Decide(&rule.Request{Service: "s05"}).Tag.String())
}

func TestExplain(t *testing.T) {
	e := engine(t, `{"rules":[
		{"id":"a-off","priority":9,"enabled":false,"tag":"version=v1"},
		{"id":"b-cond","priority":8,"match":[{"attr":"uid","op":"exists"},{"attr":"channel","op":"in","values":["app"]}],"tag":"version=v2"},
		{"id":"c-pct","priority":7,"percent":50,"salt":"checkout-v2","hashBy":["group","uid"],"tag":"version=v3"},
		{"id":"d-window","priority":6,"until":"2000-01-01T00:00:00Z","percent":50,"tag":"version=v4"},
		{"id":"e-key","priority":5,"percent":50,"hashBy":["session"],"tag":"version=v5"},
		{"id":"f-zero","priority":4,"percent":0,"tag":"version=v6"},
		{"id":"g-all","priority":3,"percent":100,"hashBy":["session"],"tag":"version=v7"},
		{"id":"h-more","priority":2,"tag":"version=v8"}]}`)
	r := user("user@example.com") // bucket 80906 under checkout-v2
	x := e.Explain(r)
	assert.Equal(t, e.Decide(r), x.Decision)
	want := []rule.RuleExplanation{
		{ID: "a-off", Verdict: rule.VerdictDisabled, Condition: -1, Bucket: -1, Threshold: -1},
		{ID: "b-cond", Verdict: rule.VerdictCondition, Condition: 1, Attr: "channel", Op: rule.OpEquals, Bucket: -1, Threshold: -1},
		{ID: "c-pct", Verdict: rule.VerdictPercent, Condition: -1, Bucket: 80906, Threshold: 50000, HashBy: "uid", HashSource: "header:X-User-Id"},
		{ID: "d-window", Verdict: rule.VerdictWindow, Condition: -1, Bucket: rule.Bucket("d-window", "user@example.com"), Threshold: 50000, HashBy: "uid", HashSource: "header:X-User-Id"},
		{ID: "e-key", Verdict: rule.VerdictNoKey, Condition: -1, Bucket: -1, Threshold: 50000},
		{ID: "f-zero", Verdict: rule.VerdictPercent, Condition: -1, Bucket: rule.Bucket("f-zero", "user@example.com"), Threshold: 0, HashBy: "uid", HashSource: "header:X-User-Id"},
		{ID: "g-all", Verdict: rule.VerdictMatched, Applied: true, Condition: -1, Bucket: -1, Threshold: 100000},
		{ID: "h-more", Verdict: rule.VerdictMatched, Condition: -1, Bucket: -1, Threshold: -1},
	}
	assert.Equal(t, want, x.Rules)

	require.NoError(t, e.Load(&rule.Set{Stop: true, Rules: []rule.Rule{{ID: "r", Tag: "version=v2"}}}))
	x = e.Explain(nil)
	assert.True(t, x.Decision.Stopped)
	assert.True(t, x.Rules[0].Matched())
	assert.False(t, x.Rules[0].Applied)
}

func TestManyAttributes(t *testing.T) {
	set := rule.Set{}
	for i := range 40 {
		set.Rules = append(set.Rules, rule.Rule{
			ID: fmt.Sprintf("r%02d", i), Services: []string{fmt.Sprintf("s%d", i%3)}, Tag: fmt.Sprintf("k%02d=v", i),
			Percent: rule.MustPercent("99.999"), HashBy: []string{fmt.Sprintf("header:X-%d", i)},
			Match: []rule.Condition{{Attr: fmt.Sprintf("header:X-%d", i), Op: rule.OpExists}},
		})
	}
	d := started(t, &set).Decide(&rule.Request{Header: func(name string) (string, bool) { return name, true }})
	assert.Len(t, d.Rules, 40)
	assert.Len(t, d.HashKeys(), 40)
	v, ok := d.HashedBy("header:X-39")
	assert.True(t, ok)
	assert.Equal(t, "X-39", v)
}

// scripted is a store that yields what it is told.
type scripted struct {
	rule.Store
	steps chan event
}

func (s *scripted) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case e, ok := <-s.steps:
				if !ok || !yield(e.doc, e.err) {
					return
				}
			}
		}
	}
}

func TestFollowWhileTheStoreIsAway(t *testing.T) {
	var log logBuffer
	e, err := rule.NewEngine(nil, rule.WithLogger(log.logger()))
	require.NoError(t, err)
	s := &scripted{steps: make(chan event)}
	follow(t, e, s)
	away := errors.New("connection refused")

	s.steps <- event{err: away}
	require.Eventually(t, func() bool { return e.Status().Err != nil }, 5*time.Second, time.Millisecond)
	assert.ErrorIs(t, e.Status().Err, away)
	assert.True(t, e.Decide(nil).Tag.IsZero(), "a start without the store is stable")
	assert.True(t, e.Status().Following)

	good := rule.Document{Data: []byte(`{"rules":[{"id":"r","tag":"version=v2"}]}`), Revision: 5, Author: "ann", Reason: "go", Time: time.Unix(1, 0)}
	s.steps <- event{doc: good}
	inForce(t, e, 5)
	st := e.Status()
	assert.NoError(t, st.Err)
	assert.Equal(t, "ann", st.Author)
	assert.Equal(t, "go", st.Reason)
	assert.Equal(t, good.Time, st.Written)
	assert.EqualValues(t, 5, e.Decide(nil).Revision)

	for range 100 {
		s.steps <- event{err: away}
	}
	bad := rule.Document{Data: []byte(`{`), Revision: 6}
	s.steps <- event{doc: bad}
	s.steps <- event{err: away}
	s.steps <- event{doc: bad}
	s.steps <- event{err: away}
	require.Eventually(t, func() bool { return errors.Is(e.Status().Err, away) && e.Status().ErrRevision == 6 }, 5*time.Second, time.Millisecond)
	assert.Len(t, rule.Faults(e.Status().Err), 1, "both the document and the store")
	assert.Equal(t, "version=v2", e.Decide(nil).Tag.String())

	// The content that is in force under a new revision.
	good.Revision = 7
	s.steps <- event{doc: good}
	inForce(t, e, 7)
	assert.Equal(t, 1, log.count("document refused"))
	assert.Equal(t, 4, log.count("store cannot be read"), "one line until it works again")
	assert.Equal(t, "version=v2", e.Decide(nil).Tag.String())
	require.NoError(t, e.Load(nil))
	assert.Zero(t, e.Status().Revision)
	good.Revision = 8
	s.steps <- event{doc: good}
	inForce(t, e, 8)
	assert.Equal(t, "version=v2", e.Decide(nil).Tag.String(), "also where code had loaded another set")
}

// An engine that was started before the program set up its log uses the one that
// is the default when something happens.
func TestFollowLogsToTheDefaultOfTheMoment(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.DiscardHandler))
	e, err := rule.NewEngine(nil)
	require.NoError(t, err)
	s := &scripted{steps: make(chan event)}
	follow(t, e, s)
	s.steps <- event{doc: rule.Document{Data: []byte("{}"), Revision: 1}}
	inForce(t, e, 1)
	var log logBuffer
	slog.SetDefault(log.logger())
	s.steps <- event{doc: rule.Document{Data: []byte("{"), Revision: 2}}
	require.Eventually(t, func() bool { return e.Status().ErrRevision == 2 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, 1, log.count("document refused"))
}

func TestFollowOneStoreAtATime(t *testing.T) {
	e := started(t, &rule.Set{Rules: []rule.Rule{{ID: "r", Tag: "version=v2"}}})
	s := &scripted{steps: make(chan event)}
	done := make(chan error)
	go func() { done <- e.Follow(context.Background(), s) }()
	require.Eventually(t, func() bool { return e.Status().Following }, 5*time.Second, time.Millisecond)
	assert.ErrorIs(t, e.Follow(context.Background(), rule.NewMemoryStore()), rule.ErrFollowing)
	close(s.steps)
	assert.ErrorIs(t, <-done, rule.ErrStoreEnded)
	assert.ErrorIs(t, e.Status().Err, rule.ErrStoreEnded)
	assert.False(t, e.Status().Following)
	assert.Equal(t, "version=v2", e.Decide(nil).Tag.String())

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, e.Follow(ctx, rule.NewMemoryStore()), context.Canceled)
}

func TestNotify(t *testing.T) {
	var got []string
	e, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)), rule.WithNotify(func(s rule.Status) {
		got = append(got, fmt.Sprint(s.Revision, s.ErrRevision))
	}))
	require.NoError(t, err)
	s := &scripted{steps: make(chan event, 2)}
	s.steps <- event{doc: rule.Document{Data: []byte("{}"), Revision: 1}}
	s.steps <- event{doc: rule.Document{Data: []byte("{"), Revision: 2}}
	close(s.steps)
	assert.ErrorIs(t, e.Follow(context.Background(), s), rule.ErrStoreEnded)
	assert.Equal(t, []string{"0 0", "1 0", "1 2"}, got)
}
