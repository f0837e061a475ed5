package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

const everybodyGray = `{"rules": [{"id": "all", "tag": "version=v2"}], "carry": ["uid"]}`

func withPolicy(p subset.Policy) gateway.Option { return gateway.WithClient(grayhttp.WithPolicy(p)) }

// visit sends a request of a user from outside, who has no name where uid is "".
func visit(t testing.TB, url, uid string, header ...string) *http.Response {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait}
	req, err := http.NewRequest(http.MethodGet, url+"/", nil)
	require.NoError(t, err)
	if uid != "" {
		req.Header.Set("X-User-ID", uid)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp
}

// asked is what rules see of visit.
func asked(uid string) *rule.Request {
	return &rule.Request{IP: netip.MustParseAddr("127.0.0.1"), Header: func(name string) (string, bool) {
		return uid, uid != "" && http.CanonicalHeaderKey(name) == "X-User-Id"
	}}
}

// bothOrders runs the service order as stable and as v2.
func bothOrders(t testing.TB) (reg *memory.Registry, stable, v2 *node) {
	reg = memory.New()
	stable, v2 = serveHTTP(t, instance("order", ""), nil), serveHTTP(t, instance("order", "v2"), nil)
	stable.register(t, reg)
	v2.register(t, reg)
	return reg, stable, v2
}

func noKeyOrAnother(t *testing.T, r row) {
	reg, _, _ := bothOrders(t)
	s := newSeen(t)
	const half = `{"rules": [{"id": "half", "percent": 50, "salt": "%s", "hashBy": ["uid", "ip"], "tag": "version=v2"}]}`
	// A user who is gray by his number, at an address that is not.
	salt, uid := "", ""
	for i := 0; rule.Bucket(salt, "127.0.0.1") < 50_000; i++ {
		salt = fmt.Sprint("salt", i)
	}
	for i := 0; uid == "" || rule.Bucket(salt, uid) >= 50_000; i++ {
		uid = fmt.Sprint(i)
	}
	e := engine(t, s, fmt.Sprintf(half, salt))
	gw := entrance(t, e, reg, s)
	assert.Equal(t, "v2", visit(t, gw.url, uid).Header.Get("X-Version"))
	assert.Equal(t, "stable", visit(t, gw.url, "").Header.Get("X-Version"), "the same user, before he logged in")
	r.names(t, "Engine.Explain", "HashBy", "HashSource")
	with, without := e.Explain(asked(uid)).Rules[0], e.Explain(asked("")).Rules[0]
	assert.Equal(t, []string{"uid", "header:X-User-Id", "ip"}, []string{with.HashBy, with.HashSource, without.HashBy})
	assert.NotEqual(t, with.Bucket, without.Bucket)

	e = engine(t, s, `{"rules": [{"id": "half", "percent": 50, "tag": "version=v2"}]}`)
	gw = entrance(t, e, reg, s)
	visit(t, gw.url, "")
	r.names(t, "Status.NoKey")
	assert.EqualValues(t, 1, e.Status().NoKey)
	r.says(t, string(e.Explain(asked("")).Rules[0].Verdict), "no_key")
}

func differentUsers(t *testing.T, r row) {
	reg := memory.New()
	inventory := [2]*node{serveHTTP(t, instance("inventory", ""), nil), serveHTTP(t, instance("inventory", "v2"), nil)}
	for i, version := range []string{"", "v2"} {
		inventory[i].register(t, reg)
		c := client(t, reg, newSeen(t))
		serveHTTP(t, instance("order", version), func(_ http.ResponseWriter, req *http.Request) {
			_, err := get(req.Context(), c, "http://inventory/")
			assert.NoError(t, err)
		}).register(t, reg)
	}
	s := newSeen(t)
	e := engine(t, s, `{"rules": [
		{"id": "a", "percent": 50, "services": ["order"], "tag": "version=v2"},
		{"id": "b", "percent": 50, "services": ["inventory"], "tag": "version=v2"}]}`)
	// A user who is gray for one of them.
	uid := ""
	for i := 0; uid == "" || rule.Bucket("a", uid) >= 50_000 || rule.Bucket("b", uid) < 50_000; i++ {
		uid = fmt.Sprint(i)
	}
	assert.Equal(t, "v2", visit(t, entrance(t, e, reg, s).url, uid).Header.Get("X-Version"))
	assert.EqualValues(t, 1, inventory[0].count(t, "graylane.server.requests", "outcome", "stable"))

	set, err := rule.Parse([]byte(`{"rules": [
		{"id": "a", "percent": 50, "services": ["order"], "tag": "version=v2"},
		{"id": "b", "percent": 50, "services": ["inventory"], "tag": "version=v2"}]}`))
	require.NoError(t, err)
	findings := rule.Lint(set, nil)
	require.Len(t, findings, 1)
	r.names(t, "Lint", "Engine.Explain", "Bucket")
	r.says(t, findings[0].Code, "different_users")
	x := e.Explain(asked(uid)).Rules
	assert.NotEqual(t, x[0].Bucket, x[1].Bucket)
}

