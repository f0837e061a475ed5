package balancer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/internal/lbtest"
	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
)

// tag is what the cases call TAG.
const tag = "uid=10086;channel=app;version=v2.1.0"

// order is the service of the cases: s1 without a version, g1 of v2.1.0, b1 of
// v3.0.0.
func order(t *testing.T) (cluster *lbtest.Cluster, s1, g1, b1 *lbtest.Server) {
	cluster = lbtest.NewCluster()
	s1 = cluster.Add(t, "order", "s1", "")
	g1 = cluster.Add(t, "order", "g1", "v2.1.0")
	b1 = cluster.Add(t, "order", "b1", "v3.0.0")
	return cluster, s1, g1, b1
}

func strict() resolver.Option { return resolver.WithPolicy(subset.Policy{Strict: true}) }

// among counts n RPCs at once by the instance that answered. All succeed.
func among(ctx context.Context, t *testing.T, c *lbtest.Client, n int, tag string, opts ...grpc.CallOption) map[string]int {
	t.Helper()
	ids, errs := make([]string, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { ids[i], errs[i] = c.Who(ctx, tag, opts...) })
	}
	wg.Wait()
	got := make(map[string]int)
	for i := range n {
		require.NoError(t, errs[i])
		got[ids[i]]++
	}
	return got
}

func TestB1_VersionThatNoInstanceHas(t *testing.T) {
	t.Parallel()
	cluster, _, _, _ := order(t)
	client := lbtest.Dial(t, cluster, "order", strict())
	client.Count(t, 1, "")
	for name, opts := range map[string][]grpc.CallOption{
		"fail fast":      nil,
		"wait for ready": {grpc.WaitForReady(true)},
	} {
		// The deadline is far: an RPC that waited would show by its code.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		began := time.Now()
		_, err := client.Who(ctx, "version=v9", opts...)
		assert.Less(t, time.Since(began), time.Second, name)
		cancel()
		require.Equal(t, codes.Unavailable, status.Code(err), "%s: %v", name, err)
		assert.Contains(t, err.Error(), `service "order"`)
		assert.Contains(t, err.Error(), `version "v9"`)
		assert.Contains(t, err.Error(), "registered: stable=1 v2.1.0=1 v3.0.0=1")
	}
}

func TestB2_GrayComesLate(t *testing.T) {
	late := func(t *testing.T, opts ...resolver.Option) (*lbtest.Client, *lbtest.Decisions) {
		cluster := lbtest.NewCluster()
		cluster.Add(t, "order", "s1", "")
		g1 := lbtest.StartAfter(t, "g1", 300*time.Millisecond)
		cluster.AddAddress(t, "order", "g1", g1.Addr, "v2.1.0")
		decisions := lbtest.NewDecisions()
		return lbtest.Dial(t, cluster, "order", append(decisions.Options(), opts...)...), decisions
	}
	t.Run("strict", func(t *testing.T) {
		t.Parallel()
		client, decisions := late(t, strict())
		assert.Equal(t, map[string]int{"g1": 20}, among(t.Context(), t, client, 20, tag))
		assert.Equal(t, map[lbtest.Labels]int{
			{Service: "order", Wanted: "v2.1.0", Served: "v2.1.0", Outcome: "matched"}: 20,
		}, decisions.Counted(t), "a pick that waits is counted once")
	})
	t.Run("default wait", func(t *testing.T) {
		t.Parallel()
		client, _ := late(t)
		assert.Equal(t, map[string]int{"g1": 20}, among(t.Context(), t, client, 20, tag), "300 ms are worth a wait")
	})
	t.Run("short wait", func(t *testing.T) {
		t.Parallel()
		client, decisions := late(t, resolver.WithConnectWait(100*time.Millisecond))
		assert.Equal(t, map[string]int{"s1": 20}, among(t.Context(), t, client, 20, tag))
		assert.Equal(t, map[lbtest.Labels]int{
			{Service: "order", Wanted: "v2.1.0", Served: "stable", Outcome: "fallback_stable", Reason: "connecting"}: 20,
		}, decisions.Counted(t))
		require.Eventually(t, func() bool { return client.Count(t, 1, tag)["g1"] == 1 }, 10*time.Second, time.Millisecond)
		assert.Equal(t, map[string]int{"g1": 50}, client.Count(t, 50, tag), "none falls back once g1 is READY")
	})
}

