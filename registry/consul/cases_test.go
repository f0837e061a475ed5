package consul_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// C1: index 100 with [A], then 5 with [B], then 6 with [C].
func TestC1_IndexGoesBackwards(t *testing.T) {
	f := newFake(t, response{index: index(100), body: list(entry("a", ""))})
	r := watch(t, open(t, f.config()), "order")
	r.untilIDs(patience, "a")
	require.Eventually(t, func() bool { return len(f.seen()) == 2 }, patience, time.Millisecond)

	f.set(response{index: index(5), body: list(entry("b", ""))})
	require.Eventually(t, func() bool { return len(f.seen()) >= 3 }, patience, time.Millisecond)
	f.set(response{index: index(6), body: list(entry("c", ""))})
	r.untilIDs(time.Second, "c")

	requests := f.seen()
	assert.Empty(t, requests[0].query.Get("index"), "the first query asks for what there is")
	assert.Equal(t, "100", requests[1].query.Get("index"))
	assert.Empty(t, requests[2].query.Get("index"), "the query after the step back starts over")
	for _, q := range requests {
		assert.NotEqual(t, "0", q.query.Get("index"), "never below 1")
	}
	assert.Empty(t, r.errs())
}

// C1, the kind: a server that has only just started may answer with less than the
// cluster knows. The leader is asked before that is believed.
func TestC1_StepBackIsReadFromTheLeader(t *testing.T) {
	f := newFake(t, response{index: index(100), body: list(entry("a", ""))})
	r := watch(t, open(t, f.config()), "order")
	r.untilIDs(patience, "a")
	require.Eventually(t, func() bool { return len(f.seen()) == 2 }, patience, time.Millisecond)
	assert.True(t, f.seen()[0].query.Has("stale"))

	f.set(response{index: index(1), body: list()})
	require.Eventually(t, func() bool { return len(f.seen()) == 4 }, patience, time.Millisecond)
	again := f.seen()[2].query
	assert.True(t, again.Has("consistent"))
	assert.False(t, again.Has("stale"))
	assert.True(t, f.seen()[3].query.Has("stale"), "once it is settled any server may answer again")
	r.untilIDs(patience) // the leader says so too
}

// C2: answers at once with index 0, then 500, then 429, for 3 s each.
func TestC2_NoBusyLoop(t *testing.T) {
	for name, answer := range map[string]response{
		"index 0":     {index: "0", body: list(entry("a", ""))},
		"no index":    {body: list(entry("a", ""))},
		"index stays": {index: "7", body: list(entry("a", "")), once: true},
		"500":         {status: http.StatusInternalServerError, body: "No cluster leader"},
		"429":         {status: http.StatusTooManyRequests, body: "Your IP is issuing too many concurrent connections"},
		"no JSON":     {index: "1", body: "<html>"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var logged logBuffer
			f := newFake(t, answer)
			watch(t, open(t, f.config(), consul.WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), "order")
			<-time.After(3 * time.Second)

			requests := f.seen()
			assert.LessOrEqual(t, len(requests), 5, "requests in 3 s")
			require.GreaterOrEqual(t, len(requests), 3, "it goes on asking")
			for n := 2; n < len(requests); n++ {
				before := requests[n-1].at.Sub(requests[n-2].at)
				assert.Greater(t, requests[n].at.Sub(requests[n-1].at), before, "the delay grows")
			}
			assert.LessOrEqual(t, logged.lines(), 2, logged.String())
		})
	}
}

// C2 in one watch: what it asks of a server in trouble only gets less.
func TestC2_OneAfterTheOther(t *testing.T) {
	t.Parallel()
	f := newFake(t, response{index: "0", body: list(entry("a", ""))})
	r := watch(t, open(t, f.config()), "order")
	for _, next := range []response{
		{status: http.StatusInternalServerError, body: "rpc error"},
		{status: http.StatusTooManyRequests, body: "slow down"},
		{index: "9", body: list(entry("a", ""))},
	} {
		before := len(f.seen())
		<-time.After(3 * time.Second)
		assert.LessOrEqual(t, len(f.seen())-before, 5)
		f.set(next)
	}
	r.untilIDs(patience, "a")
	assert.Len(t, r.sets(), 1)
}

// C2, the kind: an index that grows with every answer does not make a busy loop
// either.
func TestC2_IndexThatAlwaysGrows(t *testing.T) {
	t.Parallel()
	f := newFake(t, response{index: "1", body: list(entry("a", "")), once: true})
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := 2; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				f.set(response{index: index(n), body: list(entry("a", ""))})
			}
		}
	}()
	r := watch(t, open(t, f.config()), "order")
	<-time.After(2 * time.Second)
	close(stop)
	<-done
	assert.LessOrEqual(t, len(f.seen()), 35, "20 at once and 5 a second")
	assert.Len(t, r.sets(), 1)
}

