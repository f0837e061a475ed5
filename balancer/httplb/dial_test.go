package httplb_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
)

// dialCounter counts dials per address over a real dialer.
type dialCounter struct {
	mu sync.Mutex
	n  map[string]int
}

func (d *dialCounter) transport() *http.Transport {
	d.n = map[string]int{}
	var dialer net.Dialer
	return &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		d.mu.Lock()
		d.n[address]++
		d.mu.Unlock()
		return dialer.DialContext(ctx, network, address)
	}}
}

func (d *dialCounter) count(address string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n[address]
}

func TestDialFailureTriesTheNextOfTheSameVersion(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	c.up("inventory", "g1", "v2")
	dead := []string{c.down("inventory", "g2", "v2"), c.down("inventory", "g3", "v2")}
	var dials dialCounter
	var seen decisions
	lb := c.balancer(httplb.WithCoolOff(time.Hour, time.Hour), httplb.WithBase(dials.transport()), seen.option())
	for range 50 {
		id, err := do(tagged("version=v2"), lb, http.MethodPost, "http://inventory/", strings.NewReader("x"))
		require.NoError(t, err)
		assert.Equal(t, "g1", id)
		assert.Equal(t, subset.Matched, seen.last(t).Outcome)
	}
	assert.Zero(t, c.hit("s1"))
	for _, address := range dead {
		assert.Equal(t, 1, dials.count(address), "put aside after one dial")
	}
}

func TestManyDeadInstancesDoNotFailARequest(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	for i := range 40 {
		c.down("inventory", "g"+string(rune('A'+i)), "v2")
	}
	var seen decisions
	lb := c.balancer(httplb.WithCoolOff(time.Hour, time.Hour), seen.option())
	id, err := get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "s1", id)
	d := seen.last(t)
	assert.Equal(t, subset.FallbackStable, d.Outcome)
	assert.Equal(t, subset.Unhealthy, d.Reason)
	assert.Equal(t, 41, d.Attempts)
}

func TestAllAsideTheOneDueFirstIsTried(t *testing.T) {
	c := newCluster(t)
	address := c.down("inventory", "s1", "")
	other := c.down("inventory", "s2", "")
	var dials dialCounter
	lb := c.balancer(httplb.WithCoolOff(time.Hour, time.Hour), httplb.WithBase(dials.transport()))
	ctx := context.Background()
	_, err := get(ctx, lb, "http://inventory/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.ErrorIs(t, err, syscall.ECONNREFUSED, "the cause is told")
	assert.Equal(t, subset.Unhealthy, unavailable.Reason)
	assert.Equal(t, 1, dials.count(address))
	assert.Equal(t, 1, dials.count(other))

	for range 4 {
		_, err = get(ctx, lb, "http://inventory/")
		require.ErrorAs(t, err, &unavailable)
	}
	assert.Equal(t, 3, dials.count(address), "in turn: who failed last is due last")
	assert.Equal(t, 3, dials.count(other))

	listenAt(t, address, c.serve("s1"))
	listenAt(t, other, c.serve("s2"))
	for range 10 {
		_, err = get(ctx, lb, "http://inventory/")
		require.NoError(t, err, "an hour of cool-off does not keep the only ones out")
	}
}

func TestLastResortCoversTheFallback(t *testing.T) {
	c := newCluster(t)
	c.down("inventory", "g1", "v2")
	c.up("inventory", "h1", "v3")
	stable := c.down("inventory", "s1", "")
	var seen decisions
	lb := c.balancer(httplb.WithCoolOff(time.Hour, time.Hour), seen.option())
	ctx := tagged("version=v2")
	_, err := get(ctx, lb, "http://inventory/")
	require.Error(t, err)
	listenAt(t, stable, c.serve("s1"))
	require.Eventually(t, func() bool {
		id, err := get(ctx, lb, "http://inventory/")
		return err == nil && id == "s1"
	}, 5*time.Second, time.Millisecond)
	d := seen.last(t)
	assert.Equal(t, subset.FallbackStable, d.Outcome)
	assert.Equal(t, subset.Unhealthy, d.Reason)
	assert.Zero(t, c.hit("h1"), "nor does it reach further than the policy")
}

func TestInstanceComesBackAfterItsCoolOff(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	address := c.down("inventory", "g1", "v2")
	var dials dialCounter
	lb := c.balancer(httplb.WithCoolOff(time.Millisecond, 4*time.Millisecond), httplb.WithBase(dials.transport()))
	id, err := get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "s1", id)

	before := c.hit("s1")
	require.Eventually(t, func() bool { return dials.count(address) > 5 }, 10*time.Second, time.Millisecond,
		"the balancer itself finds out whether it is back")
	assert.Equal(t, before, c.hit("s1"))
	for range 10 {
		id, err = get(tagged("version=v2"), lb, "http://inventory/")
		require.NoError(t, err)
		assert.Equal(t, "s1", id)
	}
	listenAt(t, address, c.serve("g1"))
	require.Eventually(t, func() bool {
		id, err := get(tagged("version=v2"), lb, "http://inventory/")
		return err == nil && id == "g1"
	}, 10*time.Second, time.Millisecond)
}

