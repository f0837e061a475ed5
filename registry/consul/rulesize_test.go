package consul_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	return data
}

// sameBytes does not print them.
func sameBytes(t *testing.T, want, got []byte) {
	t.Helper()
	assert.True(t, bytes.Equal(want, got), "%d bytes differ from %d", len(got), len(want))
}

// The largest document that fits is written and read, with its history, on an
// agent with Consul's own limits; one byte more says so and writes nothing.
func rulesSizeLimit(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := put(t, s, setOf("v1"), 0)

	_, err := s.Put(t.Context(), rule.Document{Data: noise(500 << 10)}, at)
	var large *rule.TooLargeError
	require.ErrorAs(t, err, &large)
	assert.Greater(t, large.Size, 500<<10)
	assert.Greater(t, large.Limit, 380<<10)
	overhead := large.Size - 500<<10
	t.Logf("limit: %d bytes stored", large.Limit)

	written := 1
	fits := func(n int) bool {
		rev, err := s.Put(t.Context(), rule.Document{Data: noise(n), Author: "ann"}, at)
		if err == nil {
			at = rev
			written++
			return true
		}
		require.ErrorAs(t, err, &large)
		assert.Greater(t, large.Size, large.Limit)
		return false
	}
	// The first that does not fit; it moves by some bytes when revisions get
	// another digit, or when the time in the note ends in zeros, which are not written.
	n := large.Limit - overhead - 64
	refused := sort.Search(128, func(i int) bool { return !fits(n + i) })
	require.Greater(t, refused, 0)
	require.Less(t, refused, 128)
	n += refused
	assert.False(t, fits(n+16))

	w := watchRules(t, s)
	require.True(t, fits(n-16))
	sameBytes(t, noise(n-16), w.untilRevision(at).Data)
	require.True(t, fits(n-17))
	sameBytes(t, noise(n-17), w.untilRevision(at).Data)
	put(t, s, setOf("v2"), at)
	list, err := s.History(t.Context())
	require.NoError(t, err)
	require.Len(t, list, written+1)
	sameBytes(t, noise(n-17), list[1].Data)
	sameBytes(t, noise(n-16), list[2].Data)
	keys, _, err := agent.Client().KV().Keys(rulesKey+".history/", "", nil)
	require.NoError(t, err)
	assert.Len(t, keys, 2*len(list), "what was refused left nothing")
}

// A loser with a large document, which is written in two steps, leaves nothing.
func rulesLargeConflict(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	const writers = 4
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() { _, errs[i] = s.Put(context.Background(), rule.Document{Data: noise(300 << 10)}, 0) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			assert.ErrorIs(t, err, rule.ErrConflict)
		}
	}
	assert.Equal(t, 1, won)
	keys, _, err := agent.Client().KV().Keys(rulesKey+".history/", "", nil)
	require.NoError(t, err)
	assert.Len(t, keys, 2)
	list, err := s.History(t.Context())
	require.NoError(t, err)
	assert.Len(t, list, 1)
}

// manyRules returns a set of 10,000 rules and a whitelist of 100,000 users, with
// random numbers from low to ten times that, in order.
func manyRules(t *testing.T, low int) []byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	user := func() string { return fmt.Sprint(low + rng.IntN(9*low)) }
	users := make([]string, 100_000)
	for i := range users {
		users[i] = user()
	}
	slices.Sort(users)
	set := &rule.Set{Rules: []rule.Rule{{
		ID: "whitelist", Tag: "version=v2", Match: []rule.Condition{{Attr: "uid", Op: rule.OpIn, Values: users}},
	}}}
	for i := range 10_000 {
		set.Rules = append(set.Rules, rule.Rule{
			ID: fmt.Sprintf("rule-%d", i), Tag: fmt.Sprintf("version=v%d", i%7),
			Match: []rule.Condition{{Attr: "uid", Op: rule.OpEquals, Values: []string{user()}}},
		})
	}
	data, err := rule.Marshal(set)
	require.NoError(t, err)
	return data
}

// 100,000 users and 10,000 rules fit, and what is in Consul can be read with zcat.
// Where they do not fit Put says so and writes nothing. Servers may take more.
func TestRuleStore_ManyRules(t *testing.T) {
	usual, roomy := consultest.Start(t), consultest.Start(t, map[string]any{"limits": map[string]any{"txn_max_req_len": 2 << 20}})
	larger := []consul.Option{consul.WithMaxTransaction(2 << 20)}
	for _, c := range []struct {
		name  string
		agent *consultest.Agent
		opts  []consul.Option
		data  []byte
		fits  bool
	}{
		{"seven digits", usual, nil, manyRules(t, 1_000_000), true},
		{"eight digits", roomy, larger, manyRules(t, 10_000_000), true},
		{"too large", usual, nil, noise(430 << 10), false},
		{"larger than the server says", usual, larger, noise(430 << 10), false},
		{"larger than a value", roomy, larger, noise(530 << 10), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := strings.ReplaceAll(c.name, " ", "-")
			s := ruleStore(t, open(t, c.agent.Config(), c.opts...), key)
			at, err := s.Put(t.Context(), rule.Document{Data: c.data, Author: "ann"}, 0)
			p, _, getErr := c.agent.Client().KV().Get(key, nil)
			require.NoError(t, getErr)
			if !c.fits {
				var large *rule.TooLargeError
				require.ErrorAs(t, err, &large)
				t.Logf("%d bytes, %d compressed: the limit is %d", len(c.data), large.Size, large.Limit)
				assert.Greater(t, large.Size, large.Limit)
				assert.Greater(t, large.Limit, 380<<10)
				assert.Nil(t, p)
				keys, _, err := c.agent.Client().KV().Keys(key+".history/", "", nil)
				require.NoError(t, err)
				assert.Empty(t, keys)
				return
			}
			require.NoError(t, err)
			t.Logf("%d bytes, %d compressed", len(c.data), len(p.Value))
			z, err := gzip.NewReader(bytes.NewReader(p.Value))
			require.NoError(t, err)
			unpacked, err := io.ReadAll(z)
			require.NoError(t, err)
			sameBytes(t, c.data, unpacked)
			list, err := s.History(t.Context())
			require.NoError(t, err)
			require.Len(t, list, 1)
			sameBytes(t, c.data, list[0].Data)

			e, err := rule.NewEngine(nil)
			require.NoError(t, err)
			follow(t, e, s)
			require.Eventually(t, func() bool { return e.Status().Revision == at }, patience, time.Millisecond)
			assert.Equal(t, 10_001, e.Status().Rules)
		})
	}
}
