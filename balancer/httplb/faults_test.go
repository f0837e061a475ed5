package httplb_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry"
)

func TestB1_VersionThatNoInstanceHas(t *testing.T) {
	c := newCluster(t)
	c.up("order", "s1", "")
	c.up("order", "g1", "v2.1.0")
	c.up("order", "b1", "v3.0.0")
	lb := c.balancer(httplb.WithPolicy(subset.Policy{Strict: true}))
	// The deadline is far: a request that waited would end with it.
	ctx, cancel := context.WithTimeout(tagged("version=v9"), 10*time.Second)
	defer cancel()
	_, err := get(ctx, lb, "http://order/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	assert.Equal(t, subset.Missing, unavailable.Reason)
	for _, part := range []string{`service "order"`, `version "v9"`, "registered: stable=1 v2.1.0=1 v3.0.0=1"} {
		assert.ErrorContains(t, err, part)
	}
	assert.Zero(t, c.hit("s1")+c.hit("g1")+c.hit("b1"))
}

// A black hole is found out though every caller gives up before its dial does.
func TestADialThatEndsAfterItsRequestPutsTheInstanceAside(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	hole := c.down("inventory", "g1", "v2")
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == hole {
			// As a dialer with a timeout does; net/http does not end a dial
			// with the request that it was for.
			<-time.After(100 * time.Millisecond)
			return nil, &net.OpError{Op: "dial", Net: network, Err: context.DeadlineExceeded}
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	var seen decisions
	lb := c.balancer(httplb.WithBase(transport), httplb.WithCoolOff(time.Hour, time.Hour), seen.option())
	ask := func() (string, error) {
		ctx, cancel := context.WithTimeout(tagged("version=v2"), 20*time.Millisecond)
		defer cancel()
		return get(ctx, lb, "http://inventory/")
	}
	_, err := ask()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Eventually(t, func() bool { id, err := ask(); return err == nil && id == "s1" }, 5*time.Second, time.Millisecond)
	assert.Equal(t, subset.Unhealthy, seen.last(t).Reason)
}

// The same for an instance that accepts, and says nothing.
func TestAHandshakeThatEndsAfterItsRequestPutsTheInstanceAside(t *testing.T) {
	c := newCluster(t)
	a := newAuthority(t)
	c.register(instance("inventory", "s1", "", a.up(c, "s1", "inventory")))
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	c.register(instance("inventory", "g1", "v2", silent.Addr().String()))
	base := a.base(true)
	base.TLSHandshakeTimeout = 100 * time.Millisecond
	lb := c.balancer(httplb.WithBase(base), httplb.WithCoolOff(time.Hour, time.Hour))
	_, err = get(context.Background(), lb, "https://inventory/")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(tagged("version=v2"), 20*time.Millisecond)
		defer cancel()
		id, err := get(ctx, lb, "https://inventory/")
		return err == nil && id == "s1"
	}, 5*time.Second, time.Millisecond)
}

// What a caller did not wait for went to an instance all the same, and a version
// that answers too late must show.
func TestARequestThatTimesOutIsADecision(t *testing.T) {
	c := newCluster(t)
	c.handler = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	c.up("inventory", "g1", "v2")
	var seen decisions
	lb := c.balancer(seen.option())
	ctx, cancel := context.WithTimeout(tagged("version=v2"), 200*time.Millisecond)
	defer cancel()
	_, err := get(ctx, lb, "http://inventory/")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, 1, c.hit("g1"))
	got := seen.last(t)
	assert.Equal(t, subset.Matched, got.Outcome)
	assert.Equal(t, "v2", got.Served)
	assert.Equal(t, 1, got.Attempts)
}

// A registry that does not order registrations leaves it to health, as for gRPC.
func TestOfTwoUnorderedInstancesWithOneAddressTheHealthyOneCounts(t *testing.T) {
	c := newCluster(t)
	address := closedPort(t)
	listenAt(t, address, c.serve("g"))
	healthy := instance("inventory", "a", "v2", address)
	sick := instance("inventory", "z", "v3", address)
	sick.Status = registry.StatusCritical
	answers := make(chan answer, 1)
	answers <- answer{set: []registry.Instance{healthy, sick}}
	lb := newBalancer(t, scripted{answers: answers}, httplb.WithPolicy(subset.Policy{Strict: true}))
	id, err := get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "g", id)
}

// Hosts may come from outside: one line for each of ten thousand names would be
// theirs to write.
func TestTheLogOfADiscoveryThatIsDownIsBounded(t *testing.T) {
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	disc := watchFunc(func(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
		return func(yield func([]registry.Instance, error) bool) {
			if yield(nil, errors.New("consul: connection refused")) {
				<-ctx.Done()
			}
		}
	})
	lb := newBalancer(t, disc, httplb.WithLogger(logger))
	for i := range 3000 {
		_, err := get(context.Background(), lb, fmt.Sprintf("http://host%d/", i))
		require.ErrorContains(t, err, "connection refused")
	}
	mu.Lock()
	defer mu.Unlock()
	assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 100)
	assert.Contains(t, log.String(), "host0")
}

type writer func([]byte) (int, error)

func (f writer) Write(p []byte) (int, error) { return f(p) }
