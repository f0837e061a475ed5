package rule_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

// chosen returns who of the users is gray.
func chosen(e *rule.Engine, users []string) map[string]bool {
	in := map[string]bool{}
	for _, u := range users {
		if !e.Decide(user(u)).Tag.IsZero() {
			in[u] = true
		}
	}
	return in
}

func uids(from, to int) []string {
	list := make([]string, 0, to-from)
	for i := from; i < to; i++ {
		list = append(list, strconv.Itoa(i))
	}
	return list
}

func TestR1_RulesChooseIndependently(t *testing.T) {
	e := engine(t, `{"rules":[{"id":"checkout","percent":10,"tag":"version=v2"},{"id":"search","percent":10,"tag":"version=v3"}]}`)
	users := uids(1_000_000, 1_200_000)
	one, two, both := 0, 0, 0
	for _, u := range users {
		x := e.Explain(user(u))
		require.Len(t, x.Rules, 2)
		a, b := x.Rules[0].Matched(), x.Rules[1].Matched()
		require.GreaterOrEqual(t, x.Rules[1].Bucket, 0, "also where the first rule has ended the evaluation")
		if a {
			one++
		}
		if b {
			two++
		}
		if a && b {
			both++
			assert.True(t, x.Rules[0].Applied)
			assert.False(t, x.Rules[1].Applied)
		}
	}
	share := func(n, of int) float64 { return 100 * float64(n) / float64(of) }
	assert.InDelta(t, 10, share(one, len(users)), 0.2)
	assert.InDelta(t, 10, share(two, len(users)), 0.2)
	assert.InDelta(t, 10, share(both, one), 1)
}

func TestR2_GrowingAddsOnly(t *testing.T) {
	users := uids(0, 50_000)
	at := func(percent string) map[string]bool {
		return chosen(engine(t, `{"rules":[{"id":"r","salt":"s","percent":`+percent+`,"tag":"version=v2"}]}`), users)
	}
	first := at("10")
	before := first
	for _, percent := range []string{"20", "50"} {
		now := at(percent)
		assert.Greater(t, len(now), len(before))
		for u := range before {
			require.True(t, now[u], "%s left at %s %%", u, percent)
		}
		before = now
	}
	assert.Equal(t, first, at("10"))
	assert.Equal(t, first, chosen(engine(t, `{"rules":[
		{"id":"before","match":[{"attr":"channel","op":"exists"}],"tag":"version=v9"},
		{"id":"renamed","name":"New name","salt":"s","percent":10,"tag":"version=v2"}]}`), users), "a new id and another place change nothing")
}

func TestR3_PercentagesAtTheEnds(t *testing.T) {
	users := uids(0, 1_000_000)
	count := func(percent string, users []string) int {
		return len(chosen(engine(t, `{"rules":[{"id":"r","percent":`+percent+`,"tag":"version=v2"}]}`), users))
	}
	few := count("0.01", users)
	assert.True(t, few >= 60 && few <= 140, "%d", few)
	users = users[:fewer(len(users))]
	assert.Zero(t, count("0", users))
	assert.Equal(t, len(users), count("100", users))
	for _, percent := range []string{"-1", "101", "NaN", "null", "100.001", `"10"`, "1e3", "-0.001", "0.0001", "1e-4", "1e99999999999999999999", "1e-99999999999999999999", "Infinity"} {
		_, err := rule.Parse([]byte(`{"rules":[{"id":"r","percent":` + percent + `,"tag":"version=v2"}]}`))
		assert.Error(t, err, percent)
	}
}

