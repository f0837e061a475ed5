package subset_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
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

func TestRouteVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/route.json")
	require.NoError(t, err)
	var doc struct{ Cases []routeCase }
	require.NoError(t, json.Unmarshal(data, &doc))
	require.NotEmpty(t, doc.Cases)
	for _, c := range doc.Cases {
		t.Run(c.Name, func(t *testing.T) {
			selector, err := subset.Policy(c.Policy).Compile(c.Service)
			require.NoError(t, err)

			var subsets []subset.Subset
			members := map[string][]string{} // ready instances by version
			for id, version := range c.Instances {
				metadata := map[string]string{"other": "x"}
				if version != "" {
					metadata[selector.Key()] = version
				}
				v := selector.Version(metadata)
				i := slices.IndexFunc(subsets, func(s subset.Subset) bool { return s.Version == v })
				if i < 0 {
					i = len(subsets)
					subsets = append(subsets, subset.Subset{Version: v})
				}
				subsets[i].Registered++
				if !slices.Contains(c.NotReady, id) {
					subsets[i].Ready++
					members[v] = append(members[v], id)
				}
			}
			table := selector.NewTable(subsets)
			choice, wanted := table.Choose(graytag.MustParse(c.Tag))
			if c.Error != "" {
				require.Equal(t, subset.Unavailable, choice.Outcome)
				unavailable := table.Unavailable(choice, wanted, nil)
				assert.Equal(t, c.Have, unavailable.Have)
				assert.Equal(t, c.Service, unavailable.Service)
				assert.Empty(t, choice.Subsets)
				return
			}
			assert.Equal(t, c.Outcome, choice.Outcome)
			assert.Equal(t, c.Reason, choice.Reason)
			assert.False(t, choice.Wait)
			var got []string
			for _, i := range choice.Subsets {
				got = append(got, members[subsets[i].Version]...)
			}
			assert.ElementsMatch(t, c.Want, got)
		})
	}
}

func table(t testing.TB, p subset.Policy, subsets ...subset.Subset) *subset.Table {
	t.Helper()
	s, err := p.Compile("order")
	require.NoError(t, err)
	return s.NewTable(subsets)
}

func TestWaiting(t *testing.T) {
	up := func(v string) subset.Subset { return subset.Subset{Version: v, Registered: 1, Ready: 1} }
	in := func(v string, s subset.State) subset.Subset {
		return subset.Subset{Version: v, Registered: 1, State: s}
	}
	any := subset.Policy{Fallback: []string{"v1", "stable", "any"}}
	for name, c := range map[string]struct {
		policy  subset.Policy
		subsets []subset.Subset
		tag     string
		want    subset.Choice
	}{
		"connecting is waited for, though stable is up": {
			subsets: []subset.Subset{up(""), in("v2", subset.Pending)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{1}, Served: "v2", Outcome: subset.Matched, Wait: true},
		},
		"not for ever": {
			subsets: []subset.Subset{up(""), in("v2", subset.Overdue)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Outcome: subset.FallbackStable, Reason: subset.Connecting},
		},
		"overdue falls back only to what is ready": {
			subsets: []subset.Subset{in("", subset.Pending), in("v2", subset.Overdue)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{1}, Served: "v2", Outcome: subset.Matched, Wait: true},
		},
		"strict waits on": {
			policy: subset.Policy{Strict: true}, subsets: []subset.Subset{up(""), in("v2", subset.Overdue)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{1}, Served: "v2", Outcome: subset.Matched, Wait: true},
		},
		"the only instance of all is slow": {
			subsets: []subset.Subset{in("", subset.Overdue)},
			want:    subset.Choice{Subsets: []int{0}, Outcome: subset.Stable, Wait: true},
		},
		"down: the fallback is waited for": {
			subsets: []subset.Subset{in("", subset.Pending), in("v2", subset.Down)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Outcome: subset.FallbackStable, Reason: subset.Unhealthy, Wait: true},
		},
		"missing: the fallback is waited for, however long": {
			subsets: []subset.Subset{in("", subset.Overdue), up("v3")}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Outcome: subset.FallbackStable, Reason: subset.Missing, Wait: true},
		},
		"an overdue candidate gives way to a ready one": {
			policy: any, subsets: []subset.Subset{up(""), in("v1", subset.Overdue)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Outcome: subset.FallbackStable, Reason: subset.Missing},
		},
		"the order of the list holds for one that connects": {
			policy: any, subsets: []subset.Subset{up(""), in("v1", subset.Pending)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{1}, Served: "v1", Outcome: subset.FallbackVersion, Reason: subset.Missing, Wait: true},
		},
		"any takes a version that warms": {
			policy: subset.Policy{Fallback: []string{"any"}, MinReady: 3}, subsets: []subset.Subset{up("v2"), in("v3", subset.Down)}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Served: "v2", Outcome: subset.FallbackAny, Reason: subset.Warming},
		},
		"a named version respects minReady": {
			policy: subset.Policy{Fallback: []string{"v1", "stable"}, MinReady: 2}, subsets: []subset.Subset{up(""), up("v1")}, tag: "version=v2",
			want: subset.Choice{Subsets: []int{0}, Outcome: subset.FallbackStable, Reason: subset.Missing},
		},
		"missing everywhere is final": {
			policy: subset.Policy{Strict: true}, subsets: []subset.Subset{up("")}, tag: "version=v2",
			want: subset.Choice{Outcome: subset.Unavailable, Reason: subset.Missing, Final: true},
		},
		"registered and down is not": {
			policy: subset.Policy{Strict: true}, subsets: []subset.Subset{up(""), in("v2", subset.Down)}, tag: "version=v2",
			want: subset.Choice{Outcome: subset.Unavailable, Reason: subset.Unhealthy},
		},
		"nor is a fallback that is down": {
			subsets: []subset.Subset{in("", subset.Down), up("v3")}, tag: "version=v2",
			want: subset.Choice{Outcome: subset.Unavailable, Reason: subset.Missing},
		},
		"nor a service without instances": {
			want: subset.Choice{Outcome: subset.Unavailable, Reason: subset.Missing},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := table(t, c.policy, c.subsets...).Choose(graytag.MustParse(c.tag))
			c.want.Index = got.Index
			assert.Equal(t, c.want, *got)
		})
	}
}