func TestNewRegistrationAtAnAddressIsAFreshStart(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	address := c.down("inventory", "g1", "v2")
	lb := c.balancer(httplb.WithCoolOff(time.Hour, time.Hour))
	id, err := get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	require.Equal(t, "s1", id)
	listenAt(t, address, c.serve("g1"))
	c.register(instance("inventory", "g1", "v2", address))
	require.Eventually(t, func() bool {
		id, err := get(tagged("version=v2"), lb, "http://inventory/")
		return err == nil && id == "g1"
	}, 10*time.Second, time.Millisecond)
}

func TestCoolOffWithABaseThatCannotBeProbed(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	address := c.down("inventory", "g1", "v2")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	var sent atomic.Int32
	lb := c.balancer(httplb.WithCoolOff(time.Millisecond, time.Millisecond), httplb.WithBase(roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Host == address {
			sent.Add(1)
		}
		return transport.RoundTrip(r)
	})))
	require.Eventually(t, func() bool {
		id, err := get(tagged("version=v2"), lb, "http://inventory/")
		return err == nil && id == "s1" && sent.Load() > 2
	}, 10*time.Second, time.Millisecond)
	listenAt(t, address, c.serve("g1"))
	require.Eventually(t, func() bool {
		id, err := get(tagged("version=v2"), lb, "http://inventory/")
		return err == nil && id == "g1"
	}, 10*time.Second, time.Millisecond)
}

func TestABodyThatExistsOnceSurvivesADialFailure(t *testing.T) {
	for range 10 { // whichever is chosen first
		c := newCluster(t)
		c.down("inventory", "s1", "")
		c.down("inventory", "s2", "")
		got := make(chan string, 1)
		c.handler = func(_ http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got <- string(b)
		}
		c.up("inventory", "s3", "")
		lb := c.balancer()
		body := newTrackedBody("once only")
		id, err := do(context.Background(), lb, http.MethodPost, "http://inventory/", body)
		require.NoError(t, err)
		assert.Equal(t, "s3", id)
		assert.Equal(t, "once only", <-got)
		require.Eventually(t, func() bool { return body.closed.Load() == 1 }, time.Second, time.Millisecond)
	}
}