// C3, the half of the registry: a service that nobody registered is an empty set,
// not an error, and appears when it registers.
func TestC3_RegistersLater(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	r := watch(t, reg, "order")
	r.untilIDs(patience)
	_, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	r.untilIDs(patience, "o1")
	assert.Empty(t, r.errs())
}

// C3: Consul down at the start. The error names it.
func TestC3_ConsulDown(t *testing.T) {
	agent := consultest.Start(t)
	agent.Kill()
	reg := open(t, agent.Config())

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := reg.Register(ctx, instance("o1", ""))
	require.Error(t, err)
	assert.Contains(t, strings.ToLower(err.Error()), "consul")
	assert.Contains(t, err.Error(), agent.Address())

	r := watch(t, reg, "order")
	require.Eventually(t, func() bool { return len(r.errs()) >= 2 }, patience, 5*time.Millisecond)
	err = r.errs()[0]
	assert.Contains(t, strings.ToLower(err.Error()), "consul")
	assert.Contains(t, err.Error(), agent.Address())
	assert.Contains(t, err.Error(), "order")
	assert.Empty(t, r.sets())

	agent.Restart()
	r.untilIDs(patience)
	_, err = reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	r.untilIDs(patience, "o1")
}

// C4: five times "No cluster leader", then the same list.
func TestC4_NoLeaderThenTheSame(t *testing.T) {
	good := response{index: index(10), body: list(entry("a", ""), entry("b", "v2"))}
	f := newFake(t, good)
	var logged logBuffer
	r := watch(t, open(t, f.config(), consul.WithRetry(time.Millisecond, 5*time.Millisecond),
		consul.WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), "order")
	r.untilIDs(patience, "a", "b")

	f.set(response{status: http.StatusInternalServerError, body: "No cluster leader"})
	require.Eventually(t, func() bool { return len(r.errs()) >= 5 }, patience, time.Millisecond)
	f.set(good)
	// The change behind it shows that nothing came in between.
	require.Eventually(t, func() bool {
		requests := f.seen()
		return requests[len(requests)-1].query.Get("index") == "10"
	}, patience, time.Millisecond)
	f.set(response{index: index(11), body: list(entry("a", ""))})
	r.untilIDs(patience, "a")

	assert.Len(t, r.sets(), 2)
	for _, e := range r.all() {
		if e.err != nil {
			assert.Nil(t, e.set)
			assert.ErrorContains(t, e.err, "No cluster leader")
			var status api.StatusError
			require.ErrorAs(t, e.err, &status)
			assert.Equal(t, http.StatusInternalServerError, status.Code)
		}
	}
	assert.Contains(t, logged.String(), "No cluster leader")
}

// C4: `[]` that ACLs have filtered keeps the last set; a plain `[]` is applied.
func TestC4_FilteredAndPlainEmpty(t *testing.T) {
	f := newFake(t, response{index: index(10), body: list(entry("a", ""))})
	var logged logBuffer
	r := watch(t, open(t, f.config(), consul.WithRetry(time.Millisecond, 5*time.Millisecond),
		consul.WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), "order")
	r.untilIDs(patience, "a")

	f.set(response{index: index(11), filtered: true, body: list()})
	require.Eventually(t, func() bool { return len(r.errs()) >= 2 }, patience, time.Millisecond)
	assert.ErrorContains(t, r.errs()[0], "ACL")
	assert.Contains(t, logged.String(), "ACL")
	assert.Len(t, r.sets(), 1)

	f.set(response{index: index(12), body: list()})
	r.untilIDs(time.Second)
	assert.Len(t, r.sets(), 2)
}

// C6: only Meta changes: seen in under 1 s.
func TestC6_OnlyMetaChanges(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	r := watch(t, reg, "order")
	g, err := reg.Register(context.Background(), instance("o1", "v1"))
	require.NoError(t, err)
	r.untilIDs(patience, "o1")
	seq := r.sets()[len(r.sets())-1][0].Seq

	require.NoError(t, g.Update(context.Background(), map[string]string{"version": "v2"}))
	set := r.until(time.Second, func(set []registry.Instance) bool { return set[0].Metadata["version"] == "v2" })
	assert.Equal(t, seq, set[0].Seq, "an update is no new registration")
}

