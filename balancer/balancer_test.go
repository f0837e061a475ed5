package balancer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	graylane "github.com/graylane/graylane/balancer"
	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
)

// pick returns the address that the current picker chooses.
func (c *channel) pick(tag string) (string, error) {
	res, err := c.picker().Pick(balancer.PickInfo{Ctx: scope(tag)})
	if err != nil {
		return "", err
	}
	if res.Done != nil {
		res.Done(balancer.DoneInfo{})
	}
	return res.SubConn.(*subConn).address, nil
}

func (c *channel) counts(t *testing.T, n int, tag string) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range n {
		address, err := c.pick(tag)
		require.NoError(t, err)
		got[address]++
	}
	return got
}

func TestRoundRobinIsStrict(t *testing.T) {
	c := newChannel(t, graylane.Name, "{}", endpoints(35, fiveVersions...))
	for _, tag := range []string{"", "version=v2.1.0", "version=v9"} {
		got := c.counts(t, 700, tag)
		assert.Len(t, got, 7, tag)
		for address, n := range got {
			assert.Equal(t, 100, n, "%s %s", tag, address)
		}
	}
}

type numbered struct {
	balancer.Picker
	number int
}

func TestRingIsModulo(t *testing.T) {
	for _, size := range []int{1, 2, 3, 5, 7, 10, 64, 100, 641, 1000, 4097} {
		instances := make([]balancer.Picker, size)
		for i := range instances {
			instances[i] = numbered{number: i}
		}
		ns := []uint32{0, 1, math.MaxUint32, math.MaxUint32 - 1, 1 << 31}
		for range 1000 {
			ns = append(ns, rand.Uint32())
		}
		for _, n := range ns {
			require.Equal(t, int(n%uint32(size)), graylane.RingAt(instances, n).(numbered).number, "%d modulo %d", n, size)
		}
	}
}

func TestAnyIsInProportionToInstances(t *testing.T) {
	all := append(endpoints(8, "v2"), endpoint("10.9.0.1:80", "v3"), endpoint("10.9.0.2:80", "v3"))
	for _, child := range []string{"round_robin", "least_request_experimental"} {
		c := newChannel(t, graylane.Name, fmt.Sprintf(`{"fallback":["any"],"childPolicy":[{%q:{}}]}`, child), all)
		got := c.counts(t, 10_000, "version=v9")
		assert.Len(t, got, 10, child)
		assert.InDelta(t, 2000, got["10.9.0.1:80"]+got["10.9.0.2:80"], 300, child)
	}
}

func TestUnknownVersionsShareTheTable(t *testing.T) {
	c := newChannel(t, graylane.Name, `{"foldCase":true}`, endpoints(10, "", "V2"))
	for _, v := range []string{"v2", "V2"} {
		got := c.counts(t, 10, "version="+v)
		assert.Len(t, got, 5)
		assert.NotContains(t, got, "10.0.0.0:80")
	}
}

func TestEqualStateRebuildsNothing(t *testing.T) {
	c := newChannel(t, graylane.Name, "{}", endpoints(10, "", "v2"))
	before := c.updates
	c.update(t, endpoints(10, "", "v2"))
	assert.Equal(t, before, c.updates)
	assert.Len(t, c.created, 10)

	// A change of one version leaves the other alone.
	next := endpoints(10, "", "v2")
	next[1] = endpoint("10.9.0.1:80", "v2")
	c.update(t, next)
	assert.Len(t, c.created, 11)
	assert.Contains(t, c.counts(t, 10, "version=v2"), "10.9.0.1:80")
}

func TestEmptyStateIsApplied(t *testing.T) {
	c := newChannel(t, graylane.Name, "{}", endpoints(4, "", "v2"))
	c.update(t, nil)
	_, err := c.pick("version=v2")
	require.Error(t, err)
	_, isStatus := status.FromError(err)
	assert.False(t, isStatus, "RPCs that wait for ready may wait: %v", err)
	assert.Contains(t, err.Error(), `service "inventory"`)
	assert.Contains(t, err.Error(), "registered: none")
	assert.Equal(t, connectivity.TransientFailure, c.state)

	c.update(t, endpoints(4, "", "v2"))
	assert.Len(t, c.counts(t, 10, "version=v2"), 2)
}

func TestResolverErrors(t *testing.T) {
	c := newChannel(t, graylane.Name, "{}", endpoints(2, "", "v2"))
	c.balancer.ResolverError(errors.New("consul: connection refused"))
	c.run()
	assert.Len(t, c.counts(t, 10, "version=v2"), 1, "the last good state stays")

	c.update(t, nil)
	c.balancer.ResolverError(status.Error(codes.PermissionDenied, "consul: connection refused"))
	_, err := c.pick("")
	assert.ErrorContains(t, err, "consul: connection refused")
	_, isStatus := status.FromError(err)
	assert.False(t, isStatus, "a status in the cause does not make one of the error")

	c.update(t, nil)
	_, err = c.pick("")
	assert.NotContains(t, err.Error(), "consul", "the same state again: the error is over")
}