func TestB2_BlackHole(t *testing.T) {
	t.Parallel()
	const wait = 500 * time.Millisecond
	cluster := lbtest.NewCluster()
	cluster.Add(t, "order", "s1", "")
	cluster.AddAddress(t, "order", "g1", lbtest.BlackHole(t), "v2.1.0")
	decisions := lbtest.NewDecisions()
	client := lbtest.Dial(t, cluster, "order", append(decisions.Options(), resolver.WithConnectWait(wait))...)
	client.Count(t, 1, "")

	began := time.Now()
	assert.Equal(t, map[string]int{"s1": 20}, among(t.Context(), t, client, 20, tag))
	assert.GreaterOrEqual(t, time.Since(began), wait)
	// Were each of these to wait, they would take 20 times the window.
	began = time.Now()
	assert.Equal(t, map[string]int{"s1": 20}, client.Count(t, 20, tag))
	assert.Less(t, time.Since(began), 5*wait)
	assert.Equal(t, 40, decisions.Counted(t)[lbtest.Labels{
		Service: "order", Wanted: "v2.1.0", Served: "stable", Outcome: "fallback_stable", Reason: "connecting"}])
}

func TestB2_StrictBlackHoleEndsWithTheDeadline(t *testing.T) {
	t.Parallel()
	cluster := lbtest.NewCluster()
	cluster.Add(t, "order", "s1", "")
	cluster.AddAddress(t, "order", "g1", lbtest.BlackHole(t), "v2.1.0")
	client := lbtest.Dial(t, cluster, "order", strict(), resolver.WithConnectWait(50*time.Millisecond))
	client.Count(t, 1, "")
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := client.Who(ctx, tag)
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
}

func TestB2_OnlyStableInstanceIsBlackHole(t *testing.T) {
	t.Parallel()
	cluster := lbtest.NewCluster()
	cluster.AddAddress(t, "order", "s1", lbtest.BlackHole(t), "")
	cluster.Add(t, "order", "g1", "v2.1.0")
	client := lbtest.Dial(t, cluster, "order", resolver.WithConnectWait(50*time.Millisecond))
	client.Count(t, 1, tag)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := client.Who(ctx, "")
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "it waits, and goes nowhere else: %v", err)
}

func TestB2_OnlyInstanceOfAllIsSlow(t *testing.T) {
	t.Parallel()
	cluster := lbtest.NewCluster()
	s1 := lbtest.StartAfter(t, "s1", 3*time.Second)
	cluster.AddAddress(t, "order", "s1", s1.Addr, "")
	client := lbtest.Dial(t, cluster, "order")
	assert.Equal(t, map[string]int{"s1": 5}, among(t.Context(), t, client, 5, ""), "they are not failed at the end of connectWait")
}

func TestB3_VersionChanges(t *testing.T) {
	t.Parallel()
	cluster, _, g1, _ := order(t)
	client := lbtest.Dial(t, cluster, "order")
	assert.Equal(t, map[string]int{"g1": 20}, client.Count(t, 20, tag))

	cluster.SetVersion(t, "g1", "v2.2.0")
	within := func(tag, id string) {
		t.Helper()
		require.Eventually(t, func() bool { return client.Count(t, 1, tag)[id] == 1 }, time.Second, time.Millisecond)
		assert.Equal(t, map[string]int{id: 50}, client.Count(t, 50, tag))
	}
	within("version=v2.2.0", "g1")
	within(tag, "s1")
	assert.Equal(t, map[string]int{"s1": 50}, client.Count(t, 50, ""))

	cluster.SetVersion(t, "g1", "")
	require.Eventually(t, func() bool { return client.Count(t, 1, "")["g1"] == 1 }, time.Second, time.Millisecond, "untagged traffic reaches it")
	assert.Len(t, client.Count(t, 50, ""), 2)
	assert.Equal(t, 3, g1.Accepted(), "one connection per version that it has had")
}