// Versions that look alike where the index looks are told apart all the same.
func TestChooseAmongVersionsThatLookAlike(t *testing.T) {
	var subsets []subset.Subset
	for i := range 300 {
		subsets = append(subsets, subset.Subset{Version: fmt.Sprintf("release-aa%03daaaaaaa-end", i), Registered: 1, Ready: 1})
	}
	for _, v := range []string{"a", "b", "ab", "ba", "äö", "v2.1.0", "v2.1.1", "v2.10.1"} {
		subsets = append(subsets, subset.Subset{Version: v, Registered: 1, Ready: 1})
	}
	tab := table(t, subset.Policy{Strict: true, Stable: []string{"blue", "base"}}, subsets...)
	for i, s := range subsets {
		tag, err := graytag.New(map[string]string{"version": s.Version})
		require.NoError(t, err)
		choice, wanted := tab.Choose(tag)
		require.Equal(t, []int{i}, choice.Subsets, s.Version)
		require.Equal(t, s.Version, wanted)
		require.Same(t, choice, tab.Choices()[choice.Index])

		tag, err = graytag.New(map[string]string{"version": s.Version + "x"})
		require.NoError(t, err)
		choice, wanted = tab.Choose(tag)
		require.Equal(t, subset.Unavailable, choice.Outcome)
		require.Equal(t, s.Version+"x", wanted)
	}
	for _, stable := range []string{"", "version=blue", "version=base"} {
		choice, wanted := tab.Choose(graytag.MustParse(stable))
		require.Same(t, tab.Stable(), choice)
		require.Empty(t, wanted)
	}
}

func TestC7_VersionsCompareExactly(t *testing.T) {
	s, err := subset.Policy{}.Compile("order")
	require.NoError(t, err)
	assert.Equal(t, "", s.Version(nil), "metadata nil is stable")
	assert.Equal(t, "", s.Version(map[string]string{"version": ""}), `version "" is stable`)
	for instance, tag := range map[string]string{"2.1.0": "v2.1.0", "v2.10.0": "v2.1.0"} {
		choice, _ := s.NewTable([]subset.Subset{{Version: s.Version(map[string]string{"version": instance}), Registered: 1, Ready: 1}}).
			Choose(graytag.MustParse("version=" + tag))
		assert.Equal(t, subset.Unavailable, choice.Outcome, "%s against %s", instance, tag)
	}
}