func TestResolverErrorBeforeTheFirstState(t *testing.T) {
	c := &channel{stuck: map[string]bool{}}
	c.balancer = balancer.Get(graylane.Name).Build(c, balancer.BuildOptions{})
	defer c.balancer.Close()
	c.balancer.ResolverError(errors.New("consul: connection refused"))
	_, err := c.pick("")
	assert.ErrorContains(t, err, "consul: connection refused")
	assert.Equal(t, connectivity.TransientFailure, c.state)
}

// In the bubbles of synctest the clock moves only when everybody waits for it.

func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &channel{stuck: map[string]bool{"10.0.0.1:80": true}}
		c.start(t, "{}", endpoints(2, "", "v2"))
		queued := func() bool {
			synctest.Wait()
			_, err := c.pick("version=v2")
			return err == balancer.ErrNoSubConnAvailable
		}
		pass := func(d time.Duration) { <-time.After(d) }
		pass(time.Hour)
		require.True(t, queued(), "the window begins with the first pick that waits, not before")
		pass(999 * time.Millisecond)
		require.True(t, queued(), "connectWait is a second")
		before := c.seen()
		pass(time.Millisecond)
		require.False(t, queued())
		assert.Equal(t, before+1, c.seen(), "one picker releases those that wait")
		assert.Equal(t, map[string]int{"10.0.0.0:80": 10}, c.counts(t, 10, "version=v2"))
		pass(time.Hour)
		require.False(t, queued(), "once is enough")

		v2 := c.subConns["10.0.0.1:80"]
		v2.report(connectivity.Ready)
		c.run()
		assert.Equal(t, map[string]int{"10.0.0.1:80": 10}, c.counts(t, 10, "version=v2"))

		v2.report(connectivity.Idle) // the connection is lost, and no other comes
		c.run()
		synctest.Wait() // round_robin connects again, on a goroutine
		c.run()
		pass(time.Hour)
		require.True(t, queued(), "a new window")
		pass(time.Second)
		require.False(t, queued())
	})
}

func TestWindowEndsWithReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &channel{stuck: map[string]bool{"10.0.0.1:80": true}}
		c.start(t, "{}", endpoints(2, "", "v2"))
		_, err := c.pick("version=v2")
		require.Equal(t, balancer.ErrNoSubConnAvailable, err)
		c.subConns["10.0.0.1:80"].report(connectivity.Ready)
		c.run()
		before := c.seen()
		<-time.After(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, c.seen())
	})
}

func TestCloseEndsTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &channel{stuck: map[string]bool{"10.0.0.1:80": true}}
		c.start(t, "{}", endpoints(2, "", "v2"))
		_, err := c.pick("version=v2")
		require.Equal(t, balancer.ErrNoSubConnAvailable, err)
		c.balancer.Close()
		before := c.seen()
		<-time.After(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, c.seen(), "no picker after Close")
	})
}

func TestConnectWaitOfZeroWaitsForNothing(t *testing.T) {
	c := &channel{stuck: map[string]bool{"10.0.0.1:80": true}}
	c.start(t, `{"connectWait":"0s"}`, endpoints(2, "", "v2"))
	assert.Equal(t, map[string]int{"10.0.0.0:80": 10}, c.counts(t, 10, "version=v2"))
}

func TestMinReadyCountsInstances(t *testing.T) {
	for _, child := range []string{"round_robin", "least_request_experimental", "weighted_round_robin"} {
		all := append(endpoints(1, ""), endpoint("10.9.0.1:80", "v2"), endpoint("10.9.0.2:80", "v2"))
		c := &channel{stuck: map[string]bool{"10.9.0.2:80": true}}
		c.start(t, fmt.Sprintf(`{"minReady":2,"childPolicy":[{%q:{}}]}`, child), all)
		assert.Equal(t, map[string]int{"10.0.0.0:80": 10}, c.counts(t, 10, "version=v2"), child)
		c.subConns["10.9.0.2:80"].report(connectivity.Ready)
		c.run()
		got := c.counts(t, 100, "version=v2")
		assert.Len(t, got, 2, child)
		assert.NotContains(t, got, "10.0.0.0:80", child)
		// One goes: below the number again, though the policy is READY still.
		c.update(t, all[:2])
		assert.Equal(t, map[string]int{"10.0.0.0:80": 10}, c.counts(t, 10, "version=v2"), child)
	}
}