func TestR4_WithoutKey(t *testing.T) {
	nobody := engine(t, `{"rules":[{"id":"r","percent":50,"tag":"version=v2"}]}`)
	d := nobody.Decide(&rule.Request{IP: from("203.0.113.7:1")})
	assert.True(t, d.Tag.IsZero())
	assert.Empty(t, d.Rules)
	assert.Equal(t, 1, d.NoKey)
	assert.Empty(t, d.HashKeys())
	assert.EqualValues(t, 1, nobody.Status().NoKey)
	x := nobody.Explain(nil)
	assert.Equal(t, rule.VerdictNoKey, x.Rules[0].Verdict)
	assert.Equal(t, -1, x.Rules[0].Bucket)
	assert.EqualValues(t, 1, nobody.Status().NoKey, "to explain counts nothing")
	assert.Equal(t, 1, nobody.Decide(user("")).NoKey, "an empty value is no key")

	all := engine(t, `{"rules":[{"id":"r","percent":100,"tag":"version=v2"}]}`)
	d = all.Decide(nil)
	assert.Equal(t, "version=v2", d.Tag.String())
	assert.Zero(t, d.NoKey)

	zero := engine(t, `{"rules":[{"id":"r","percent":0,"tag":"version=v2"}]}`)
	assert.Zero(t, zero.Decide(nil).NoKey, "nobody is nobody, key or not")

	chain := engine(t, `{"rules":[{"id":"r","percent":32,"hashBy":["uid","ip"],"tag":"version=v2"}]}`)
	d = chain.Decide(&rule.Request{IP: from("203.0.113.7:1")}) // bucket 31788 under r
	assert.Equal(t, "version=v2", d.Tag.String())
	assert.Equal(t, []rule.HashKey{{Attr: "ip", Source: "ip", Value: "203.0.113.7"}}, d.HashKeys())

	filtered := engine(t, `{"rules":[{"id":"r","match":[{"attr":"channel","op":"equals","values":["app"]}],"percent":50,"tag":"version=v2"}]}`)
	assert.Zero(t, filtered.Decide(nil).NoKey, "who fails a condition lacks no key")
}

func TestR4_StickyGroup(t *testing.T) {
	e := engine(t, `{"rules":[{"id":"r","percent":50,"hashBy":["uid","group"],"salt":"checkout-v2","tag":"version=v2"}]}`)
	d := e.Decide(&rule.Request{Cookie: exactly(map[string]string{"gray_group": "10086"})}) // bucket 6842
	assert.Equal(t, "version=v2", d.Tag.String())
	group, ok := d.HashedBy("cookie:gray_group")
	assert.True(t, ok)
	assert.Equal(t, "10086", group)
	d = e.Decide(&rule.Request{Cookie: exactly(map[string]string{"gray_group": "user@example.com"})}) // 80906
	assert.True(t, d.Tag.IsZero())
	group, ok = d.HashedBy("cookie:gray_group")
	assert.True(t, ok, "the group counts where it leads to stable, too")
	assert.Equal(t, "user@example.com", group)
	d = e.Decide(user("10086"))
	_, ok = d.HashedBy("cookie:gray_group")
	assert.False(t, ok, "the uid comes first")
}

func TestR6_BadDocuments(t *testing.T) {
	store := rule.NewMemoryStore()
	var log logBuffer
	e, err := rule.NewEngine(nil, rule.WithLogger(log.logger()))
	require.NoError(t, err)
	follow(t, e, store)

	good := `{"rules":[{"id":"r","tag":"version=v2"}]}`
	rev := put(t, store, good, 0)
	inForce(t, e, rev)
	assert.Equal(t, "version=v2", e.Decide(nil).Tag.String())

	for _, bad := range []string{good[:len(good)-3], `{"rules":[{"id":"r","precent":5,"tag":"version=v3"}]}`} {
		refused := put(t, store, bad, current(t, store))
		require.Eventually(t, func() bool { return e.Status().ErrRevision == refused }, 5*time.Second, time.Millisecond)
		s := e.Status()
		assert.Error(t, s.Err)
		assert.NotEmpty(t, rule.Faults(s.Err))
		assert.Equal(t, rev, s.Revision)
		assert.Equal(t, "version=v2", e.Decide(nil).Tag.String(), "the last good set stays")
		assert.Equal(t, 1, log.count(fmt.Sprintf("revision=%d ", refused)), "one line for a revision")
	}
	_, err = rule.Parse([]byte(`{"rules":[{"id":"r","precent":5,"tag":"version=v3"}]}`))
	assert.Equal(t, []string{"rules[0].precent"}, paths(err))
	assert.ErrorContains(t, err, `"percent"`, "it says what was meant")

	again := put(t, store, `{"rules":[{"id":"r","tag":"version=v4"}]}`, current(t, store))
	inForce(t, e, again)
	assert.NoError(t, e.Status().Err)
	assert.Equal(t, "version=v4", e.Decide(nil).Tag.String())

	for text, want := range map[string]string{"": "version=v2", `"enabled":true,`: "version=v2", `"enabled":false,`: ""} {
		assert.Equal(t, want, engine(t, `{"rules":[{"id":"r",`+text+`"tag":"version=v2"}]}`).Decide(nil).Tag.String(), text)
	}
}

