package httplb

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/registry"
)

// viewOf returns a view of n instances of five versions.
func viewOf(t testing.TB, n int, weight func(i int) int) *view {
	t.Helper()
	selector, err := subset.Policy{Fallback: []string{"stable", "any"}}.Compile("inventory")
	require.NoError(t, err)
	set := make([]registry.Instance, n)
	for i := range set {
		set[i] = registry.Instance{ID: fmt.Sprint("i", i), Address: fmt.Sprintf("10.0.%d.%d:80", i/250, i%250), Weight: weight(i)}
		if v := i % 5; v > 0 {
			set[i].Metadata = map[string]string{"version": fmt.Sprint("v", v)}
		}
	}
	return newView(groupInstances(set, selector, false, func(i registry.Instance) *endpoint { return &endpoint{address: i.Address} }), selector)
}

func one(int) int { return 1 }

func TestPickDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	for _, n := range []int{10, 1000} {
		v := viewOf(t, n, one)
		for _, tag := range []string{"", "version=v2", "version=v9"} {
			parsed := graytag.MustParse(tag)
			assert.Zero(t, testing.AllocsPerRun(100, func() { v.pick(parsed) }), "%q of %d", tag, n)
		}
	}
}

func TestWeightsHoldAndAreSmooth(t *testing.T) {
	for name, weights := range map[string][]int{
		"one":     {1},
		"equal":   {1, 1, 1},
		"5 1 1":   {5, 1, 1},
		"zeros":   {0, 0},
		"extreme": {1, maxWeight * 2},
		"many":    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13},
	} {
		items := make([]int, len(weights))
		total := 0.0
		for i, w := range weights {
			items[i] = i
			total += float64(min(max(w, 1), maxWeight))
		}
		a := newAlias(items, func(i int) int { return weights[i] })
		got := make([]float64, len(weights))
		for n := 1; n <= 20_000; n++ {
			got[a.next()]++
			for i, w := range weights {
				want := float64(n) * float64(min(max(w, 1), maxWeight)) / total
				// A random choice would be off by a hundred here; the slots of
				// an item add up.
				if off := math.Abs(got[i] - want); off > 8*float64(len(weights)) {
					t.Fatalf("%s: item %d came %v times in %d, want %v", name, i, got[i], n, want)
				}
			}
		}
	}
}

func TestEqualWeightsTakeTurns(t *testing.T) {
	a := newAlias([]int{0, 1, 2, 3}, one)
	got := make([]int, 4)
	for range 16 {
		got[a.next()]++
	}
	for i, n := range got {
		assert.InDelta(t, 4, n, 2, "item %d of %v", i, got)
	}
}

func TestAnyIsInProportionToInstances(t *testing.T) {
	selector, err := subset.Policy{Fallback: []string{"any"}}.Compile("inventory")
	require.NoError(t, err)
	set := []registry.Instance{}
	for i := range 10 {
		version := "v1"
		if i == 0 {
			version = "v2"
		}
		set = append(set, registry.Instance{ID: fmt.Sprint(i), Address: fmt.Sprintf("10.0.0.%d:80", i), Metadata: map[string]string{"version": version}})
	}
	v := newView(groupInstances(set, selector, false, func(registry.Instance) *endpoint { return &endpoint{} }), selector)
	got := map[string]int{}
	for range 10_000 {
		in, choice, _ := v.pick(graytag.Tag{})
		require.Equal(t, subset.FallbackAny, choice.Outcome)
		got[in.version]++
	}
	assert.InDelta(t, 1000, got["v2"], 50)
}

func TestBadAddressesServeNobody(t *testing.T) {
	selector, err := subset.Policy{}.Compile("inventory")
	require.NoError(t, err)
	v := newView(groupInstances([]registry.Instance{{ID: "a", Address: "nohost"}, {ID: "b", Address: ":80"}}, selector, false,
		func(registry.Instance) *endpoint { return &endpoint{} }), selector)
	in, choice, _ := v.pick(graytag.Tag{})
	assert.Nil(t, in)
	assert.Equal(t, subset.Unhealthy, choice.Reason)
}

func TestCoolOffGrowsToItsBound(t *testing.T) {
	var got []int
	for fails := range int32(8) {
		got = append(got, int(coolOff(fails, 1, 30)))
	}
	assert.Equal(t, []int{1, 1, 2, 4, 8, 16, 30, 30}, got)
	assert.EqualValues(t, 30, coolOff(math.MaxInt32, 1, 30))
}

func BenchmarkPick(b *testing.B) {
	for _, c := range []struct{ name, tag string }{{"untagged", ""}, {"tagged", "version=v2"}, {"fallback", "version=v9"}} {
		for _, n := range []int{10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/n=%d", c.name, n), func(b *testing.B) {
				v := viewOf(b, n, func(i int) int { return 1 + i%3 })
				tag := graytag.MustParse(c.tag)
				b.ReportAllocs()
				for b.Loop() {
					v.pick(tag)
				}
			})
		}
	}
}
