package hops_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/internal/hops"
)

func TestFormatAndParse(t *testing.T) {
	way := []hops.Hop{
		{Service: "order", Instance: "10.0.0.1:80", Wanted: "v2", Got: "v2", Outcome: "matched"},
		{Depth: 1, Service: "优惠券,;=%\xff\r\n", Instance: "[::1]:80", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "missing"},
	}
	s := hops.Format(way, 0)
	assert.True(t, strings.HasPrefix(s, "depth=0;service=order;instance=10.0.0.1:80;wanted=v2;got=v2;outcome=matched, depth=1;"), s)
	for i := range len(s) {
		require.True(t, s[i] >= 0x20 && s[i] < 0x7f, "byte %d of %q", i, s)
	}
	got, more, err := hops.Parse(s)
	require.NoError(t, err)
	assert.Zero(t, more)
	assert.Equal(t, way, got)
}

func TestRoutesAreBounded(t *testing.T) {
	var way []hops.Hop
	for i := range 200 {
		way = append(way, hops.Hop{Service: strings.Repeat("s", 300), Instance: fmt.Sprint(i)})
	}
	s := hops.Format(way, 3)
	assert.LessOrEqual(t, len(s), hops.MaxBytes)
	got, more, err := hops.Parse(s)
	require.NoError(t, err)
	assert.NotEmpty(t, got)
	assert.Equal(t, 203, len(got)+more)

	for i := range way {
		way[i].Service = "s"
	}
	got, more, err = hops.Parse(hops.Format(way, 0))
	require.NoError(t, err)
	assert.LessOrEqual(t, len(got), hops.MaxHops)
	assert.Equal(t, 200, len(got)+more)

	for _, bad := range []string{"depth=0;service", "service=a", "depth=33", "depth=-1", "depth=0;service=%zz", "more=x", "depth=0,,", strings.Repeat("a", 5000), "depth=0;service=" + strings.Repeat("a", 300)} {
		_, _, err := hops.Parse(bad)
		assert.Error(t, err, "%.50q", bad)
		assert.True(t, err == nil || strings.HasPrefix(err.Error(), "propagation: route"), "%v", err)
	}
}

func TestTraceIsATree(t *testing.T) {
	ctx, tr := hops.Start(context.Background())
	defer tr.End()
	assert.Same(t, tr, hops.FromContext(ctx))
	assert.Nil(t, hops.CallFromContext(ctx))

	first, inventory := tr.Begin(ctx)
	_, coupon := tr.Begin(ctx)
	_, other := tr.Begin(ctx)
	other.Forget()
	assert.Same(t, inventory, hops.CallFromContext(first))
	hops.CallFromContext(first).Decided(hops.Hop{Service: "inventory", Instance: "i-1", Wanted: "v2", Got: "v2", Outcome: "matched"})
	inventory.Answered("") // no header, but a trailer
	inventory.Answered("depth=0;service=inventory;got=v1;outcome=misrouted, depth=1;service=user;got=v2")
	coupon.Decided(hops.Hop{Service: "coupon", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "missing"})

	got, more, err := hops.Parse(tr.Answer(hops.Hop{Service: "order", Got: "v2", Outcome: "matched"}))
	require.NoError(t, err)
	assert.Zero(t, more)
	assert.Equal(t, []hops.Hop{
		{Service: "order", Got: "v2", Outcome: "matched"},
		{Depth: 1, Service: "inventory", Instance: "i-1", Wanted: "v2", Got: "v1", Outcome: "misrouted"},
		{Depth: 2, Service: "user", Got: "v2"},
		{Depth: 1, Service: "coupon", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "missing"},
	}, got)

	tr.End()
	tr.End()
	late, call := tr.Begin(ctx)
	assert.Nil(t, call)
	assert.Equal(t, ctx, late)
	assert.Nil(t, hops.FromContext(ctx), "nobody traces any more")
}

func TestCallsPastTheBoundAreCounted(t *testing.T) {
	ctx, tr := hops.Start(context.Background())
	defer tr.End()
	for range hops.MaxHops + 10 {
		_, c := tr.Begin(ctx)
		c.Answered("garbage;;")
	}
	got, more := tr.Hops()
	assert.Len(t, got, hops.MaxHops)
	assert.Equal(t, 10, more)
}

func FuzzParse(f *testing.F) {
	f.Add("depth=0;service=order, more=3")
	f.Add("depth=0;service=%E4%BC;instance=[::1]:80,depth=1")
	f.Fuzz(func(t *testing.T, s string) {
		way, more, err := hops.Parse(s)
		if err != nil {
			return
		}
		again, lost, err := hops.Parse(hops.Format(way, more))
		if err != nil {
			t.Fatalf("%q: %v", hops.Format(way, more), err)
		}
		if len(again)+lost < len(way) {
			t.Fatalf("%d hops became %d and %d more", len(way), len(again), lost)
		}
		for i := range again {
			if again[i] != way[i] {
				t.Fatalf("hop %d: %+v became %+v", i, way[i], again[i])
			}
		}
	})
}

func TestWhoIsNoHopTellsWhatItCalled(t *testing.T) {
	ctx, tr := hops.Start(context.Background())
	defer tr.End()
	assert.Empty(t, tr.Answer(hops.Hop{}))
	assert.Empty(t, tr.Relay())
	_, call := tr.Begin(ctx)
	call.Decided(hops.Hop{Service: "order", Got: "v2", Outcome: "matched"})
	for route, depth := range map[string]int{tr.Answer(hops.Hop{}): 1, tr.Relay(): 0} {
		got, _, err := hops.Parse(route)
		require.NoError(t, err)
		assert.Equal(t, []hops.Hop{{Depth: depth, Service: "order", Got: "v2", Outcome: "matched"}}, got)
	}
	assert.True(t, hops.Asks([]string{"1"}))
	for _, v := range [][]string{nil, {""}, {"0"}, {"true"}, {"0", "1"}} {
		assert.False(t, hops.Asks(v), v)
	}
}
