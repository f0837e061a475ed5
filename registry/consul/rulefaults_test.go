package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

// A connection that swallows everything: the change is seen within 6 s, by a
// follower that was waiting for it and has other connections of that kind idle,
// and a Put through them goes on, too.
func TestRuleStore_BlackHole(t *testing.T) {
	agent := consultest.Start(t)
	direct := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, direct, setOf("v1"), 0)
	proxy := newRelay(t, agent.Address())
	logs := &logBuffer{}
	s := ruleStore(t, open(t, proxy.config(), consul.WithLogger(slog.New(slog.NewTextHandler(logs, nil)))), rulesKey)
	w := watchRules(t, s)
	w.untilRevision(at)
	// One connection waits for a change and one is idle, once the query for the
	// change has gone out before the history was read.
	require.Eventually(t, func() bool {
		_, err := s.History(t.Context())
		return assert.NoError(t, err) && proxy.open() >= 2
	}, patience, time.Millisecond)

	require.GreaterOrEqual(t, proxy.swallow(), 2)
	at = put(t, direct, setOf("v2"), at)
	written := time.Now()
	seen := w.until(0, func(e docEvent) bool { return e.d.Revision == at })
	took := seen.at.Sub(written)
	t.Logf("seen %v after the write", took)
	assert.Less(t, took, 6*time.Second)
	assert.Empty(t, w.errs(), "it heals by itself")
	assert.Contains(t, logs.String(), "no answer in time")

	require.GreaterOrEqual(t, proxy.swallow(), 1)
	at = put(t, s, setOf("v3"), at)
	w.untilRevision(at)
	assert.LessOrEqual(t, logs.lines(), 4, logs.String())
}

// While the agent is away the last good rules serve; it comes back with what it had.
func TestRuleStore_AgentRestarts(t *testing.T) {
	agent := consultest.Start(t)
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, s, setOf("v1"), 0)
	w := watchRules(t, s)
	w.untilRevision(at)
	e, err := rule.NewEngine(nil)
	require.NoError(t, err)
	follow(t, e, s)
	require.Eventually(t, func() bool { return e.Status().Revision == at }, patience, time.Millisecond)

	agent.Kill()
	err = w.until(0, func(e docEvent) bool { return e.err != nil }).err
	assert.ErrorContains(t, err, rulesKey)
	assert.ErrorContains(t, err, agent.Address())
	require.Eventually(t, func() bool { return e.Status().Err != nil }, patience, time.Millisecond)
	assert.Equal(t, "v1", e.Decide(nil).Tag.Get("version"))
	_, err = s.Put(t.Context(), rule.Document{Data: []byte("{}")}, at)
	assert.Error(t, err)
	_, err = s.History(t.Context())
	assert.Error(t, err)

	n := len(w.all())
	agent.Restart()
	w.until(n, func(e docEvent) bool { return e.d.Revision == at })
	require.Eventually(t, func() bool { return e.Status().Err == nil }, patience, time.Millisecond)
	assert.Equal(t, "v1", e.Decide(nil).Tag.Get("version"))
	at = put(t, s, setOf("v2"), at)
	w.untilRevision(at)
	require.Eventually(t, func() bool { return e.Decide(nil).Tag.Get("version") == "v2" }, patience, time.Millisecond)
}

// A process that starts without Consul learns of the rules when it is there.
func TestRuleStore_StartsWithoutConsul(t *testing.T) {
	agent := consultest.Start(t)
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, s, setOf("v1"), 0)
	agent.Kill()
	e, err := rule.NewEngine(nil)
	require.NoError(t, err)
	follow(t, e, s)
	require.Eventually(t, func() bool { return e.Status().Err != nil }, patience, time.Millisecond)
	assert.True(t, e.Decide(nil).Tag.IsZero())
	agent.Restart()
	require.Eventually(t, func() bool { return e.Status().Revision == at && e.Status().Err == nil }, patience, time.Millisecond)
}

