package consul_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

// What the documentation names is enough, and less is refused.
func TestElector_ACL(t *testing.T) {
	t.Parallel()
	agent, token := startWithACL(t)
	node, err := agent.Client().Agent().NodeName()
	require.NoError(t, err)
	candidate := token("candidate", fmt.Sprintf(`key "graylane/leader" { policy = "write" } session %q { policy = "write" }`, node))
	reader := token("reader", `key "graylane/leader" { policy = "read" }`)

	logs := &logBuffer{}
	e := elector(t, open(t, reader, consul.WithLogger(slog.New(slog.NewTextHandler(logs, nil)))))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	require.ErrorIs(t, e.Lead(ctx, func(context.Context) error { return errors.New("it leads") }), context.DeadlineExceeded)
	assert.Contains(t, logs.String(), "Permission denied")
	assert.Equal(t, 1, logs.lines(), logs.String())

	l := &election{t: t}
	l.stand(elector(t, open(t, candidate), consul.WithCandidate("a")), "a")
	l.nth(1)
	who, err := e.Leader(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "a", who.ID)
}

// Closing the registry ends the leader and who waits, and leaves nothing behind.
func TestElector_ClosingTheRegistry(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	r := open(t, agent.Config())
	e := elector(t, r)
	leading, cause := make(chan struct{}), make(chan error, 1)
	ended := make(chan error, 2)
	go func() {
		ended <- e.Lead(context.Background(), func(ctx context.Context) error {
			close(leading)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return errors.New("of no interest")
		})
	}()
	<-leading
	go func() {
		ended <- e.Lead(context.Background(), func(context.Context) error { return errors.New("two leaders") })
	}()
	require.NoError(t, r.Close())
	require.NotErrorIs(t, <-cause, rollout.ErrLost)
	require.ErrorIs(t, <-ended, consul.ErrClosed)
	require.ErrorIs(t, <-ended, consul.ErrClosed)
	require.ErrorIs(t, e.Lead(t.Context(), nil), consul.ErrClosed)
	_, err := e.Leader(t.Context())
	require.ErrorIs(t, err, consul.ErrClosed)
	assert.Empty(t, sessions(t, agent))
	p, _, err := agent.Client().KV().Get(leaderKey, nil)
	require.NoError(t, err)
	assert.Empty(t, p.Session)
	assert.Empty(t, p.Value, "nobody leads")
}

// A key that holds something else is not written over.
func TestElector_KeyOfSomethingElse(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	r := open(t, agent.Config())
	put(t, ruleStore(t, r, leaderKey), setOf("v1"), 0)
	e := elector(t, r)
	_, err := e.Leader(t.Context())
	require.ErrorContains(t, err, "a key of its own")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = e.Lead(ctx, func(context.Context) error { return errors.New("it leads") })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	p, _, err := agent.Client().KV().Get(leaderKey, nil)
	require.NoError(t, err)
	assert.Equal(t, setOf("v1"), string(p.Value))
	assert.Empty(t, p.Session)
}

// Consul's own tools take part: `consul lock` keeps gateways out, and Leader says
// so.
func TestElector_LockOfAnotherTool(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t)
	lock, err := agent.Client().LockKey(leaderKey)
	require.NoError(t, err)
	_, err = lock.Lock(nil)
	require.NoError(t, err)
	l := &election{t: t}
	e := elector(t, open(t, agent.Config()))
	l.stand(e, "a")
	who, err := e.Leader(t.Context())
	require.NoError(t, err)
	assert.Contains(t, who.ID, "session ")
	assert.Empty(t, l.all())
	require.NoError(t, lock.Unlock())
	l.nth(1)
}

func TestElector_BadInput(t *testing.T) {
	r := open(t, nil)
	for _, key := range []string{"", "/a", "a//b", "a/../b", "a\n"} {
		_, err := r.Elector(key)
		require.ErrorContains(t, err, "consul: elector: key", "%q", key)
	}
	for _, d := range []time.Duration{0, -1, 9 * time.Second, 25 * time.Hour} {
		_, err := r.Elector(leaderKey, consul.WithSessionTTL(d))
		require.ErrorContains(t, err, d.String())
	}
	_, err := r.Elector(leaderKey, nil, consul.WithSessionTTL(24*time.Hour), consul.WithCandidate(""))
	require.NoError(t, err)
}
