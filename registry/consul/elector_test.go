package consul_test

import (
	"context"
	"fmt"
	"io"
	"log"
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

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/rollouttest"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

const leaderKey = "graylane/leader"

func elector(t *testing.T, r *consul.Registry, opts ...consul.ElectorOption) *consul.Elector {
	t.Helper()
	e, err := r.Elector(leaderKey, opts...)
	require.NoError(t, err)
	return e
}

// span is the time for which a candidate led, by its own view.
type span struct {
	who        string
	start, end time.Time // end is zero while it leads
	cause      error
}

// election records who leads.
type election struct {
	t *testing.T

	mu    sync.Mutex
	spans []span
}

// stand lets e lead until the test ends, or what it returns is called, which waits
// for the end of Lead.
func (l *election) stand(e rollout.Elector, who string) (resign func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := e.Lead(ctx, func(ctx context.Context) error {
			l.mu.Lock()
			n := len(l.spans)
			l.spans = append(l.spans, span{who: who, start: time.Now()})
			l.mu.Unlock()
			<-ctx.Done()
			l.mu.Lock()
			defer l.mu.Unlock()
			l.spans[n].end, l.spans[n].cause = time.Now(), context.Cause(ctx)
			return nil
		})
		assert.ErrorIs(l.t, err, context.Canceled)
	}()
	resign = func() {
		cancel()
		<-done
	}
	l.t.Cleanup(resign)
	return resign
}

func (l *election) all() []span {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]span(nil), l.spans...)
}

// nth waits for the nth leader, from 1, and returns its span.
func (l *election) nth(n int) span {
	l.t.Helper()
	require.Eventually(l.t, func() bool { return len(l.all()) >= n }, patience, time.Millisecond, "leader %d", n)
	return l.all()[n-1]
}

// ended waits for the end of the nth leader.
func (l *election) ended(n int) span {
	l.t.Helper()
	l.nth(n)
	require.Eventually(l.t, func() bool { return !l.all()[n-1].end.IsZero() }, patience, time.Millisecond, "the end of leader %d", n)
	return l.all()[n-1]
}

// neverTwo asserts that no two led at the same time.
func (l *election) neverTwo() {
	l.t.Helper()
	spans := l.all() // in the order of their starts
	for n := 1; n < len(spans); n++ {
		before, after := spans[n-1], spans[n]
		if assert.False(l.t, before.end.IsZero(), "%s still leads, and so does %s", before.who, after.who) {
			assert.False(l.t, after.start.Before(before.end), "%s began to lead %v before %s had ended", after.who, before.end.Sub(after.start), before.who)
		}
	}
}

// sessions returns the sessions that Consul has.
func sessions(t *testing.T, a *consultest.Agent) []*api.SessionEntry {
	t.Helper()
	all, _, err := a.Client().Session().List(nil)
	require.NoError(t, err)
	return all
}

func TestElector(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	rollouttest.Elector(t, func(t *testing.T) func(string) rollout.Elector {
		key := strings.ToLower(t.Name())
		r := open(t, agent.Config())
		return func(id string) rollout.Elector {
			e, err := r.Elector(key, consul.WithCandidate(id))
			require.NoError(t, err)
			return e
		}
	})
	assert.Empty(t, sessions(t, agent), "no session is left behind")
}

// Five gateways. The leader is cut off, and replaced within 25 s; those that resign
// are replaced at once; never do two lead.
func TestElector_DeadLeader(t *testing.T) {
	t.Parallel()
	const candidates = 5
	agent := consultest.Start(t)
	l := &election{t: t}
	resign, relays := map[string]func(){}, map[string]*relay{}
	for n := range candidates {
		who := fmt.Sprintf("gateway-%d", n+1)
		relays[who] = newRelay(t, agent.Address())
		resign[who] = l.stand(elector(t, open(t, relays[who].config()), consul.WithCandidate(who)), who)
	}
	first := l.nth(1)
	observer := elector(t, open(t, agent.Config()))
	who, err := observer.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, first.who, who.ID)

	relays[first.who].blackout()
	cut := time.Now()
	deposed := l.ended(1)
	assert.ErrorIs(t, deposed.cause, rollout.ErrLost)
	second := l.nth(2)
	t.Logf("cut off: stepped down after %v, replaced after %v", deposed.end.Sub(cut), second.start.Sub(cut))
	assert.Less(t, second.start.Sub(cut), 25*time.Second)
	assert.NotEqual(t, first.who, second.who)
	who, err = observer.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, second.who, who.ID)

	relays[first.who].light() // and it stands again
	for n := 2; n <= candidates; n++ {
		resigned := l.nth(n)
		resign[resigned.who]()
		end := l.ended(n).end
		next := l.nth(n + 1)
		t.Logf("resigned: replaced after %v", next.start.Sub(end))
		if next.who != first.who { // that one may not have tried again yet
			assert.Less(t, next.start.Sub(end), 5*time.Second, "no session had to expire")
		}
	}
	l.neverTwo()
}

