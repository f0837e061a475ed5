package consul_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// TestSecure runs against one agent that wants client certificates and denies what
// no policy allows. The policies are those of the package's documentation.
func TestSecure(t *testing.T) {
	t.Parallel()
	agent := startSecure(t)
	for name, test := range map[string]func(*testing.T, secureAgent){
		"Registration":          aclRegistration,
		"Watch":                 aclWatch,
		"Rules":                 aclRules,
		"Elector":               aclElector,
		"RegistryLosesItsToken": aclRegistryLoses,
		"OwnTransport":          secureOwnTransport,
		"Refused":               secureRefused,
		"OverTime":              secureOverTime,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, agent)
		})
	}
}

// secureOverTime is what takes some seconds each, all at once.
func secureOverTime(t *testing.T, agent secureAgent) {
	finish := []func(){secureBlackHole(t, agent), aclLeaderLoses(t, agent), aclRulesLose(t, agent)}
	for _, f := range slices.Backward(finish) {
		f()
	}
}

const registrarOfCart = `service "cart" { policy = "write" }`

// The right to write one service registers, keeps alive, brings back and takes out
// its instances; less does not.
func aclRegistration(t *testing.T, agent secureAgent) {
	w := watch(t, agent.open(t, everything), "cart")
	r := agent.open(t, registrarOfCart, consul.WithTTL(time.Second))
	a, err := r.Register(t.Context(), instanceOf("cart", "cart-a"))
	require.NoError(t, err)
	resting := instanceOf("cart", "cart-b")
	resting.Status = registry.StatusMaintenance
	_, err = r.Register(t.Context(), resting)
	require.NoError(t, err)
	checked := agent.open(t, registrarOfCart, consul.WithTTL(time.Second), consul.WithHTTPCheck("/healthz", time.Hour))
	_, err = checked.Register(t.Context(), instanceOf("cart", "cart-c"))
	require.NoError(t, err)
	w.until(patience, func(set []registry.Instance) bool {
		return len(set) == 3 && set[1].Status == registry.StatusMaintenance
	})

	// A process that has died turns critical; those that live do not.
	require.NoError(t, agent.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: "cart-d", Name: "cart", Address: "127.0.0.1", Port: 8081,
		Check: &api.AgentServiceCheck{TTL: "2s", Status: api.HealthPassing},
	}))
	w.until(patience, func(set []registry.Instance) bool {
		return len(set) == 4 && set[3].Status == registry.StatusCritical
	})
	for _, set := range w.sets() {
		for _, i := range set {
			assert.False(t, i.Status == registry.StatusCritical && i.ID == "cart-a", "it is kept alive")
		}
	}
	require.NoError(t, a.Update(t.Context(), map[string]string{"version": "v2"}))
	w.until(patience, func(set []registry.Instance) bool { return set[0].Metadata["version"] == "v2" })
	for n, id := range []string{"cart-a", "cart-c"} {
		require.NoError(t, agent.Client().Agent().ServiceDeregister(id))
		w.until(patience, func(set []registry.Instance) bool { return len(set) == 3 })
		w.until(patience, func(set []registry.Instance) bool { return len(set) == 4 && set[2*n].ID == id })
	}
	require.NoError(t, a.Deregister(t.Context()))
	require.NoError(t, r.Close())
	require.NoError(t, checked.Close())
	w.untilIDs(patience, "cart-d")

	for _, less := range []string{`service "cart" { policy = "read" }`, `service "cart-2" { policy = "write" }`} {
		_, err := agent.open(t, less).Register(t.Context(), instanceOf("cart", "cart-e"))
		var status api.StatusError
		require.ErrorAs(t, err, &status, less)
		assert.Equal(t, http.StatusForbidden, status.Code)
		assert.ErrorContains(t, err, "service:write")
	}
	w.untilIDs(patience, "cart-d")
}

