package balancer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
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
	"github.com/graylane/graylane/registry"
)

type routeCase struct {
	Name      string
	Instances map[string]string
	Service   string
	Tag       string
	Policy    struct {
		Key      string
		Stable   []string
		FoldCase bool
		Fallback []string
		Strict   bool
		MinReady int
	}
	NotReady []string `json:"not_ready"`
	Want     []string
	Outcome  subset.Outcome
	Reason   subset.Reason
	Error    string
	Have     map[string]int
}

// TestRouteVectors drives every vector through real connections.
func TestRouteVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/route.json")
	require.NoError(t, err)
	var doc struct{ Cases []routeCase }
	require.NoError(t, json.Unmarshal(data, &doc))
	require.NotEmpty(t, doc.Cases)
	for _, c := range doc.Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

func (c routeCase) run(t *testing.T) {
	policy := subset.Policy(c.Policy)
	key := policy.Key
	if key == "" {
		key = registry.MetadataVersion
	}
	cluster := lbtest.NewCluster()
	for id, version := range c.Instances {
		in := registry.Instance{ID: id, Service: c.Service, Metadata: map[string]string{"other": "x"}}
		if version != "" {
			in.Metadata[key] = version
		}
		if slices.Contains(c.NotReady, id) {
			in.Address = lbtest.Refusing(t)
		} else {
			in.Address = lbtest.Start(t, id).Addr
		}
		cluster.Put(t, in)
	}
	decisions := lbtest.NewDecisions()
	client := lbtest.Dial(t, cluster, c.Service, append(decisions.Options(),
		resolver.WithPolicyFor(c.Service, policy), resolver.WithConnectWait(time.Minute))...)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	if c.Error != "" {
		c.fails(ctx, t, client, decisions)
		return
	}
	// Instances come up one after the other; then the outcome stays.
	require.Eventually(t, func() bool {
		_, err := client.Who(ctx, c.Tag)
		all := decisions.Take()
		return err == nil && len(all) > 0 && all[len(all)-1].Outcome == c.Outcome
	}, 20*time.Second, time.Millisecond)
	before := decisions.Counted(t)

	seen, sent := map[string]bool{}, 0
	for ; sent < 2000 && (sent < 50 || len(seen) < len(c.Want)); sent++ {
		id, err := client.Who(ctx, c.Tag)
		require.NoError(t, err)
		seen[id] = true
	}
	assert.ElementsMatch(t, c.Want, slices.Collect(maps.Keys(seen)))

	all := decisions.Take()
	require.Len(t, all, sent)
	for _, d := range all {
		require.Equal(t, c.Outcome, d.Outcome)
		require.Equal(t, c.Reason, d.Reason)
		require.Equal(t, c.Service, d.Service)
		require.NotEmpty(t, d.Address)
	}
	counted := 0
	for labels, n := range decisions.Counted(t) {
		if n -= before[labels]; n > 0 {
			assert.Equal(t, string(c.Outcome), labels.Outcome)
			assert.Equal(t, string(c.Reason), labels.Reason)
			assert.Equal(t, c.Service, labels.Service)
			counted += n
		}
	}
	assert.Equal(t, sent, counted)
}

func (c routeCase) fails(ctx context.Context, t *testing.T, client *lbtest.Client, decisions *lbtest.Decisions) {
	var err error
	require.Eventually(t, func() bool {
		_, err = client.Who(ctx, c.Tag)
		return err != nil && len(decisions.Take()) > 0
	}, 20*time.Second, time.Millisecond)
	for range 20 {
		_, err = client.Who(ctx, c.Tag)
		require.Error(t, err)
	}
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Contains(t, err.Error(), fmt.Sprintf("service %q", c.Service))
	have := " none"
	if len(c.Have) > 0 {
		have = ""
		for _, v := range slices.Sorted(maps.Keys(c.Have)) {
			name := v
			if v == "" {
				name = "stable"
			}
			have += fmt.Sprintf(" %s=%d", name, c.Have[v])
		}
	}
	_, text, _ := strings.Cut(err.Error(), "registered:")
	text, _, _ = strings.Cut(text, ";")
	assert.Equal(t, have, text)
	all := decisions.Take()
	require.Len(t, all, 20)
	for _, d := range all {
		assert.Equal(t, subset.Unavailable, d.Outcome)
		assert.Empty(t, d.Address)
	}
	for labels := range decisions.Counted(t) {
		assert.Equal(t, "unavailable", labels.Outcome)
		assert.Equal(t, "none", labels.Served)
	}

	// What nobody has registered, beside others that are, is not worth a wait.
	if all[0].Reason == subset.Missing && len(c.Have) > 0 {
		_, err = client.Who(ctx, c.Tag, grpc.WaitForReady(true))
		assert.Equal(t, codes.Unavailable, status.Code(err))
	}
}