func TestChildPolicyChangesWithoutInterruption(t *testing.T) {
	all := endpoints(4, "", "v2")
	c := newChannel(t, graylane.Name, "{}", all)
	require.Len(t, c.created, 4)
	// The new connections do not come up: the old policy serves on.
	for _, e := range all {
		c.stuck[e.Addresses[0].Addr] = true
	}
	c.configure(t, `{"childPolicy":[{"least_request_experimental":{}}]}`)
	c.update(t, all)
	require.Len(t, c.created, 8)
	assert.Len(t, c.counts(t, 10, "version=v2"), 2)
	assert.Len(t, c.counts(t, 10, ""), 2)

	// What leaves the version meanwhile leaves the old policy, too.
	c.update(t, all[:3])
	assert.Equal(t, map[string]int{"10.0.0.1:80": 10}, c.counts(t, 10, "version=v2"))

	old := c.subConns["10.0.0.1:80"]
	old.report(connectivity.Ready) // of the new policy: the latest of that address
	c.run()
	assert.Equal(t, map[string]int{"10.0.0.1:80": 10}, c.counts(t, 10, "version=v2"))
	res, err := c.picker().Pick(balancer.PickInfo{Ctx: scope("version=v2")})
	require.NoError(t, err)
	assert.NotNil(t, res.Done, "least_request serves")
}

// switched is a provider that begins to record when it is told to.
type switched struct {
	noop.MeterProvider
	counter
}

type counter struct {
	noop.Int64Counter
	on    atomic.Bool
	added atomic.Int64
}

func (s *switched) Meter(string, ...metric.MeterOption) metric.Meter { return &meter{s: s} }

type meter struct {
	noop.Meter
	s *switched
}

func (m *meter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return &m.s.counter, nil
}

func (c *counter) Enabled(context.Context) bool                          { return c.on.Load() }
func (c *counter) Add(_ context.Context, n int64, _ ...metric.AddOption) { c.added.Add(n) }

func TestRecordersThatComeLateAreFound(t *testing.T) {
	provider := &switched{}
	c := newChannel(t, graylane.Name, "{}", nil)
	c.config.ResolverState = lbattr.SetClient(resolver.State{}, &lbattr.Client{Service: "inventory", Metrics: telemetry.New(provider)})
	c.update(t, endpoints(4, "", "v2"))
	c.counts(t, 100, "version=v2")
	assert.Zero(t, provider.added.Load())
	provider.on.Store(true)
	c.counts(t, 1000, "version=v2")
	got := provider.added.Load()
	assert.Greater(t, got, int64(1000-64), "found within 64 decisions")
	c.counts(t, 1000, "version=v2")
	assert.Equal(t, got+1000, provider.added.Load(), "and then all count")
}

func TestSeriesAreBounded(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	c := newChannel(t, graylane.Name, "{}", endpoints(4, "", "v2"))
	c.config.ResolverState = lbattr.SetClient(resolver.State{}, &lbattr.Client{Service: "inventory", Metrics: telemetry.New(provider)})
	c.update(t, endpoints(4, "", "v2"))
	c.counts(t, 100, "version=v2")
	for i := range 2000 {
		_, err := c.pick(fmt.Sprint("version=", strings.Repeat("x", i%200+1), i))
		require.NoError(t, err)
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	points := rm.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints
	var total int64
	for _, p := range points {
		total += p.Value
	}
	assert.EqualValues(t, 2100, total)
	assert.Less(t, len(points), 200, "bounded, whatever is asked for")
}

func TestObserver(t *testing.T) {
	var got []subset.Decision
	c := newChannel(t, graylane.Name, "{}", nil)
	c.config.ResolverState = lbattr.SetClient(resolver.State{}, &lbattr.Client{Service: "order", Observe: func(_ context.Context, d subset.Decision) { got = append(got, d) }})
	c.update(t, endpoints(2, "", "v2"))
	for _, tag := range []string{"", "version=v2", "version=v9"} {
		_, err := c.pick(tag)
		require.NoError(t, err)
	}
	c.update(t, endpoints(1, "v2"))
	_, err := c.pick("")
	require.Error(t, err)
	assert.Equal(t, []subset.Decision{
		{Service: "order", Outcome: subset.Stable, Address: "10.0.0.0:80"},
		{Service: "order", Wanted: "v2", Served: "v2", Outcome: subset.Matched, Address: "10.0.0.1:80"},
		{Service: "order", Wanted: "v9", Outcome: subset.FallbackStable, Reason: subset.Missing, Address: "10.0.0.0:80"},
		{Service: "order", Outcome: subset.Unavailable, Reason: subset.Missing},
	}, got)
}