// Connections that are swallowed while the way to Consul is good: the leader goes
// on, and the one that waits takes over when it ends.
func TestElector_BlackHole(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	a, b := newRelay(t, agent.Address()), newRelay(t, agent.Address())
	l := &election{t: t}
	resign := l.stand(elector(t, open(t, a.config())), "a")
	l.nth(1)
	l.stand(elector(t, open(t, b.config())), "b")
	require.Eventually(t, func() bool { return b.open() > 0 }, patience, time.Millisecond)
	was := a.open()
	require.Positive(t, a.swallow())
	require.Positive(t, b.swallow())
	require.Eventually(t, func() bool { return a.open() > was }, patience, time.Millisecond, "another connection")
	resign()
	cut := l.ended(1)
	assert.ErrorIs(t, cut.cause, context.Canceled, "it had led until it resigned")
	l.nth(2)
	l.neverTwo()
}

// What an operator does to the lock ends the term at once, and the next begins.
func TestElector_OperatorTakesTheLock(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	for name, act := range map[string]func(*api.KVPair) error{
		"session destroyed": func(p *api.KVPair) error {
			_, err := agent.Client().Session().Destroy(p.Session, nil)
			return err
		},
		"key deleted": func(p *api.KVPair) error {
			_, err := agent.Client().KV().Delete(p.Key, nil)
			return err
		},
		"lock released": func(p *api.KVPair) error {
			_, _, err := agent.Client().KV().Release(p, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &election{t: t}
			resign := l.stand(elector(t, open(t, agent.Config())), "a")
			l.nth(1)
			p, _, err := agent.Client().KV().Get(leaderKey, nil)
			require.NoError(t, err)
			require.NotEmpty(t, p.Session)
			require.NoError(t, act(p))
			acted := time.Now()
			s := l.ended(1)
			require.ErrorIs(t, s.cause, rollout.ErrLost)
			assert.ErrorContains(t, s.cause, leaderKey)
			t.Logf("stepped down after %v", s.end.Sub(acted))
			assert.Less(t, s.end.Sub(acted), 2*time.Second, "it was told, it has not only asked again")
			if name != "key deleted" { // see TestElector_KeyDeletedWhileCutOff
				l.nth(2)
			}
			resign()
			l.neverTwo()
		})
	}
	assert.Empty(t, sessions(t, agent))
}

// The key of a leader that is cut off is deleted: who knows of the lock waits until
// that leader has stepped down.
func TestElector_KeyDeletedWhileCutOff(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	a, b := newRelay(t, agent.Address()), newSwitched(t, agent)
	l := &election{t: t}
	l.stand(elector(t, open(t, a.config())), "a")
	l.nth(1)
	l.stand(elector(t, open(t, b.config())), "b")
	require.Eventually(t, func() bool { return b.requests.Load() >= 2 }, patience, time.Millisecond, "b waits for the lock")
	a.blackout()
	_, err := agent.Client().KV().Delete(leaderKey, nil)
	require.NoError(t, err)
	deleted := time.Now()
	assert.Equal(t, "b", l.nth(2).who)
	t.Logf("replaced after %v", l.nth(2).start.Sub(deleted))
	l.neverTwo()
}

// An agent that restarts keeps the session, one that has lost its data does not:
// either way one leads afterwards.
func TestElector_AgentRestarts(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	l := &election{t: t}
	l.stand(elector(t, open(t, agent.Config()), consul.WithCandidate("a")), "a")
	l.nth(1)
	l.stand(elector(t, open(t, agent.Config()), consul.WithCandidate("b")), "b")

	agent.Restart()
	observer := elector(t, open(t, agent.Config()))
	leads := func() bool {
		who, err := observer.Leader(t.Context())
		spans := l.all()
		last := spans[len(spans)-1]
		return err == nil && last.end.IsZero() && who.ID == last.who
	}
	require.Eventually(t, leads, patience, 10*time.Millisecond)
	terms := len(l.all())
	t.Logf("%d terms after the restart", terms)

	agent.Reset()
	assert.ErrorIs(t, l.ended(terms).cause, rollout.ErrLost)
	l.nth(terms + 1)
	require.Eventually(t, leads, patience, 10*time.Millisecond)
	l.neverTwo()
}