func TestR7_DeletedAndCreatedAgain(t *testing.T) {
	doc := `{"rules":[{"id":"r","tag":"version=v2"}]}`
	dir := t.TempDir()
	path := filepath.Join(dir, "rules.json")
	memory := rule.NewMemoryStore()
	for name, c := range map[string]struct {
		store  rule.Store
		delete func()
		write  func(data string)
		empty  func()
	}{
		"memory": {
			store: memory, delete: memory.Delete,
			write: func(data string) { put(t, memory, data, current(t, memory)) },
		},
		"file": {
			store:  rule.NewFileStore(path, rule.WithInterval(5*time.Millisecond), rule.WithDeletedAfter(100*time.Millisecond)),
			delete: func() { require.NoError(t, os.Remove(path)) },
			write:  func(data string) { require.NoError(t, os.WriteFile(path, []byte(data), 0o644)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.write(doc)
			e := started(t, nil)
			follow(t, e, c.store)
			gray := func() bool { return !e.Decide(nil).Tag.IsZero() }
			require.Eventually(t, gray, 5*time.Second, time.Millisecond)
			c.delete()
			require.Eventually(t, func() bool { return !gray() }, 5*time.Second, time.Millisecond)
			assert.Zero(t, e.Status().Revision)
			assert.NoError(t, e.Status().Err)
			c.write(doc)
			require.Eventually(t, gray, 5*time.Second, time.Millisecond)
			c.write("")
			require.Eventually(t, func() bool { return e.Status().Err != nil }, 5*time.Second, time.Millisecond)
			assert.True(t, gray(), "an empty document is no deletion")
		})
	}
}

func TestR9_EveryDecisionWhollyOfOneSet(t *testing.T) {
	// Each set says the same in every pair; a mixture would show.
	sets := make([]*rule.Set, 2)
	for i := range sets {
		v := fmt.Sprintf("v%d", i)
		sets[i] = &rule.Set{
			Rules: []rule.Rule{
				{ID: "a-" + v, Services: []string{"order"}, Tag: "version=" + v},
				{ID: "b-" + v, Services: []string{"inventory"}, Tag: "version=" + v},
				{ID: "c-" + v, Priority: -1, Tag: "lane=" + v},
			},
		}
	}
	e := started(t, sets[0])
	stop := make(chan struct{})
	var flips sync.WaitGroup
	flips.Add(1)
	go func() {
		defer flips.Done()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				assert.NoError(t, e.Load(sets[i%2]))
			}
		}
	}()
	var readers sync.WaitGroup
	for range 8 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for range 20_000 {
				d := e.Decide(nil)
				v := d.Tag.Get("lane")
				want := "lane=" + v + ";version.inventory=" + v + ";version.order=" + v
				if d.Tag.String() != want || strings.Join(d.Rules, " ") != "a-"+v+" b-"+v+" c-"+v {
					t.Errorf("mixed: %s by %v", d.Tag, d.Rules)
					return
				}
			}
		}()
	}
	readers.Wait()
	close(stop)
	flips.Wait()
}

func TestR11_MappedAddresses(t *testing.T) {
	e := engine(t, `{"rules":[{"id":"office","match":[{"attr":"ip","op":"cidr","values":["10.0.0.0/8"]}],"tag":"version=v2"}]}`)
	d := e.Decide(&rule.Request{IP: from("[::ffff:10.1.2.3]:5555")})
	assert.Equal(t, []string{"office"}, d.Rules)
	assert.Empty(t, e.Decide(&rule.Request{IP: from("[::ffff:11.1.2.3]:5555")}).Rules)

	// The same where an address stands in a header, where a range is written in
	// v6, and where an address is compared as text.
	for _, c := range []string{
		`{"attr":"header:X-User-ID","op":"cidr","values":["10.0.0.0/8"]}`,
		`{"attr":"header:X-User-ID","op":"cidr","values":["::ffff:10.0.0.0/104"]}`,
	} {
		e := engine(t, `{"rules":[{"id":"r","match":[`+c+`],"tag":"version=v2"}]}`)
		for _, value := range []string{"[::ffff:10.1.2.3]:5555", "::ffff:10.1.2.3", "10.1.2.3", "10.1.2.3:80"} {
			assert.NotEmpty(t, e.Decide(user(value)).Rules, "%s %s", c, value)
		}
		for _, value := range []string{"11.1.2.3", "10.1.2", "localhost", ""} {
			assert.Empty(t, e.Decide(user(value)).Rules, "%s %s", c, value)
		}
	}
	e = engine(t, `{"rules":[{"id":"r","match":[{"attr":"ip","op":"not_in","values":["::ffff:10.1.2.3","2001:DB8:0::1"]}],"tag":"version=v2"}]}`)
	assert.Empty(t, e.Decide(&rule.Request{IP: from("10.1.2.3:1")}).Rules)
	assert.Empty(t, e.Decide(&rule.Request{IP: from("[2001:db8::1%eth0]:1")}).Rules)
	assert.NotEmpty(t, e.Decide(&rule.Request{IP: from("10.1.2.4:1")}).Rules)
}