func TestArrival(t *testing.T) {
	for _, c := range []struct {
		policy   subset.Policy
		tag, own string
		want     subset.Outcome
	}{
		{subset.Policy{}, "version=v2", "v2", subset.Matched},
		{subset.Policy{}, "version=v1;version.order=v2", "v2", subset.Matched},
		{subset.Policy{}, "", "", subset.Stable},
		{subset.Policy{}, "version=stable", "", subset.Stable},
		{subset.Policy{}, "version=v2", "", subset.Fallback},
		{subset.Policy{}, "", "v2", subset.Misrouted},
		{subset.Policy{}, "version=v3", "v2", subset.Misrouted},
		{subset.Policy{Strict: true}, "version=v2", "", subset.Misrouted},
		{subset.Policy{Fallback: []string{"v1"}}, "version=v2", "v1", subset.Fallback},
		{subset.Policy{Fallback: []string{"v1"}}, "", "v1", subset.Misrouted},
		{subset.Policy{Fallback: []string{"v1"}}, "version=v2", "", subset.Misrouted},
		{subset.Policy{Fallback: []string{"any"}}, "", "v1", subset.Fallback},
		{subset.Policy{Key: "gray", Stable: []string{"false"}, FoldCase: true}, "gray=TRUE", "true", subset.Matched},
	} {
		s, err := c.policy.Compile("order")
		require.NoError(t, err)
		assert.Equal(t, c.want, s.Arrival(graytag.MustParse(c.tag), c.own), "%+v", c)
	}
}

func TestPolicyIsChecked(t *testing.T) {
	for want, p := range map[string]subset.Policy{
		`key "a b"`:    {Key: "a b"},
		"minReady -1":  {MinReady: -1},
		"strict and":   {Strict: true, Fallback: []string{"stable"}},
		`holds "Any"`:  {Fallback: []string{"stable", "Any"}},
		"empty name":   {Fallback: []string{"stable", ""}},
		`"any" twice`:  {Fallback: []string{"any", "any"}},
		`"v1" twice`:   {Fallback: []string{"v1", "V1"}, FoldCase: true},
		"stable\" twi": {Fallback: []string{"stable", "blue"}, Stable: []string{"blue"}},
	} {
		_, err := p.Compile("order")
		require.Error(t, err, want)
		assert.Contains(t, err.Error(), want)
		assert.Contains(t, err.Error(), "subset: policy: ")
	}
}

func TestUnavailableErrorSaysWhatThereIs(t *testing.T) {
	tab := table(t, subset.Policy{Strict: true}, subset.Subset{Registered: 2}, subset.Subset{Version: "v2", Registered: 1})
	c, wanted := tab.Choose(graytag.MustParse("version=v9"))
	err := tab.Unavailable(c, wanted, os.ErrDeadlineExceeded)
	assert.Equal(t, `subset: no instance of service "order" may serve version "v9" (missing); registered: stable=2 v2=1; last error: i/o timeout`, err.Error())
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)

	var many []subset.Subset
	for i := range 1000 {
		many = append(many, subset.Subset{Version: string(rune('a' + i)), Registered: 1})
	}
	tab = table(t, subset.Policy{}, many...)
	c, wanted = tab.Choose(graytag.Tag{})
	assert.Less(t, len(tab.Unavailable(c, wanted, nil).Error()), 500)
}

func TestChooseDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	tab := table(t, subset.Policy{FoldCase: true}, subset.Subset{Registered: 1, Ready: 1}, subset.Subset{Version: "v2", Registered: 1, Ready: 1})
	for _, tag := range []string{"", "version=v2", "version=v9", "version=v9;version.order=v2"} {
		parsed := graytag.MustParse(tag)
		assert.Zero(t, testing.AllocsPerRun(100, func() { tab.Choose(parsed) }), tag)
	}
}

func BenchmarkChoose(b *testing.B) {
	tab := table(b, subset.Policy{}, subset.Subset{Registered: 1, Ready: 1}, subset.Subset{Version: "v2", Registered: 1, Ready: 1})
	for _, tag := range []string{"", "version=v2", "uid=10086;version=v2;version.order=v9"} {
		parsed := graytag.MustParse(tag)
		b.Run(tag, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				tab.Choose(parsed)
			}
		})
	}
}