func TestB5_EqualContentChangesNothing(t *testing.T) {
	t.Parallel()
	s1, g1 := lbtest.Start(t, "s1"), lbtest.Start(t, "g1")
	push := newPushed()
	meta := map[string]string{"version": "v2.1.0", "zone": "a"}
	push.set(instance("s1", s1.Addr, nil), instance("g1", g1.Addr, meta))
	client := lbtest.Dial(t, push, "order")
	assert.Equal(t, map[string]int{"g1": 5}, client.Count(t, 5, tag))

	// The same map, then an equal one: no comparison may panic, nothing may
	// reconnect.
	push.set(instance("s1", s1.Addr, nil), instance("g1", g1.Addr, meta))
	push.set(instance("s1", s1.Addr, map[string]string{}), instance("g1", g1.Addr, map[string]string{"version": "v2.1.0", "zone": "a"}))
	// Other metadata than the version: known, and no new connection either.
	push.set(instance("s1", s1.Addr, nil), instance("g1", g1.Addr, map[string]string{"version": "v2.1.0", "zone": "b"}))
	push.wait(t)
	assert.Equal(t, map[string]int{"g1": 50}, client.Count(t, 50, tag))
	assert.Equal(t, map[string]int{"s1": 50}, client.Count(t, 50, ""))
	assert.Equal(t, 1, s1.Accepted())
	assert.Equal(t, 1, g1.Accepted())
}

func TestB6_UntaggedNeverReachesGray(t *testing.T) {
	t.Parallel()
	cluster, _, g1, b1 := order(t)
	client := lbtest.Dial(t, cluster, "order")
	assert.Equal(t, map[string]int{"s1": 1000}, client.Count(t, 1000, ""))
	assert.Equal(t, map[string]int{"s1": 1000}, client.Count(t, 1000, "version=v9"), "never b1")

	cluster.Remove(t, "s1")
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), "")
		return err != nil
	}, 5*time.Second, time.Millisecond)
	for range 100 {
		_, err := client.Who(t.Context(), "")
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	assert.Zero(t, g1.Served()+b1.Served())
}

func TestC7_VersionsCompareExactly(t *testing.T) {
	t.Parallel()
	cluster := lbtest.NewCluster()
	cluster.Add(t, "order", "s1", "")
	cluster.Add(t, "order", "s2", "")
	cluster.SetMetadata(t, "s2", map[string]string{"version": ""})
	cluster.Add(t, "order", "g1", "2.1.0")
	cluster.Add(t, "order", "g2", "v2.10.0")
	client := lbtest.Dial(t, cluster, "order")
	require.Eventually(t, func() bool { return len(client.Count(t, 4, "")) == 2 }, 5*time.Second, time.Millisecond)
	for _, tag := range []string{"", "version=v2.1.0"} {
		got := client.Count(t, 50, tag)
		assert.Len(t, got, 2, tag)
		assert.Equal(t, 50, got["s1"]+got["s2"], tag)
	}
}

func TestWaitForReadyWaitsForInstancesThatAreDown(t *testing.T) {
	t.Parallel()
	cluster, _, g1, _ := order(t)
	g1.Stop()
	client := lbtest.Dial(t, cluster, "order", strict())
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), tag)
		return status.Code(err) == codes.Unavailable
	}, 10*time.Second, time.Millisecond, "others fail")
	_, err := client.Who(t.Context(), tag)
	assert.ErrorContains(t, err, "unhealthy")
	assert.ErrorContains(t, err, "connection refused", "the last cause is told")

	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, err := client.Who(ctx, tag, grpc.WaitForReady(true))
		done <- err
	}()
	g1.Restart(t)
	assert.NoError(t, <-done)
}

func TestServerRestart(t *testing.T) {
	t.Parallel()
	cluster, _, g1, _ := order(t)
	client := lbtest.Dial(t, cluster, "order")
	assert.Equal(t, map[string]int{"g1": 5}, client.Count(t, 5, tag))

	g1.Stop()
	require.Eventually(t, func() bool {
		id, err := client.Who(t.Context(), tag)
		return err == nil && id == "s1"
	}, 10*time.Second, time.Millisecond, "fall back")
	g1.Restart(t)
	require.Eventually(t, func() bool {
		id, err := client.Who(t.Context(), tag)
		return err == nil && id == "g1"
	}, 20*time.Second, 10*time.Millisecond, "and come back")
	assert.Equal(t, map[string]int{"g1": 50}, client.Count(t, 50, tag))
}