func TestR12_WhitelistBeforePercentAndTies(t *testing.T) {
	rules := []string{
		`{"id":"zero","percent":0,"tag":"version=v2"}`,
		`{"id":"whitelist","match":[{"attr":"uid","op":"in","values":["7","8"]}],"tag":"version=v2"}`,
		`{"id":"b","match":[{"attr":"uid","op":"exists"}],"services":["order"],"tag":"version=v5"}`,
		`{"id":"a","services":["order"],"tag":"version=v6"}`,
		`{"id":"c","percent":100,"services":["order","cart"],"tag":"version=v7"}`,
		`{"id":"half","percent":50,"tag":"version=v3"}`,
		`{"id":"sorted-last","percent":100,"tag":"version=v4"}`,
	}
	var tags, order string
	for i := range 100 {
		rand.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		e := engine(t, `{"rules":[`+strings.Join(rules, ",")+`]}`)
		d := e.Decide(user("7"))
		require.Equal(t, "version=v2;version.order=v6", d.Tag.String())
		require.Equal(t, []string{"a", "b", "whitelist"}, d.Rules)
		var all, ids []string
		for _, u := range uids(0, 200) {
			all = append(all, e.Decide(user(u)).Tag.String())
		}
		for _, r := range e.Explain(nil).Rules {
			ids = append(ids, r.ID)
		}
		if i == 0 {
			tags, order = strings.Join(all, " "), strings.Join(ids, " ")
			assert.Equal(t, "a b whitelist c half sorted-last zero", order)
		}
		require.Equal(t, tags, strings.Join(all, " "))
		require.Equal(t, order, strings.Join(ids, " "))
	}
}

func TestR13_OneSaltOneChoice(t *testing.T) {
	users := uids(0, 20_000)
	differ := func(e *rule.Engine) (n int) {
		for _, u := range users {
			tag := e.Decide(user(u)).Tag
			if (tag.Route("version", "order") == "") != (tag.Route("version", "inventory") == "") {
				n++
			}
		}
		return n
	}
	doc := func(more string) string {
		return `{"rules":[
			{"id":"order-10","services":["order"],"percent":10` + more + `,"tag":"version=v2"},
			{"id":"inventory-10","services":["inventory"],"percent":10` + more + `,"tag":"version=v2"}],
			"plans":{"v2":{"rules":["order-10","inventory-10"]}}}`
	}
	together := doc(`,"salt":"v2"`)
	assert.Zero(t, differ(engine(t, together)), "one salt: gray on both or on none")
	assert.Empty(t, rule.Lint(parse(t, together), nil))

	apart := doc("")
	assert.NotZero(t, differ(engine(t, apart)))
	findings := rule.Lint(parse(t, apart), nil)
	require.Len(t, findings, 1)
	assert.Equal(t, rule.CodeDifferentUsers, findings[0].Code)
	assert.ElementsMatch(t, []string{"order-10", "inventory-10"}, findings[0].Rules)
}

// put writes a document and returns its revision.
func put(t testing.TB, s rule.Store, data string, ifRevision uint64) uint64 {
	t.Helper()
	rev, err := s.Put(context.Background(), rule.Document{Data: []byte(data)}, ifRevision)
	require.NoError(t, err)
	return rev
}

// current returns the revision of the document of a store.
func current(t testing.TB, s rule.Store) uint64 {
	t.Helper()
	for d, err := range s.Watch(context.Background()) {
		require.NoError(t, err)
		return d.Revision
	}
	return 0
}

// follow follows a store for the rest of the test.
func follow(t testing.TB, e *rule.Engine, s rule.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Follow(ctx, s) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
}

func inForce(t testing.TB, e *rule.Engine, revision uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return e.Status().Revision == revision }, 5*time.Second, time.Millisecond)
}

var _ json.Marshaler = rule.Set{}