// An agent that has lost its data has no rules, and says so; its indexes begin
// anew, and the same index names another document.
func TestRuleStore_DataLost(t *testing.T) {
	agent := consultest.Start(t)
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, s, setOf("v1"), 0)
	for range 30 {
		at = put(t, s, setOf("v1"), at)
	}
	w := watchRules(t, s)
	w.untilRevision(at)
	agent.Reset()
	lost := w.until(0, func(e docEvent) bool {
		return e.err != nil && strings.Contains(e.err.Error(), "went back from revision")
	})
	assert.ErrorContains(t, lost.err, fmt.Sprint(at))
	w.until(0, func(e docEvent) bool { return e.err == nil && e.d.Revision == 0 })
	again := put(t, s, setOf("v2"), 0)
	assert.Less(t, again, at)
	w.untilData(setOf("v2"))
}

// A snapshot that an operator restores is followed, and the older document does
// not come silently.
func TestRuleStore_SnapshotRestored(t *testing.T) {
	agent := consultest.Start(t)
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	w := watchRules(t, s)
	first := put(t, s, setOf("v1"), 0)
	saved, _, err := agent.Client().Snapshot().Save(nil)
	require.NoError(t, err)
	defer saved.Close()
	second := put(t, s, setOf("v2"), first)
	w.untilRevision(second)
	n := len(w.all())

	require.NoError(t, agent.Client().Snapshot().Restore(nil, saved))
	w.until(n, func(e docEvent) bool { return e.err == nil && e.d.Revision == first })
	var told bool
	for _, e := range w.all()[n:] {
		told = told || e.err != nil && strings.Contains(e.err.Error(), fmt.Sprintf("from revision %d to %d", second, first))
		if e.err == nil {
			assert.Equal(t, first, e.d.Revision)
			assert.True(t, told, "the error comes first")
		}
	}
	third := put(t, s, setOf("v3"), first)
	assert.Greater(t, third, second)
	assert.Equal(t, "ann", w.untilRevision(third).Author)
	assert.Equal(t, []string{"v3 ann", "v1 ann"}, historyOf(t, s))
}

// The leader of three servers is killed while two writers add lines through the
// others: what Put said is what is there, and followers go on.
func TestRuleStore_LeaderKilled(t *testing.T) {
	cluster := consultest.StartCluster(t, 3)
	agents := cluster.Followers()
	require.Len(t, agents, 2)
	first := ruleStore(t, open(t, agents[0].Config()), rulesKey)
	put(t, first, "", 0)
	w := watchRules(t, first)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var total atomic.Int64
	var mu sync.Mutex
	written, unknown := map[string]bool{}, map[string]bool{}
	var wg sync.WaitGroup
	for i, a := range agents {
		s := ruleStore(t, open(t, a.Config()), rulesKey)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				line := fmt.Sprintf("%d-%d", i, n)
				var doc rule.Document
				for d, err := range s.Watch(ctx) {
					if err == nil {
						doc = d
						break
					}
				}
				if ctx.Err() != nil {
					return
				}
				_, err := s.Put(context.Background(), rule.Document{Data: append(bytes.Clone(doc.Data), line+"\n"...)}, doc.Revision)
				mu.Lock()
				switch {
				case err == nil:
					written[line] = true
					total.Add(1)
				case strings.Contains(err.Error(), "not known"):
					unknown[line] = true
				}
				mu.Unlock()
			}
		})
	}
	reached := func(n int64) {
		t.Helper()
		require.Eventually(t, func() bool { return total.Load() >= n }, 2*patience, time.Millisecond)
	}
	reached(20)
	cluster.KillLeader()
	reached(total.Load() + 20)
	cancel()
	wg.Wait()

	p, _, err := agents[0].Client().KV().Get(rulesKey, &api.QueryOptions{RequireConsistent: true})
	require.NoError(t, err)
	lines := map[string]int{}
	for _, l := range strings.Fields(string(p.Value)) {
		lines[l]++
		assert.True(t, written[l] || unknown[l], "line %s is there, and Put said that it is not", l)
		assert.Equal(t, 1, lines[l], l)
	}
	for l := range written {
		assert.Equal(t, 1, lines[l], "line %s is lost", l)
	}
	w.untilData(string(p.Value))
	t.Logf("%d lines, %d of unknown fate, %d errors to the follower, 0 lost", len(lines), len(unknown), len(w.errs()))
	for i, docs := 1, w.docs(); i < len(docs); i++ {
		assert.GreaterOrEqual(t, docs[i].Revision, docs[i-1].Revision, "never back")
	}
}