func TestBodyIsClosedOnEveryPath(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	c.down("dead", "d1", "")
	lb := c.balancer(httplb.WithPolicyFor("inventory", subset.Policy{Strict: true}))
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	closed, err := httplb.New(c.reg)
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	https := newBalancer(t, c.reg, httplb.WithBase(roundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("never") })))

	for name, try := range map[string]func(io.Reader) error{
		"unavailable": func(b io.Reader) error {
			_, err := do(tagged("version=v9"), lb, http.MethodPost, "http://inventory/", b)
			return err
		},
		"nobody registered": func(b io.Reader) error {
			_, err := do(context.Background(), lb, http.MethodPost, "http://nobody/", b)
			return err
		},
		"all down": func(b io.Reader) error {
			_, err := do(context.Background(), lb, http.MethodPost, "http://dead/", b)
			return err
		},
		"canceled": func(b io.Reader) error {
			_, err := do(canceled, lb, http.MethodPost, "http://inventory/", b)
			return err
		},
		"closed balancer": func(b io.Reader) error {
			_, err := do(context.Background(), closed, http.MethodPost, "http://inventory/", b)
			require.ErrorIs(t, err, httplb.ErrClosed)
			return err
		},
		"https over a foreign base": func(b io.Reader) error {
			_, err := do(context.Background(), https, http.MethodPost, "https://inventory/", b)
			return err
		},
		"bad header": func(b io.Reader) error {
			req, err := http.NewRequest(http.MethodPost, "http://inventory/", b)
			require.NoError(t, err)
			req.Header["X"] = []string{"a\r\nb"}
			_, err = lb.RoundTrip(req)
			return err
		},
	} {
		for kind, body := range map[string]*trackedBody{"once": newTrackedBody("x")} {
			require.Error(t, try(body), name)
			require.Eventually(t, func() bool { return body.closed.Load() == 1 }, time.Second, time.Millisecond, "%s: %s", name, kind)
		}
	}
	id, err := get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err, "a bad request put nobody aside")
	assert.Equal(t, "s1", id)
}

func TestCancelEndsAtOnceAndPutsNobodyAside(t *testing.T) {
	c := newCluster(t)
	entered := make(chan struct{}, 1)
	c.handler = func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			entered <- struct{}{}
			<-r.Context().Done()
		}
	}
	c.up("inventory", "g1", "v2")
	c.up("inventory", "s1", "")
	stuck := make(chan struct{})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		select {
		case <-stuck:
			return (&net.Dialer{}).DialContext(ctx, network, address)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	var seen decisions
	lb := c.balancer(httplb.WithBase(transport), httplb.WithCoolOff(time.Hour, time.Hour), seen.option())

	ctx, cancel := context.WithTimeout(tagged("version=v2"), 20*time.Millisecond)
	defer cancel()
	_, err := get(ctx, lb, "http://inventory/")
	require.ErrorIs(t, err, context.DeadlineExceeded, "while dialling")
	close(stuck)

	ctx, cancel = context.WithCancel(tagged("version=v2"))
	go func() { <-entered; cancel() }()
	_, err = get(ctx, lb, "http://inventory/hang")
	require.ErrorIs(t, err, context.Canceled, "while waiting for an answer")
	assert.Equal(t, 1, c.hit("g1"), "not sent again")

	id, err := get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "g1", id)
	require.Len(t, seen.all, 3, "what was decided is seen, whatever became of the request")
	for _, d := range seen.all {
		assert.Equal(t, subset.Matched, d.Outcome)
		assert.Equal(t, "g1", d.Instance.ID)
	}
}

func TestARequestWhoseBodyIsSpentWasDecidedToo(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "g1", "v2")
	c.up("inventory", "g2", "v2")
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	spends := roundTripper(func(r *http.Request) (*http.Response, error) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = r.Body.Close()
		return nil, refused
	})
	noBody := errors.New("no second body")
	for want, getBody := range map[error]func() (io.ReadCloser, error){
		refused: nil, // the body exists once
		noBody:  func() (io.ReadCloser, error) { return nil, noBody },
	} {
		var seen decisions
		lb := c.balancer(httplb.WithBase(spends), httplb.WithCoolOff(time.Hour, time.Hour), seen.option())
		req, err := http.NewRequestWithContext(tagged("version=v2"), http.MethodPost, "http://inventory/", newTrackedBody("x"))
		require.NoError(t, err)
		req.GetBody = getBody
		resp, err := lb.RoundTrip(req)
		require.ErrorIs(t, err, want)
		require.Nil(t, resp)
		require.Len(t, seen.all, 1)
		assert.Equal(t, "v2", seen.all[0].Served)
	}
}

// cut answers by closing the connection, n times.
func cut(n int32) http.HandlerFunc {
	var left atomic.Int32
	left.Store(n)
	return func(w http.ResponseWriter, r *http.Request) {
		if left.Add(-1) < 0 {
			_, _ = io.Copy(w, r.Body)
			return
		}
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = conn.Close()
		}
	}
}

