package balancer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/leastrequest"
	_ "google.golang.org/grpc/balancer/ringhash"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/balancer/internal/lbtest"
	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
)

// twoEach runs two instances of each of stable, v2 and v3.
func twoEach(t *testing.T) *lbtest.Cluster {
	cluster := lbtest.NewCluster()
	for _, v := range []string{"", "v2", "v3"} {
		for i := range 2 {
			cluster.Add(t, "order", fmt.Sprintf("%s-%d", v, i), v)
		}
	}
	return cluster
}

// settled sends RPCs until both instances of version have answered.
func settled(t *testing.T, client *lbtest.Client, version string) {
	t.Helper()
	seen := map[string]bool{}
	require.Eventually(t, func() bool {
		id, err := client.Who(t.Context(), "version="+version)
		require.NoError(t, err)
		seen[id] = true
		return len(seen) == 2
	}, 10*time.Second, time.Millisecond)
}

func TestPolicyInsideAVersion(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		check  func(t *testing.T, a, b int)
	}{
		"round_robin": {`[{"round_robin":{}}]`, func(t *testing.T, a, b int) {
			assert.Equal(t, a, b, "strictly in turn")
		}},
		"weighted_round_robin": {`[{"weighted_round_robin":{"enableOobLoadReport":false}}]`, func(t *testing.T, a, b int) {
			assert.InDelta(t, a, b, 2, "in turn while there are no load reports")
		}},
		"least_request_experimental": {`[{"least_request_experimental":{"choiceCount":2}}]`, func(t *testing.T, a, b int) {
			assert.Positive(t, a)
			assert.Positive(t, b)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := lbtest.Dial(t, twoEach(t), "order", resolver.WithChildPolicy(c.policy))
			for _, v := range []string{"v2", "v3"} {
				settled(t, client, v)
				got := client.Count(t, 100, "version="+v)
				assert.Equal(t, 100, got[v+"-0"]+got[v+"-1"], "%v", got)
				c.check(t, got[v+"-0"], got[v+"-1"])
			}
		})
	}
}

func TestPolicyInsideAVersion_RingHash(t *testing.T) {
	t.Parallel()
	client := lbtest.Dial(t, twoEach(t), "order", resolver.WithChildPolicy(`[{"ring_hash_experimental":{"requestHashHeader":"x-user"}}]`))
	owners := map[string]bool{}
	for user := range 20 {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", fmt.Sprint(user))
		first, err := client.Who(ctx, "version=v2")
		require.NoError(t, err)
		assert.Contains(t, []string{"v2-0", "v2-1"}, first)
		for range 5 {
			id, err := client.Who(ctx, "version=v2")
			require.NoError(t, err)
			assert.Equal(t, first, id, "one user, one instance")
		}
		owners[first] = true
	}
	assert.Len(t, owners, 2)
}

func TestB9_FirstPickConnectsRingHash(t *testing.T) {
	t.Parallel()
	cluster := twoEach(t)
	decisions := lbtest.NewDecisions()
	client := lbtest.Dial(t, cluster, "order", append(decisions.Options(),
		resolver.WithChildPolicy(`[{"ring_hash_experimental":{"requestHashHeader":"x-user"}}]`))...)
	for _, v := range []string{"v3", "v2"} {
		for _, opts := range [][]grpc.CallOption{nil, {grpc.WaitForReady(true)}} {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "x-user", "7"), 10*time.Second)
			id, err := client.Who(ctx, "version="+v, opts...)
			cancel()
			require.NoError(t, err)
			assert.Contains(t, []string{v + "-0", v + "-1"}, id)
		}
	}
	for _, d := range decisions.Take() {
		assert.Equal(t, subset.Matched, d.Outcome)
	}
}

func TestVersionChangeOfOneInAThousand(t *testing.T) {
	const n = 1000
	cluster := lbtest.NewCluster()
	servers := make([]*lbtest.Server, n)
	for i := range servers {
		servers[i] = cluster.Add(t, "order", fmt.Sprintf("i%04d", i), []string{"", "v2"}[i%2])
	}
	client := lbtest.Dial(t, cluster, "order")
	accepted := func() (sum int) {
		for _, s := range servers {
			sum += s.Accepted()
		}
		return sum
	}
	client.Count(t, 1, "")
	require.Eventually(t, func() bool { return accepted() == n }, 60*time.Second, 10*time.Millisecond)
	moved := servers[1]

	// Load throughout; no RPC may fail, none of v2's may end up elsewhere.
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_, err := client.Who(t.Context(), []string{"", "version=v2"}[i%2])
			assert.NoError(t, err)
		}
	}()
	cluster.SetVersion(t, moved.ID, "v3")
	require.Eventually(t, func() bool { return client.Count(t, 1, "version=v3")[moved.ID] == 1 }, 10*time.Second, time.Millisecond)
	assert.Equal(t, map[string]int{moved.ID: 20}, client.Count(t, 20, "version=v3"))
	cancel()
	<-done
	assert.Equal(t, n+1, accepted(), "exactly one new connection")
	assert.Equal(t, 2, moved.Accepted())
}