// cutStore is a store that cannot be read any more when cut ends.
type cutStore struct {
	rule.Store
	cut context.Context
}

func (s *cutStore) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		upstream, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.cut, cancel)()
		for d, err := range s.Store.Watch(upstream) {
			if !yield(d, err) {
				return
			}
		}
		if ctx.Err() == nil && yield(rule.Document{}, errors.New("connection refused")) {
			<-ctx.Done()
		}
	}
}

func differentRules(t *testing.T, r row) {
	reg, _, _ := bothOrders(t)
	store := rule.NewMemoryStore()
	first := put(t, store, `{}`, 0)
	cut, begin := context.WithCancel(context.Background())
	defer begin()

	s, behind := newSeen(t), newSeen(t)
	e, b := engine(t, s, `{}`), engine(t, behind, `{}`)
	follow(t, e, store)
	follow(t, b, &cutStore{store, cut})
	inForce(t, e, first)
	inForce(t, b, first)
	begin()
	require.Eventually(t, func() bool { return b.Status().Err != nil }, wait, time.Millisecond)
	second := put(t, store, everybodyGray, first)
	inForce(t, e, second)

	assert.Equal(t, "v2", visit(t, entrance(t, e, reg, s).url, "7").Header.Get("X-Version"))
	assert.Equal(t, "stable", visit(t, entrance(t, b, reg, behind).url, "7").Header.Get("X-Version"))
	r.counts(t, behind, "graylane.rules.failing", "cause", "store")
	r.names(t, "graylane.rules.revision")
	assert.EqualValues(t, second, s.count(t, "graylane.rules.revision"))
	assert.EqualValues(t, first, behind.count(t, "graylane.rules.revision"))

	put(t, store, `{"rules": 5}`, second)
	require.Eventually(t, func() bool { return s.count(t, "graylane.rules.failing", "cause", "refused") == 1 }, wait, time.Millisecond)
	r.counts(t, s, "graylane.rules.failing", "cause", "refused")
}

func versionComesAndGoes(t *testing.T, r row) {
	reg, _, v2 := bothOrders(t)
	s := newSeen(t)
	gw := entrance(t, engine(t, s, everybodyGray), reg, s)
	var versions []string
	ask := func() { versions = append(versions, visit(t, gw.url, "7").Header.Get("X-Version")) }
	ask()
	v2.stop()
	ask()
	r.names(t, "X-Version of the answers stays the same", "Policy.MinReady")
	assert.Equal(t, []string{"v2", "v2"}, versions)
	r.counts(t, s, "graylane.route.decisions", "wanted", "v2", "outcome", "matched")
	r.counts(t, s, "graylane.route.decisions", "wanted", "v2", "outcome", "fallback_stable")
}

func rulesNotInForce(t *testing.T, r row) {
	reg, _, v2 := bothOrders(t)
	s := newSeen(t)
	store := rule.NewMemoryStore()
	first := put(t, store, `{}`, 0)
	e := engine(t, s, `{}`)
	follow(t, e, store)
	inForce(t, e, first)
	put(t, store, `{"rules": [{"id": "all", "tag": "version=v2", "precent": 5}]}`, first)
	require.Eventually(t, func() bool { return e.Status().ErrRevision > 0 }, wait, time.Millisecond)

	visit(t, entrance(t, e, reg, s).url, "7")
	assert.Zero(t, v2.count(t, "graylane.server.requests"))
	r.counts(t, s, "graylane.rules.failing", "cause", "refused")
	r.names(t, "an older graylane.rules.revision", "the path of each fault")
	assert.EqualValues(t, first, s.count(t, "graylane.rules.revision"))
	assert.Contains(t, r.logs(t, s, "document refused, the last good rules stay")["error"], "rules[0].precent")
}

func rulesDoNotMatch(t *testing.T, r row) {
	reg, _, v2 := bothOrders(t)
	s := newSeen(t)
	e := engine(t, s, `{"rules": [
		{"id": "off", "priority": 5, "enabled": false, "tag": "version=v2"},
		{"id": "over", "priority": 4, "until": "2020-01-01T00:00:00Z", "tag": "version=v2"},
		{"id": "testers", "priority": 3, "match": [{"attr": "uid", "op": "suffix", "values": ["99"]}], "tag": "version=v2"},
		{"id": "few", "priority": 2, "percent": 0, "tag": "version=v2"},
		{"id": "session", "priority": 1, "percent": 50, "hashBy": ["session"], "tag": "version=v2"}]}`)
	visit(t, entrance(t, e, reg, s).url, "7")
	assert.Zero(t, v2.count(t, "graylane.server.requests"))
	x := e.Explain(asked("7"))
	assert.True(t, x.Decision.Tag.IsZero())
	r.names(t, "Engine.Explain")
	var verdicts []string
	for _, e := range x.Rules {
		verdicts = append(verdicts, string(e.Verdict))
		r.names(t, `"`+string(e.Verdict)+`"`)
	}
	assert.Equal(t, []string{"disabled", "window", "condition", "percent", "no_key"}, verdicts)
	assert.Equal(t, []any{0, "uid", "7"}, []any{x.Rules[2].Condition, x.Rules[2].Attr, x.Rules[2].Value})
}