// A watch needs to read the service and the nodes of its instances: less is an
// error, never an empty service.
func aclWatch(t *testing.T, agent secureAgent) {
	_, err := agent.open(t, everything).Register(t.Context(), instanceOf("order", "order-a"))
	require.NoError(t, err)
	watch(t, agent.open(t, watchOrder), "order").untilIDs(patience, "order-a")
	for _, less := range []string{`service "order" { policy = "read" }`, `node_prefix "" { policy = "read" }`} {
		w := watch(t, agent.open(t, less), "order")
		require.Eventually(t, func() bool { return len(w.all()) > 0 }, patience, time.Millisecond)
		require.NotEmpty(t, w.errs(), less)
		assert.ErrorContains(t, w.errs()[0], "lacks service:read or node:read")
	}

	// Some of the nodes may be meant: the log says that there are others.
	_, err = agent.Client().Catalog().Register(&api.CatalogRegistration{
		Node: "elsewhere", Address: "127.0.0.1", Service: &api.AgentService{ID: "order-b", Service: "order", Port: 8080},
	}, nil)
	require.NoError(t, err)
	watch(t, agent.open(t, watchOrder), "order").untilIDs(patience, "order-a", "order-b")
	var logs logBuffer
	watch(t, agent.open(t, `service "order" { policy = "read" } node "solo" { policy = "read" }`, logTo(&logs)), "order").untilIDs(patience, "order-a")
	assert.Contains(t, logs.String(), "ACLs hide some instances")
	assert.Equal(t, 1, logs.lines(), "%v", &logs)

	w := watch(t, open(t, agent.Config()), "order")
	require.Eventually(t, func() bool { return len(w.all()) > 0 }, patience, time.Millisecond)
	require.NotEmpty(t, w.errs())
	assert.ErrorContains(t, w.errs()[0], "no token is set")
	assert.ErrorContains(t, w.errs()[0], "service:read")

	// Nor when that changes under it.
	const anonymous = "00000000-0000-0000-0000-000000000002"
	public := agent.grant(t, `service "public" { policy = "read" } node_prefix "" { policy = "read" }`)
	_, _, err = agent.Client().ACL().TokenUpdate(&api.ACLToken{AccessorID: anonymous, Policies: public.token.Policies}, nil)
	require.NoError(t, err)
	g, err := agent.open(t, everything).Register(t.Context(), instanceOf("public", "public-a"))
	require.NoError(t, err)
	w = watch(t, open(t, agent.Config(), consul.WithWaitTime(time.Second)), "public")
	w.untilIDs(patience, "public-a")
	public.set(t, "")
	require.Eventually(t, func() bool { return len(w.errs()) > 0 }, patience, time.Millisecond)
	assert.Len(t, w.sets(), 1, "the last set stays")
	public.set(t, public.policy.Rules)
	require.NoError(t, g.Deregister(t.Context()))
	w.untilIDs(patience) // an empty service that may be read is one
}

// Rules: what a reader, a reader who also wants the history, and a writer need.
func aclRules(t *testing.T, agent secureAgent) {
	const key = "gray/rules"
	const history = `key_prefix "gray/rules.history/" { policy = %q }`
	at := func(policy string) string { return fmt.Sprintf(`key "gray/rules" { policy = %q } `, policy) }

	writer := ruleStore(t, agent.open(t, at("write")+fmt.Sprintf(history, "write")), key)
	reader := ruleStore(t, agent.open(t, at("read")+fmt.Sprintf(history, "read")), key)
	revision := uint64(0)
	for n := range rule.HistoryLength + 2 { // the oldest have to go
		revision = put(t, writer, setOf(fmt.Sprintf("v%d", n)), revision)
	}
	engine, err := rule.NewEngine(nil)
	require.NoError(t, err)
	follow(t, engine, reader)
	runs := func(version string) {
		t.Helper()
		require.Eventually(t, func() bool { return engine.Decide(nil).Tag.Get("version") == version }, patience, time.Millisecond)
	}
	runs(fmt.Sprintf("v%d", rule.HistoryLength+1))
	assert.Equal(t, "ann", watchRules(t, reader).untilRevision(revision).Author)
	docs, err := reader.History(t.Context())
	require.NoError(t, err)
	require.Len(t, docs, rule.HistoryLength)
	e, err := rollout.Restore(t.Context(), writer, docs[1].Revision, revision, rollout.Note{Who: "ann", Why: "back"})
	require.NoError(t, err)
	runs(fmt.Sprintf("v%d", rule.HistoryLength))

	// Without the history rules are followed, and nobody takes what is left of it
	// for the whole.
	exact := ruleStore(t, agent.open(t, at("read")), key)
	assert.Empty(t, watchRules(t, exact).untilRevision(e.Revision).Author)
	_, err = exact.History(t.Context())
	require.ErrorContains(t, err, "filtered by ACLs")
	for name, s := range map[string]*consul.RuleStore{
		"a reader":                         reader,
		"a writer of the key alone":        ruleStore(t, agent.open(t, at("write")), key),
		"a writer who only reads the rest": ruleStore(t, agent.open(t, at("write")+fmt.Sprintf(history, "read")), key),
		"a writer of the history alone":    ruleStore(t, agent.open(t, at("read")+fmt.Sprintf(history, "write")), key),
	} {
		_, err := s.Put(t.Context(), rule.Document{Data: []byte("{}")}, e.Revision)
		require.ErrorContains(t, err, "Permission denied", name)
		assert.NotErrorIs(t, err, rule.ErrConflict, name)
	}
	assert.Equal(t, e.Revision, watchRules(t, reader).untilRevision(e.Revision).Revision, "nothing was written")
}

