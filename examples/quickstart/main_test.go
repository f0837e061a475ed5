package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check holds what the program prints to what it must print: who is gray is
// decided by the numbers of the users, so that every figure is known.
func check(t *testing.T, args ...string) {
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), args, &out), out.String())
	text := strings.TrimRight(out.String(), "\n")
	lines := strings.Split(text, "\n")
	assert.Equal(t, "requests=2000 hops=8000 matched=1152 stable=6464 fallback=384 misrouted=0", lines[len(lines)-1])
	for _, want := range []string{
		"order            v2      order-v2-1", "├─ inventory     v2      inventory-v2-1", "│  └─ user       v2      user-v2-1",
		"fallback (wanted v2)",
		"app at 20 %:  124 of 1000 users gray",
		"app at 50 %:  260 of 1000 users gray, 0 of those from before became stable",
		"rolled back:    0 of 1000 users gray",
		"after the rollback: requests=1000 hops=4000 matched=0 stable=4000 fallback=0 misrouted=0",
	} {
		assert.Contains(t, text, want)
	}
	for _, row := range []string{"order 1616 384", "inventory 1616 384", "user 1616 384", "coupon 2000 0"} {
		assert.Contains(t, strings.Join(strings.Fields(text), " "), row)
	}
	assert.NotContains(t, text, "\x1b", "no colours where nobody sees them")
}

func TestEmbedded(t *testing.T) { check(t) }

func TestOnConsul(t *testing.T) { check(t, "-consul", consultest.Start(t).Address()) }

func TestFailuresAreErrors(t *testing.T) {
	assert.Error(t, run(context.Background(), []string{"-consul", "127.0.0.1:1"}, &bytes.Buffer{}), "nothing listens there")
	assert.Error(t, run(context.Background(), []string{"-nonsense"}, &bytes.Buffer{}))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Error(t, run(ctx, nil, &bytes.Buffer{}), "failed requests")
}

// TestWhatTheExitStatusSees: a run whose servers see what must not be is an
// error.
func TestWhatTheExitStatusSees(t *testing.T) {
	assert.Equal(t, 1, lost(map[int]bool{1: true, 2: true}, map[int]bool{2: true, 3: true}))
	tally := newTally()
	tally.add("1-1", hop{service: "order", version: "v2", outcome: subset.Misrouted})
	assert.Equal(t, 1, tally.misrouted())
	assert.Equal(t, "requests=1 hops=1 matched=0 stable=0 fallback=0 misrouted=1", tally.summary(1))
}

func TestColours(t *testing.T) {
	assert.False(t, bool(coloursFor(&bytes.Buffer{})))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	assert.False(t, bool(coloursFor(w)), "a pipe is no terminal")
	assert.Equal(t, "\x1b[32mrow\x1b[0m", colours(true).hop(hop{outcome: "matched"}, "row"))
	assert.Equal(t, "row", colours(false).hop(hop{outcome: "matched"}, "row"))
}