func tagFromOutside(t *testing.T, r row) {
	reg, stable, v2 := bothOrders(t)
	s := newSeen(t)
	gw := entrance(t, engine(t, s, `{}`), reg, s)
	visit(t, gw.url, "", graytag.Header, "version=v2;uid=alice")
	r.counts(t, s, "graylane.edge.forged", "carrier", "header")
	assert.EqualValues(t, 1, stable.count(t, "graylane.server.requests", "wanted", "stable"))
	assert.Zero(t, v2.count(t, "graylane.server.requests"))
	visit(t, v2.url, "", graytag.Header, "version=v2;uid=alice") // a way in around the entrance
	assert.EqualValues(t, 1, v2.count(t, "graylane.server.requests", "wanted", "v2"))
	assert.EqualValues(t, 1, s.count(t, "graylane.edge.forged"), "which does not see it")
}

// uidOf returns the hash of the uid on the one line that n has written about user.
func uidOf(t testing.TB, n *node, user string) string {
	t.Helper()
	all := n.log.with(t, "served")
	i := slices.IndexFunc(all, func(l map[string]any) bool { return l["user"] == user })
	require.GreaterOrEqual(t, i, 0, "%s: %v", user, all)
	tag, _ := all[i]["gray.tag"].(map[string]any)
	return fmt.Sprint(tag["uid"])
}

func keptContext(t *testing.T, r row) {
	reg := memory.New()
	inventory := serveHTTP(t, instance("inventory", ""), nil)
	inventory.register(t, reg)
	c := client(t, reg, newSeen(t))
	var kept context.Context
	order := serveHTTP(t, instance("order", ""), func(_ http.ResponseWriter, req *http.Request) {
		if kept == nil {
			kept = context.WithoutCancel(req.Context()) // a batch that outlives its first request
		}
		out, err := http.NewRequestWithContext(kept, http.MethodGet, "http://inventory/", nil)
		assert.NoError(t, err)
		out.Header.Set("X-User-ID", req.Header.Get("X-User-ID"))
		_, _, err = do(c, out)
		assert.NoError(t, err)
	})
	order.register(t, reg)
	asker := client(t, reg, newSeen(t))
	for _, user := range []string{"alice", "bob"} {
		req, err := http.NewRequestWithContext(as(user), http.MethodGet, "http://order/", nil)
		require.NoError(t, err)
		req.Header.Set("X-User-ID", user)
		_, _, err = do(asker, req)
		require.NoError(t, err)
	}
	r.names(t, "grayslog.WithTag", "in gray.tag the uid of one user and is about another", "in the trace of the request whose context was kept")
	assert.NotEqual(t, uidOf(t, order, "alice"), uidOf(t, order, "bob"))
	assert.Equal(t, uidOf(t, order, "alice"), uidOf(t, inventory, "bob"))

	require.Eventually(t, func() bool { return len(order.spans.Ended()) == 2 && len(inventory.spans.Ended()) == 2 }, wait, time.Millisecond)
	orders, inventories := order.spans.Ended(), inventory.spans.Ended()
	assert.NotEqual(t, orders[0].SpanContext().TraceID(), orders[1].SpanContext().TraceID())
	assert.NotEqual(t, inventories[0].SpanContext().SpanID(), inventories[1].SpanContext().SpanID())
	assert.Equal(t, inventories[0].SpanContext().TraceID(), inventories[1].SpanContext().TraceID())
}

func keptHeader(t *testing.T, r row) {
	reg := memory.New()
	inventory := serveHTTP(t, instance("inventory", "v2"), nil)
	inventory.register(t, reg)
	caller := newSeen(t)
	c := client(t, reg, caller)
	var kept http.Header
	order := serveHTTP(t, instance("order", ""), func(_ http.ResponseWriter, req *http.Request) { kept = req.Header.Clone() })
	order.register(t, reg)
	req, err := http.NewRequestWithContext(as("alice"), http.MethodGet, "http://order/", nil)
	require.NoError(t, err)
	req.Header.Set("X-User-ID", "alice")
	_, _, err = do(client(t, reg, newSeen(t)), req)
	require.NoError(t, err)

	// A job, which belongs to no request, is about bob.
	job, err := http.NewRequest(http.MethodGet, "http://inventory/", nil)
	require.NoError(t, err)
	job.Header = kept
	job.Header.Set("X-User-ID", "bob")
	_, _, err = do(c, job)
	require.NoError(t, err)
	r.countsNot(t, caller, "graylane.propagation.orphans")
	r.counts(t, inventory.seen, "graylane.server.requests", "wanted", "v2")
	r.names(t, "the uid of another user")
	assert.Equal(t, uidOf(t, order, "alice"), uidOf(t, inventory, "bob"))
}