const (
	leaderKeyRight     = `key "graylane/leader" { policy = "write" } `
	leaderSessionRight = `session "solo" { policy = "write" }`
)

// An elector needs its key and sessions of the agent's node; who only asks for the
// leader, to read the key.
func aclElector(t *testing.T, agent secureAgent) {
	for less, want := range map[string]string{
		leaderKeyRight: "session:write",
		`key "graylane/leader" { policy = "read" }` + leaderSessionRight: "key:write",
	} {
		var logs logBuffer
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		e := elector(t, agent.open(t, less, logTo(&logs), consul.WithRetry(5*time.Millisecond, 20*time.Millisecond)))
		go func() { done <- e.Lead(ctx, func(context.Context) error { return errors.New("it leads") }) }()
		require.Eventually(t, func() bool { return logs.lines() > 0 }, patience, time.Millisecond)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		assert.Contains(t, logs.String(), want)
		assert.Equal(t, 1, logs.lines(), "%v", &logs)
	}
	for _, s := range sessions(t, agent.Agent) {
		assert.NotContains(t, s.Name, leaderKey, "no session is left behind")
	}

	l := &election{t: t}
	resign := l.stand(elector(t, agent.open(t, leaderKeyRight+leaderSessionRight), consul.WithCandidate("a")), "a")
	l.nth(1)
	l.stand(elector(t, agent.open(t, leaderKeyRight+leaderSessionRight), consul.WithCandidate("b")), "b")
	observer := elector(t, agent.open(t, `key "graylane/leader" { policy = "read" }`))
	who, err := observer.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "a", who.ID)
	resign()
	l.nth(2)
	l.neverTwo()
	who, err = observer.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "b", who.ID)
}

// A token that loses its rights, gets them back and is deleted, while instances are
// registered and watched with it.
func aclRegistryLoses(t *testing.T, agent secureAgent) {
	const service = "loses"
	rights := fmt.Sprintf(`service %q { policy = "write" } node_prefix "" { policy = "read" }`, service)
	g := agent.grant(t, rights)
	var logs logBuffer
	r := open(t, g.config(), logTo(&logs), consul.WithTTL(time.Second), consul.WithWaitTime(time.Second),
		consul.WithRetry(5*time.Millisecond, 20*time.Millisecond))
	a, err := r.Register(t.Context(), instanceOf(service, "loses-a"))
	require.NoError(t, err)
	w, observer := watch(t, r, service), watch(t, agent.open(t, everything), service)
	w.untilIDs(patience, "loses-a")
	observer.untilIDs(patience, "loses-a")

	g.set(t, "")
	errs := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(w.errs()) >= n }, patience, time.Millisecond)
	}
	errs(20)
	require.Eventually(t, func() bool { return logs.lines() == 2 }, patience, time.Millisecond, "%v", &logs)
	assert.ErrorContains(t, w.errs()[0], "filtered by ACLs")
	require.ErrorContains(t, a.Update(t.Context(), nil), "service:write")
	for _, set := range w.sets() {
		assert.Len(t, set, 1, "the last set stays")
	}

	g.set(t, rights)
	require.Eventually(t, func() bool { return logs.lines() == 4 }, patience, time.Millisecond, "both go on: %v", &logs)
	require.NoError(t, a.Update(t.Context(), map[string]string{"version": "v2"}))
	w.until(patience, func(set []registry.Instance) bool {
		return set[0].Metadata["version"] == "v2" && set[0].Status == registry.StatusPassing
	})

	_, err = agent.Client().ACL().TokenDelete(g.token.AccessorID, nil)
	require.NoError(t, err)
	errs(len(w.errs()) + 20)
	assert.ErrorContains(t, w.errs()[len(w.errs())-1], "ACL not found")
	assert.Len(t, w.sets()[len(w.sets())-1], 1, "the last set stays")
	assert.Equal(t, 4, logs.lines(), "it is the same trouble for a minute: %v", &logs)
	err = a.Deregister(t.Context())
	require.ErrorContains(t, err, "ACL not found")
	err = r.Close()
	require.ErrorContains(t, err, "loses-a")
	require.ErrorContains(t, err, "ACL not found")

	// The agent writes the catalog with the token of the registration. Without it
	// an instance that is not kept alive goes on to pass there, and a management
	// token does not take it out of it.
	require.Eventually(t, func() bool {
		checks, err := agent.Client().Agent().Checks()
		return err == nil && checks["service:loses-a"].Status == api.HealthCritical
	}, patience, time.Millisecond)
	require.NoError(t, agent.Client().Agent().ServiceDeregister("loses-a"))
	end := instanceOf(service, "loses-b")
	_, err = agent.open(t, everything).Register(t.Context(), end)
	require.NoError(t, err)
	set := observer.untilIDs(patience, "loses-a", "loses-b")
	assert.Equal(t, registry.StatusPassing, set[0].Status)
}