// C6: only order or check output changes: no update at all.
func TestC6_OnlyOrderOrOutput(t *testing.T) {
	a, b := entry("a", ""), entry("b", "")
	f := newFake(t, response{index: index(1), body: list(a, b)})
	r := watch(t, open(t, f.config()), "order")
	r.untilIDs(patience, "a", "b")

	f.set(response{index: index(2), body: list(b, a)})
	require.Eventually(t, func() bool { return len(f.seen()) == 3 }, patience, time.Millisecond)
	noisy := entry("a", "")
	noisy.Checks[0].Output = "answered in 3 ms"
	noisy.Checks[0].ModifyIndex, noisy.Service.ModifyIndex = 3, 3
	f.set(response{index: index(3), body: list(noisy, b)})
	require.Eventually(t, func() bool { return len(f.seen()) == 4 }, patience, time.Millisecond)
	f.set(response{index: index(4), body: list(b)})
	r.untilIDs(patience, "b")
	assert.Len(t, r.sets(), 2)
}

// C6 on a real agent: the output of a check changes in the catalog.
func TestC6_OutputOnRealAgent(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	r := watch(t, reg, "order")
	put := func(output string) {
		t.Helper()
		_, err := agent.Client().Catalog().Register(&api.CatalogRegistration{
			Node: "external", Address: "10.1.1.1", SkipNodeUpdate: true,
			Service: &api.AgentService{ID: "o1", Service: "order", Port: 80},
			Checks:  api.HealthChecks{{Node: "external", ServiceID: "o1", CheckID: "c", Status: api.HealthPassing, Output: output}},
		}, nil)
		require.NoError(t, err)
	}
	put("first")
	r.untilIDs(patience, "o1")
	put("second")
	entries, _, err := agent.Client().Health().Service("order", "", false, nil)
	require.NoError(t, err)
	require.Equal(t, "second", entries[0].Checks[0].Output)
	_, err = reg.Register(context.Background(), instance("o2", ""))
	require.NoError(t, err)
	set := r.untilIDs(patience, "o1", "o2")
	assert.Equal(t, "10.1.1.1:80", set[0].Address, "the node's address where the service has none")
	ones := 0
	for _, set := range r.sets() {
		if len(set) == 1 {
			ones++
		}
	}
	assert.Equal(t, 1, ones, "no update for the output")
}

// C7, the half of the registry: metadata arrives as it was registered, an absent
// one is nil.
func TestC7_MetadataAsRegistered(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	for id, metadata := range map[string]map[string]string{
		"o1": nil,
		"o2": {"version": ""},
		"o3": {"version": "2.1.0"},
		"o4": {"version": "v2.10.0"},
	} {
		i := instance(id, "")
		i.Metadata = metadata
		_, err := reg.Register(context.Background(), i)
		require.NoError(t, err)
	}
	set := watch(t, reg, "order").untilIDs(patience, "o1", "o2", "o3", "o4")
	assert.Nil(t, set[0].Metadata)
	assert.Equal(t, map[string]string{"version": ""}, set[1].Metadata)
	assert.Equal(t, map[string]string{"version": "2.1.0"}, set[2].Metadata)
	assert.Equal(t, map[string]string{"version": "v2.10.0"}, set[3].Metadata)
}

// C9: an instance in warning; in maintenance. What is out is for readers to decide;
// they have to be told.
func TestC9_WarningAndMaintenance(t *testing.T) {
	agent := consultest.Start(t)
	client := agent.Client()
	reg := open(t, agent.Config(), consul.WithHTTPCheck("/healthz", time.Hour))
	_, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	is := func(s registry.Status) func([]registry.Instance) bool {
		return func(set []registry.Instance) bool { return len(set) == 1 && set[0].Status == s }
	}
	r.until(patience, is(registry.StatusPassing))

	// A second check beside that of the registration.
	require.NoError(t, client.Agent().CheckRegister(&api.AgentCheckRegistration{
		ID: "extra", Name: "extra", ServiceID: "o1",
		AgentServiceCheck: api.AgentServiceCheck{TTL: "1h", Status: api.HealthWarning},
	}))
	r.until(patience, is(registry.StatusWarning))
	require.NoError(t, client.Agent().UpdateTTL("extra", "", api.HealthCritical))
	r.until(patience, is(registry.StatusCritical))
	require.NoError(t, client.Agent().UpdateTTL("extra", "", api.HealthPassing))
	r.until(patience, is(registry.StatusPassing))

	require.NoError(t, client.Agent().EnableServiceMaintenance("o1", "drain"))
	r.until(patience, is(registry.StatusMaintenance))
	require.NoError(t, client.Agent().DisableServiceMaintenance("o1"))
	r.until(patience, is(registry.StatusPassing))

	require.NoError(t, client.Agent().EnableNodeMaintenance("reboot"))
	r.until(patience, is(registry.StatusMaintenance))
	require.NoError(t, client.Agent().DisableNodeMaintenance())
	r.until(patience, is(registry.StatusPassing))
}