// lossyProxy passes requests on to an agent; what becomes of an answer to a
// transaction, lose decides.
func lossyProxy(t *testing.T, agent *consultest.Agent, lose func(w http.ResponseWriter)) *api.Config {
	t.Helper()
	target, err := url.Parse("http://" + agent.Address())
	require.NoError(t, err)
	through := httputil.NewSingleHostReverseProxy(target)
	own := http.DefaultTransport.(*http.Transport).Clone()
	through.Transport = own
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/txn" {
			through.ServeHTTP(w, r)
			return
		}
		through.ServeHTTP(httptest.NewRecorder(), r)
		lose(w)
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
		own.CloseIdleConnections()
	})
	return &api.Config{Address: srv.Listener.Addr().String(), Transport: api.DefaultConfig().Transport}
}

// The answer to a transaction is lost: Put looks, and knows.
func TestRuleStore_AnswerLost(t *testing.T) {
	agent := consultest.Start(t)
	for name, lose := range map[string]func(http.ResponseWriter){
		"connection": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"leader": func(w http.ResponseWriter) {
			http.Error(w, "rpc error making call: EOF", http.StatusInternalServerError)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := ruleStore(t, open(t, lossyProxy(t, agent, lose)), "lost/"+name)
			at := put(t, s, setOf("v1"), 0)
			at = put(t, s, setOf("v2"), at)
			assert.Equal(t, at, watchRules(t, s).untilData(setOf("v2")).Revision)

			// Somebody else was first, which the lost answer said.
			_, err := agent.Client().KV().Put(&api.KVPair{Key: "lost/" + name, Value: []byte("{}")}, nil)
			require.NoError(t, err)
			_, err = s.Put(t.Context(), rule.Document{Data: []byte("{}")}, at)
			require.ErrorIs(t, err, rule.ErrConflict)
		})
	}
}

// A policy for reading and one for writing, as the documentation has them; a token
// that may not read is an error, never a deleted document.
func TestRuleStore_ACL(t *testing.T) {
	_, token := startWithACL(t)
	admin := ruleStore(t, open(t, token("writer", `key_prefix "graylane/rules" { policy = "write" }`)), rulesKey)
	at := put(t, admin, setOf("v1"), 0)
	at = put(t, admin, setOf("v2"), at)
	assert.Equal(t, []string{"v2 ann", "v1 ann"}, historyOf(t, admin))

	reader := ruleStore(t, open(t, token("reader", `key_prefix "graylane/rules" { policy = "read" }`)), rulesKey)
	assert.Equal(t, "ann", watchRules(t, reader).untilRevision(at).Author)
	_, err := reader.Put(t.Context(), rule.Document{Data: []byte("{}")}, at)
	require.ErrorContains(t, err, "Permission denied")
	assert.False(t, errors.Is(err, rule.ErrConflict))

	// The key alone: the rules, without their author.
	logs := &logBuffer{}
	exact := ruleStore(t, open(t, token("exact", `key "graylane/rules" { policy = "read" }`),
		consul.WithLogger(slog.New(slog.NewTextHandler(logs, nil)))), rulesKey)
	d := watchRules(t, exact).untilRevision(at)
	assert.Equal(t, setOf("v2"), string(d.Data))
	assert.Empty(t, d.Author)
	assert.Contains(t, logs.String(), "cannot read who wrote the rules")

	none := ruleStore(t, open(t, token("none", `key "other" { policy = "read" }`), consul.WithRetry(5*time.Millisecond, 20*time.Millisecond)), rulesKey)
	w := watchRules(t, none)
	require.Eventually(t, func() bool { return len(w.errs()) > 3 }, patience, time.Millisecond)
	assert.Empty(t, w.docs())
	var status api.StatusError
	require.ErrorAs(t, w.errs()[0], &status)
	assert.Equal(t, http.StatusForbidden, status.Code)
}