// Rules stay when the token may not read them any more, and are followed again when
// it may.
func aclRulesLose(t *testing.T, agent secureAgent) (finish func()) {
	const key = "lose/rules"
	const rights = `key_prefix "lose/rules" { policy = "read" }`
	writer := ruleStore(t, agent.open(t, everything), key)
	g := agent.grant(t, rights)
	var logs logBuffer
	reader := ruleStore(t, open(t, g.config(), logTo(&logs), consul.WithRetry(5*time.Millisecond, 20*time.Millisecond)), key)
	engine, err := rule.NewEngine(nil)
	require.NoError(t, err)
	follow(t, engine, reader)
	w := watchRules(t, reader)
	at := put(t, writer, setOf("v1"), 0)
	w.untilRevision(at)
	require.Eventually(t, func() bool { return engine.Status().Revision == at }, patience, time.Millisecond)

	g.set(t, "")
	return func() {
		require.Eventually(t, func() bool { return len(w.errs()) >= 10 && engine.Status().Err != nil }, patience, time.Millisecond)
		assert.ErrorContains(t, w.errs()[0], "key:read")
		before := at
		at = put(t, writer, setOf("v2"), at)
		assert.Equal(t, before, engine.Status().Revision)
		assert.Equal(t, "v1", engine.Decide(nil).Tag.Get("version"), "the last rules stay")
		for _, d := range w.docs()[1:] {
			assert.True(t, d.Exists(), "what may not be read is not deleted")
		}

		g.set(t, rights)
		require.Eventually(t, func() bool { return engine.Decide(nil).Tag.Get("version") == "v2" }, patience, time.Millisecond)
		w.untilRevision(at)
		assert.Equal(t, 4, logs.lines(), "the beginning and the end, of both followers: %v", &logs)
	}
}

// A leader whose token loses its rights steps down before its session can expire,
// and another one leads.
func aclLeaderLoses(t *testing.T, agent secureAgent) (finish func()) {
	const key = "lose/leader"
	candidate := func(g *grant, opts ...consul.Option) *consul.Elector {
		e, err := open(t, g.config(), opts...).Elector(key)
		require.NoError(t, err)
		return e
	}
	rights := fmt.Sprintf(`key %q { policy = "write" } `, key) + leaderSessionRight
	g := agent.grant(t, rights)
	var logs logBuffer
	l := &election{t: t}
	l.stand(candidate(g, logTo(&logs)), "a")
	l.nth(1)
	g.set(t, "")
	lost := time.Now()
	return func() {
		s := l.ended(1)
		assert.ErrorIs(t, s.cause, rollout.ErrLost)
		assert.Less(t, s.end.Sub(lost), 10*time.Second, "before the session could expire")
		t.Logf("stepped down after %v", s.end.Sub(lost))
		require.Eventually(t, func() bool { return logs.lines() >= 4 }, patience, time.Millisecond)

		g.set(t, rights)
		l.nth(2)
		l.neverTwo()
		// It cannot prove that it leads, has lost it, cannot release, cannot stand: each
		// begins once, and ends.
		assert.LessOrEqual(t, logs.lines(), 8, "%v", &logs)
	}
}

// Consul can be told to ask for the right to list keys: writing includes it, reading
// does not.
func TestRuleStore_KeyListPolicy(t *testing.T) {
	t.Parallel()
	const history = `key "graylane/rules" { policy = "read" } key_prefix "graylane/rules.history/" { policy = %q }`
	_, token := startWithACL(t, map[string]any{"enable_key_list_policy": true})
	writer := ruleStore(t, open(t, token("writer", `key "graylane/rules" { policy = "write" } key_prefix "graylane/rules.history/" { policy = "write" }`)), rulesKey)
	put(t, writer, setOf("v2"), put(t, writer, setOf("v1"), 0))
	assert.Equal(t, []string{"v2 ann", "v1 ann"}, historyOf(t, writer))
	assert.Equal(t, []string{"v2 ann", "v1 ann"}, historyOf(t, ruleStore(t, open(t, token("list", fmt.Sprintf(history, "list"))), rulesKey)))
	reader := ruleStore(t, open(t, token("read", fmt.Sprintf(history, "read"))), rulesKey)
	assert.Equal(t, "ann", watchRules(t, reader).untilData(setOf("v2")).Author)
	_, err := reader.History(t.Context())
	require.ErrorContains(t, err, "key:list")
}