// switched forwards to an agent, or answers as the test says.
type switched struct {
	*httptest.Server
	proxy    *httputil.ReverseProxy
	answer   atomic.Pointer[http.HandlerFunc]
	requests atomic.Int64
}

func newSwitched(t *testing.T, agent *consultest.Agent) *switched {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: agent.Address()})
	transport := &http.Transport{}
	proxy.Transport = transport
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	s := &switched{proxy: proxy}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		if f := s.answer.Load(); f != nil {
			(*f)(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		transport.CloseIdleConnections()
	})
	return s
}

func (s *switched) set(f http.HandlerFunc) {
	s.answer.Store(&f)
	s.CloseClientConnections() // those that wait
}

func (s *switched) config() *api.Config {
	return &api.Config{Address: s.Listener.Addr().String(), Transport: api.DefaultConfig().Transport}
}

// A Consul that answers 500 proves nothing: the leader steps down before its TTL is
// over, asks with measure, and leads again afterwards. One that waits goes on
// waiting, and can be called off.
func TestElector_ServerErrors(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	front := newSwitched(t, agent)
	logs := &logBuffer{}
	l := &election{t: t}
	r := open(t, front.config(), consul.WithLogger(slog.New(slog.NewTextHandler(logs, nil))))
	l.stand(elector(t, r), "a")
	l.nth(1)
	resign := l.stand(elector(t, open(t, front.config())), "b")

	before := front.requests.Load()
	front.set(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "rpc error making call: No cluster leader", http.StatusInternalServerError)
	})
	failed := time.Now()
	s := l.ended(1)
	assert.ErrorIs(t, s.cause, rollout.ErrLost)
	assert.Less(t, s.end.Sub(failed), 10*time.Second, "before the session could expire")
	t.Logf("stepped down after %v, %d requests", s.end.Sub(failed), front.requests.Load()-before)
	assert.Less(t, front.requests.Load()-before, int64(60))
	resign() // at once

	front.answer.Store(nil)
	back := time.Now()
	again := l.nth(2).start.Sub(back)
	t.Logf("leads again after %v", again)
	assert.Less(t, again, 10*time.Second, "it has released what it could not before; no session had to expire")
	l.neverTwo()
	assert.LessOrEqual(t, logs.lines(), 6, logs.String())
}

// The lock is taken and the answer gets lost: it is given back, not left to expire.
func TestElector_AnswerLost(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	front := newSwitched(t, agent)
	var lost atomic.Bool
	front.set(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("acquire") && lost.CompareAndSwap(false, true) {
			front.proxy.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		front.proxy.ServeHTTP(w, r)
	})
	l := &election{t: t}
	start := time.Now()
	l.stand(elector(t, open(t, front.config())), "a")
	took := l.nth(1).start.Sub(start)
	assert.True(t, lost.Load())
	assert.Less(t, took, 10*time.Second, "no session had to expire")
	assert.Len(t, sessions(t, agent), 1)
}

// Consul's servers elect another leader among them: ours leads on.
func TestElector_ServersElect(t *testing.T) {
	t.Parallel()
	cluster := consultest.StartCluster(t, 3)
	leader, followers := cluster.Leader(), cluster.Followers()
	l := &election{t: t}
	l.stand(elector(t, open(t, followers[0].Config())), "a")
	l.nth(1)
	l.stand(elector(t, open(t, followers[1].Config())), "b")
	leader.Kill()
	now := cluster.Leader()
	p, _, err := now.Client().KV().Get(leaderKey, &api.QueryOptions{RequireConsistent: true})
	require.NoError(t, err)
	renewed := func() bool {
		q := &api.QueryOptions{RequireConsistent: true, WaitIndex: p.ModifyIndex, WaitTime: 12 * time.Second}
		again, _, err := now.Client().KV().Get(leaderKey, q) // longer than the TTL
		return err == nil && again.Session == p.Session
	}
	assert.True(t, renewed())
	require.Len(t, l.all(), 1)
	assert.Zero(t, l.all()[0].end)
}
