package rollout_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// hook is a server that answers with some statuses in turn, the last one for ever.
type hook struct {
	*httptest.Server
	mu       sync.Mutex // guards what follows
	statuses []int
	header   http.Header // of the answers
	seen     []*http.Request
	bodies   []string
}

func newHook(t *testing.T, statuses ...int) *hook {
	t.Helper()
	h := &hook{statuses: statuses, header: http.Header{}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, r)
	h.bodies = append(h.bodies, string(body))
	status := h.statuses[min(len(h.seen), len(h.statuses))-1]
	if status == 0 {
		panic(http.ErrAbortHandler)
	}
	for k, v := range h.header {
		w.Header()[k] = v
	}
	w.WriteHeader(status)
}

var quick = rollout.WithWebhookBackoff(2*time.Millisecond, 10*time.Millisecond)

func webhook(t *testing.T, url string, opts ...rollout.WebhookOption) *rollout.Webhook {
	t.Helper()
	w, err := rollout.NewWebhook(url, append([]rollout.WebhookOption{quick, nil}, opts...)...)
	require.NoError(t, err)
	return w
}

var rolledBack = rollout.Event{
	Kind: rollout.KindRolledBack, Plan: "lane", Percent: rule.MustPercent("0"), Time: t0.Add(time.Hour), Who: "gw-1", Why: "v2 <fails>", Revision: 42,
	From:   rollout.State{Phase: rollout.Running, Stage: 2, Since: t0},
	To:     rollout.State{Phase: rollout.RolledBack, Stage: 2, Since: t0.Add(time.Hour)},
	Report: &rollout.Report{Verdict: rollout.VerdictFail, Time: t0.Add(time.Hour), Checks: []rollout.Check{{Target: rollout.Target{Service: "order", Version: "v2"}, Name: rollout.CheckErrors, Verdict: rollout.VerdictFail, Why: "v2 <fails>", Gray: 0.1, Stable: 0.001}}},
}

func TestWebhookTriesUntilItIsTaken(t *testing.T) {
	h := newHook(t, 500, 0, 503, 429, 200)
	w := webhook(t, h.URL+"/hooks/secret?key=hidden", rollout.WithBearer("t0ken"), rollout.WithHeader("X-Team", "shop"))
	require.NoError(t, w.Alert(t.Context(), rolledBack))
	require.Len(t, h.seen, 5)
	for i, r := range h.seen {
		assert.Equal(t, http.MethodPost, r.Method)
		assert.Equal(t, "/hooks/secret?key=hidden", r.URL.RequestURI())
		assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
		assert.Equal(t, "Bearer t0ken", r.Header.Get("Authorization"))
		assert.Equal(t, "shop", r.Header.Get("X-Team"))
		assert.Equal(t, `"`+rolledBack.Key()+`"`, r.Header.Get("Idempotency-Key"), "the same each time")
		assert.Equal(t, h.bodies[0], h.bodies[i])
	}
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(h.bodies[0]), &got))
	from := got["from"].(map[string]any)
	report := got["report"].(map[string]any)
	assert.Equal(t, "fail", report["verdict"])
	assert.Equal(t, "running", from["phase"])
	assert.Equal(t, map[string]any{"service": "order", "version": "v2"}, report["checks"].([]any)[0].(map[string]any)["target"])
	delete(got, "from")
	delete(got, "to")
	delete(got, "report")
	assert.Equal(t, map[string]any{
		"key": rolledBack.Key(), "text": "plan lane is rolled back, its rules are off", "breach": true,
		"kind": "rolled_back", "plan": "lane", "percent": 0.0, "time": "2026-12-01T09:00:00Z",
		"who": "gw-1", "why": "v2 <fails>", "revision": 42.0,
	}, got)
	assert.Contains(t, h.bodies[0], "<fails>", "as it is")
}

func TestWebhookGivesUp(t *testing.T) {
	for status, attempts := range map[int]int{400: 1, 401: 1, 404: 1, 302: 1, 500: 3} {
		h := newHook(t, status)
		h.header.Set("Location", "/elsewhere")
		err := webhook(t, h.URL+"/secret", rollout.WithAttempts(3), rollout.WithBearer("t0ken")).Alert(t.Context(), rolledBack)
		require.Error(t, err)
		assert.Len(t, h.seen, attempts, "status %d", status)
		assert.Contains(t, err.Error(), h.URL)
		assert.NotContains(t, err.Error(), "secret")
		assert.NotContains(t, err.Error(), "t0ken")
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, lis.Close())
	err = webhook(t, "http://"+lis.Addr().String()+"/secret", rollout.WithAttempts(2)).Alert(t.Context(), rolledBack)
	require.ErrorContains(t, err, "2 attempts")
	assert.NotContains(t, err.Error(), "secret")
}

func TestWebhookIsBounded(t *testing.T) {
	hang := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // or the end of the client is not seen
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(hang)
	err := webhook(t, srv.URL, rollout.WithAttemptTimeout(20*time.Millisecond), rollout.WithAttempts(2)).Alert(t.Context(), rolledBack)
	assert.ErrorIs(t, err, context.DeadlineExceeded, "each attempt")

	h := newHook(t, 503)
	h.header.Set("Retry-After", "3600")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = webhook(t, h.URL).Alert(ctx, rolledBack)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "status 503")
	assert.Len(t, h.seen, 1, "it waits as it was asked to")
}

func TestWebhook_BadInput(t *testing.T) {
	for _, url := range []string{"", "hooks.example.com", "ftp://hooks.example.com/secret", "http://", "http://[::1/secret", "http://%zz/secret"} {
		_, err := rollout.NewWebhook(url)
		require.Error(t, err, url)
		assert.NotContains(t, err.Error(), "secret")
	}
	for _, o := range []rollout.WebhookOption{
		rollout.WithAttempts(0), rollout.WithAttempts(21), rollout.WithAttemptTimeout(0),
		rollout.WithHeader("", "x"), rollout.WithHeader("A B", "x"), rollout.WithHeader("A", "x\r\nB: y"), rollout.WithBearer("x\ny"),
		rollout.WithHeader("Ä", "x"), rollout.WithHeader("A", "x\x01"),
	} {
		_, err := rollout.NewWebhook("http://hooks.example.com", o)
		assert.Error(t, err)
		assert.False(t, strings.Contains(err.Error(), "x\r\n"))
	}
}

// One alert arrives though the first tries fail, and though a controller rolls back
// again and again.
func TestControllerToAWebhook(t *testing.T) {
	h := newHook(t, 500, 500, 200)
	s := startedLane(t, "")
	c, err := rollout.NewController(s, nil, rollout.WithAlerter(webhook(t, h.URL)))
	require.NoError(t, err)
	for range 3 {
		_, err = c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, c.Flush(ctx))
	assert.Len(t, h.seen, 3)
	assert.Zero(t, c.Status(t.Context()).AlertsFailed)
}
