package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
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
		"order            v2      order-v2-1          matched\n", "├─ inventory     v2      inventory-v2-1      matched\n",
		"│  └─ user       v2      user-v2-1           matched\n", "└─ coupon        stable  coupon-stable-",
		"fallback_stable (wanted v2, missing), in the background\n",
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

// TestWhatTheExitStatusSees: a run in which an instance counts what must not be is an
// error.
func TestWhatTheExitStatusSees(t *testing.T) {
	assert.Equal(t, 1, lost(map[int]bool{1: true, 2: true}, map[int]bool{2: true, 3: true}))

	ctx := context.Background()
	reg := memory.New()
	w := &world{reg: reg}
	defer w.stop()
	require.NoError(t, w.open(ctx))
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	for instances := range reg.Watch(ctx, "order") {
		for _, i := range instances {
			if i.Metadata[registry.MetadataVersion] == "v2" { // which nobody has asked for
				require.NoError(t, get(ctx, c, "http://"+i.Address+"/orders/1"))
			}
		}
		break
	}
	require.NoError(t, w.ended())
	f, err := w.counters.read(ctx)
	require.NoError(t, err)
	assert.Equal(t, 1, f.misrouted())
	assert.Equal(t, "requests=1 hops=4 matched=0 stable=3 fallback=0 misrouted=1", f.summary(1))
	f, err = w.counters.read(ctx)
	require.NoError(t, err)
	assert.Zero(t, f.hops, "what has happened since")
}

func TestPicture(t *testing.T) {
	var out bytes.Buffer
	picture(&out, false, "title", []propagation.Hop{
		{Service: "a", Wanted: "v2", Got: "v2", Outcome: "matched"},
		{Depth: 1, Service: "b", Wanted: "v2", Got: "v2", Outcome: "matched"},
		{Depth: 2, Service: "c", Wanted: "v2", Got: "v1", Outcome: "misrouted"},
		{Depth: 1, Service: "d", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "unhealthy"},
		{Depth: 2, Service: "e", Wanted: "v2", Outcome: "unavailable", Reason: "missing"},
	}, nil)
	assert.Equal(t, []string{
		"title",
		"a v2 matched",
		"├─ b v2 matched",
		"│ └─ c v1 misrouted (wanted v2)",
		"└─ d stable fallback_stable (wanted v2, unhealthy)",
		"└─ e unavailable (wanted v2, missing)",
	}, words(out.String()))
}

// words returns the lines of s with one blank between words.
func words(s string) (lines []string) {
	for _, l := range strings.Split(strings.TrimSpace(s), "\n") {
		lines = append(lines, strings.Join(strings.Fields(l), " "))
	}
	return lines
}

func TestColours(t *testing.T) {
	assert.False(t, bool(coloursFor(&bytes.Buffer{})))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	assert.False(t, bool(coloursFor(w)), "a pipe is no terminal")
	assert.Equal(t, "\x1b[32mrow\x1b[0m", colours(true).hop(propagation.Hop{Outcome: "matched"}, "row"))
	assert.Equal(t, "row", colours(false).hop(propagation.Hop{Outcome: "matched"}, "row"))
}