func TestOnlyIdempotentAndReplayableRequestsAreSentAgain(t *testing.T) {
	key := http.Header{"Idempotency-Key": {"1"}}
	for name, c := range map[string]struct {
		method string
		header http.Header
		body   func() io.Reader
		cuts   int32
		opts   []httplb.Option
		ok     bool
		hits   int
	}{
		"GET":                         {method: http.MethodGet, cuts: 2, ok: true, hits: 3},
		"GET, bounded":                {method: http.MethodGet, cuts: 9, hits: 3},
		"GET, never":                  {method: http.MethodGet, cuts: 9, hits: 1, opts: []httplb.Option{httplb.WithRetries(0)}},
		"PUT with a body":             {method: http.MethodPut, cuts: 1, ok: true, hits: 2, body: func() io.Reader { return strings.NewReader("x") }},
		"DELETE":                      {method: http.MethodDelete, cuts: 1, ok: true, hits: 2},
		"PUT with a body once only":   {method: http.MethodPut, cuts: 1, hits: 1, body: func() io.Reader { return newTrackedBody("x") }},
		"POST":                        {method: http.MethodPost, cuts: 1, hits: 1, body: func() io.Reader { return strings.NewReader("x") }},
		"PATCH":                       {method: http.MethodPatch, cuts: 1, hits: 1},
		"POST with an idempotent key": {method: http.MethodPost, header: key, cuts: 1, ok: true, hits: 2, body: func() io.Reader { return bytes.NewReader([]byte("x")) }},
		"POST key, body once":         {method: http.MethodPost, header: key, cuts: 1, hits: 1, body: func() io.Reader { return newTrackedBody("x") }},
	} {
		t.Run(name, func(t *testing.T) {
			cl := newCluster(t)
			cl.handler = cut(c.cuts)
			cl.up("inventory", "a", "")
			cl.up("inventory", "b", "")
			// A connection that was never used before: net/http sends nothing
			// again by itself.
			lb := cl.balancer(append(c.opts, httplb.WithBase(&http.Transport{DisableKeepAlives: true}))...)
			var body io.Reader
			if c.body != nil {
				body = c.body()
			}
			req, err := http.NewRequest(c.method, "http://inventory/", body)
			require.NoError(t, err)
			for k, v := range c.header {
				req.Header[k] = v
			}
			resp, err := lb.RoundTrip(req)
			if c.ok {
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				if c.body != nil {
					assert.Equal(t, "x", string(got))
				}
			} else {
				require.Error(t, err)
			}
			assert.Equal(t, c.hits, cl.hit("a")+cl.hit("b"))
			if c.hits > 1 {
				assert.Positive(t, cl.hit("a"), "another instance, where there is one")
				assert.Positive(t, cl.hit("b"))
			}
		})
	}
}

func TestTimeoutIsNotSentAgain(t *testing.T) {
	c := newCluster(t)
	c.handler = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	c.up("inventory", "a", "")
	lb := c.balancer(httplb.WithBase(&http.Transport{ResponseHeaderTimeout: 20 * time.Millisecond}))
	_, err := get(context.Background(), lb, "http://inventory/")
	require.ErrorContains(t, err, "timeout")
	assert.Equal(t, 1, c.hit("a"))
}

func TestAnErrorAnswerIsAnAnswer(t *testing.T) {
	c := newCluster(t)
	c.handler = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	c.up("inventory", "a", "")
	lb := c.balancer()
	_, err := get(context.Background(), lb, "http://inventory/")
	require.EqualError(t, err, "status 503 Service Unavailable")
	assert.Equal(t, 1, c.hit("a"))
}

func TestUpgradePassesThrough(t *testing.T) {
	c := newCluster(t)
	c.handler = func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("echo " + line)
		_ = rw.Flush()
	}
	c.up("chat", "a", "")
	lb := c.balancer()
	req, err := http.NewRequest(http.MethodGet, "http://chat/", nil)
	require.NoError(t, err)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "echo")
	resp, err := lb.RoundTrip(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	defer conn.Close()
	_, err = io.WriteString(conn, "hello\n")
	require.NoError(t, err)
	got, err := io.ReadAll(conn)
	require.NoError(t, err)
	assert.Equal(t, "echo hello\n", string(got))
}
