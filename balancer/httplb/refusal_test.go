package httplb_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
)

const refused = "421 not here"

// refuse has the instances of ids refuse what comes, as instances of service do.
func (c *cluster) refuse(service string, ids ...string) {
	c.handler = func(w http.ResponseWriter, r *http.Request) {
		for _, id := range ids {
			if w.Header().Get("Instance") == id {
				w.Header().Set("X-Gray-Misrouted", service)
				w.WriteHeader(http.StatusMisdirectedRequest)
				_, _ = io.WriteString(w, refused)
				return
			}
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}
}

// post sends a request and returns its status, the instance and the body.
func post(t testing.TB, ctx context.Context, rt http.RoundTripper, body io.Reader) (status int, id, text string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://order/", body)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Same(t, req, resp.Request)
	assert.NotContains(t, resp.Header, "X-Gray-Misrouted", "a handler would hand it on")
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header.Get("Instance"), string(got)
}

func TestRefusalsGoElsewhereOnce(t *testing.T) {
	for name, c := range map[string]struct {
		instances map[string]string // id to version
		refuse    []string
		policy    subset.Policy
		status    int
		served    string // version
		outcome   subset.Outcome
		reason    subset.Reason
		tries     int
	}{
		"the same version first":    {map[string]string{"g1": "v2", "g2": "v2", "s1": ""}, []string{"g1"}, subset.Policy{}, 200, "v2", subset.Matched, "", 2},
		"then what the policy says": {map[string]string{"g1": "v2", "s1": ""}, []string{"g1"}, subset.Policy{}, 200, "", subset.FallbackStable, subset.Unhealthy, 2},
		"never what it forbids":     {map[string]string{"g1": "v2", "s1": "", "b1": "v3"}, []string{"g1"}, subset.Policy{Strict: true}, 421, "v2", subset.Matched, "", 1},
		"nobody else":               {map[string]string{"g1": "v2"}, []string{"g1"}, subset.Policy{}, 421, "v2", subset.Matched, "", 1},
		"any":                       {map[string]string{"g1": "v2", "b1": "v3", "b2": "v4"}, []string{"g1"}, subset.Policy{Fallback: []string{"any"}}, 200, "*", subset.FallbackAny, subset.Unhealthy, 2},
		"once":                      {map[string]string{"g1": "v2", "g2": "v2", "g3": "v2"}, []string{"g1", "g2", "g3"}, subset.Policy{}, 421, "v2", subset.Matched, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			cl := newCluster(t)
			cl.refuse("order", c.refuse...)
			for id, version := range c.instances {
				cl.up("order", id, version)
			}
			var seen decisions
			lb := cl.balancer(httplb.WithPolicy(c.policy), seen.option())
			for range 12 {
				before := 0
				for id := range c.instances {
					before += cl.hit(id)
				}
				refusals := 0
				for _, id := range c.refuse {
					refusals -= cl.hit(id)
				}
				status, id, text := post(t, tagged("version=v2"), lb, strings.NewReader("body"))
				assert.Equal(t, c.status, status)
				after := -before
				for id := range c.instances {
					after += cl.hit(id)
				}
				for _, id := range c.refuse {
					refusals += cl.hit(id)
				}
				d := seen.last(t)
				if status == http.StatusOK && refusals == 0 { // the first try found another one
					assert.Equal(t, 1, after)
					assert.False(t, d.Refused)
					continue
				}
				assert.Equal(t, c.tries, after)
				assert.Equal(t, c.tries, d.Attempts)
				assert.True(t, d.Refused)
				assert.Equal(t, id, d.Instance.ID)
				assert.Equal(t, c.outcome, d.Outcome)
				assert.Equal(t, c.reason, d.Reason)
				if c.served != "*" {
					assert.Equal(t, c.served, d.Served)
				}
				want := "body"
				if status != http.StatusOK {
					want = refused
				}
				assert.Equal(t, want, text)
			}
		})
	}
}

// A refusal is believed of the service that was asked, and of its instances alone.
func TestRefusalsOfOthersAreAnswers(t *testing.T) {
	for _, marker := range []string{"", "payment", "order/", "Order"} {
		cl := newCluster(t)
		cl.refuse(marker, "g1")
		cl.up("order", "g1", "v2")
		cl.up("order", "s1", "")
		status, id, text := post(t, tagged("version=v2"), cl.balancer(), strings.NewReader("body"))
		assert.Equal(t, http.StatusMisdirectedRequest, status, marker)
		assert.Equal(t, "g1", id)
		assert.Equal(t, refused, text)
		assert.Zero(t, cl.hit("s1"))
	}
}

// The instance stays in the choice of others, and a body that has been sent is gone.
func TestRefusalsPutNobodyAside(t *testing.T) {
	cl := newCluster(t)
	cl.refuse("order", "g1")
	cl.up("order", "g1", "v2")
	cl.up("order", "s1", "")
	lb := cl.balancer()
	for i := range 5 {
		status, _, _ := post(t, tagged("version=v2"), lb, nil)
		assert.Equal(t, http.StatusOK, status)
		assert.Equal(t, i+1, cl.hit("g1"))
	}
	status, _, text := post(t, tagged("version=v2"), lb, newTrackedBody(strings.Repeat("x", 1<<20)))
	assert.Equal(t, http.StatusMisdirectedRequest, status)
	assert.Equal(t, refused, text)
	assert.Equal(t, 5, cl.hit("s1"))

	// Where the other one is down, the refusal is what is left.
	cl = newCluster(t)
	cl.refuse("order", "g1")
	cl.up("order", "g1", "v2")
	cl.down("order", "s1", "")
	status, _, text = post(t, tagged("version=v2"), cl.balancer(), strings.NewReader("body"))
	assert.Equal(t, http.StatusMisdirectedRequest, status)
	assert.Equal(t, refused, text)
}

// A long answer is no refusal to be kept: it goes on as it is, whole.
func TestLongRefusalsGoOn(t *testing.T) {
	cl := newCluster(t)
	long := strings.Repeat("no", 10_000)
	cl.handler = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Gray-Misrouted", "order")
		w.WriteHeader(http.StatusMisdirectedRequest)
		_, _ = io.WriteString(w, long)
	}
	cl.up("order", "s1", "")
	cl.up("order", "s2", "")
	_, _, text := post(t, graytag.NewContext(context.Background(), graytag.Tag{}), cl.balancer(), nil)
	assert.Equal(t, long, text)
	assert.Equal(t, 1, cl.hit("s1")+cl.hit("s2"))
}

// A request that its owner gives away is sent anew as any other.
func TestRefusedRequestsThatAreOwned(t *testing.T) {
	cl := newCluster(t)
	cl.refuse("order", "g1")
	cl.up("order", "g1", "v2")
	cl.up("order", "s1", "")
	req, err := http.NewRequestWithContext(tagged("version=v2"), http.MethodPost, "http://order/", strings.NewReader("body"))
	require.NoError(t, err)
	resp, err := cl.balancer().RoundTripOwned(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	assert.Equal(t, "body", string(text))
	assert.Equal(t, "s1", resp.Header.Get("Instance"))
	assert.Equal(t, "order", resp.Header.Get("Host-Seen"))
}

// A body that exists once, as those that a proxy hands on, is sent again as long as all
// that was read of it is kept.
func TestBodiesThatExistOnceGoElsewhere(t *testing.T) {
	cl := newCluster(t)
	cl.refuse("order", "s1")
	cl.up("order", "s1", "")
	cl.up("order", "s2", "")
	lb := cl.balancer()
	for size, lost := range map[int]bool{0: false, 1: false, 4096: false, maxKept: false, maxKept + 1: true, 1 << 20: true} {
		statuses := map[int]int{}
		for range 8 {
			sent := strings.Repeat("x", size)
			body := newTrackedBody(sent)
			status, _, text := post(t, graytag.NewContext(context.Background(), graytag.Tag{}), lb, body)
			if statuses[status]++; status == http.StatusOK {
				require.True(t, sent == text)
			}
			require.Eventually(t, func() bool { return body.closed.Load() == 1 }, 5*time.Second, time.Millisecond)
		}
		assert.Equal(t, lost, statuses[http.StatusMisdirectedRequest] > 0, "%d bytes", size)
	}
}

// A transport may read the body of the request while the refusal arrives: every byte
// goes elsewhere.
func TestBodiesGoElsewhereWhole(t *testing.T) {
	cl := newCluster(t)
	cl.up("order", "s1", "")
	cl.up("order", "s2", "")
	for range 200 {
		read, write := io.Pipe()
		sent := strings.Repeat("0123456789", 50)
		begun := make(chan struct{})
		var first sync.WaitGroup
		tries := 0
		lb := cl.balancer(httplb.WithBase(roundTripper(func(r *http.Request) (*http.Response, error) {
			if tries++; tries == 2 {
				got, err := io.ReadAll(r.Body)
				assert.Equal(t, sent, string(got))
				_ = r.Body.Close()
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, err
			}
			first.Go(func() {
				_, err := io.ReadFull(r.Body, make([]byte, 10))
				close(begun)
				for err == nil {
					_, err = r.Body.Read(make([]byte, 10))
				}
				_ = r.Body.Close()
			})
			<-begun
			return &http.Response{StatusCode: 421, Header: http.Header{"X-Gray-Misrouted": {"order"}}, Body: http.NoBody}, nil
		})))
		go func() {
			for i := 0; i < len(sent); i += 10 {
				_, _ = io.WriteString(write, sent[i:i+10])
			}
			_ = write.Close()
		}()
		status, _, _ := post(t, context.Background(), lb, read)
		assert.Equal(t, http.StatusOK, status)
		first.Wait()
	}
}

const maxKept = 16 << 10
