package promsource_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rollout/promsource"
)

// history is what a Prometheus has scraped each 15 s; scrape 0 was an hour ago.
type history struct {
	began time.Time
	lines map[string][]string // by metric
}

const every = 15 * time.Second

func (h *history) at(scrape int) time.Time { return h.began.Add(time.Duration(scrape) * every) }

// none is no value at a scrape.
const none = -1

func (h *history) add(metric, labels string, value func(scrape int) float64) {
	for i := range 240 {
		if v := value(i); v != none {
			h.lines[metric] = append(h.lines[metric], fmt.Sprintf("%s{%s} %v %d\n", metric, labels, v, h.at(i).Unix()))
		}
	}
}

func (h *history) text() string {
	var b strings.Builder
	for _, metric := range slices.Sorted(maps.Keys(h.lines)) {
		name, kind := metric, "unknown"
		if base, ok := strings.CutSuffix(metric, "_total"); ok {
			name, kind = base, "counter"
		}
		fmt.Fprintf(&b, "# TYPE %s %s\n%s", name, kind, strings.Join(h.lines[metric], ""))
	}
	return b.String()
}

// served adds the counters of an instance.
func (h *history) served(job, instance, wanted, version, status string, value func(int) float64) {
	labels := fmt.Sprintf(`job=%q,instance=%q,wanted=%q,version=%q,status=%q`, job, instance, wanted, version, status)
	h.add("graylane_server_duration_seconds_count", labels, value)
	// All took between 50 and 75 ms.
	for le, share := range map[string]float64{"0.05": 0, "0.075": 1, "+Inf": 1} {
		h.add("graylane_server_duration_seconds_bucket", labels+fmt.Sprintf(",le=%q", le), func(i int) float64 {
			if v := value(i); v == none {
				return none
			} else {
				return v * share
			}
		})
	}
}

func (h *history) up(job, instance string, value func(int) float64) {
	h.add("up", fmt.Sprintf("job=%q,instance=%q", job, instance), value)
}

func rising(by float64) func(int) float64 { return func(i int) float64 { return by * float64(i) } }

func fixed(v float64) func(int) float64 { return func(int) float64 { return v } }

// from is none before a scrape.
func from(scrape int, value func(int) float64) func(int) float64 {
	return func(i int) float64 {
		if i < scrape {
			return none
		}
		return value(i)
	}
}

func until(scrape int, value func(int) float64) func(int) float64 {
	return func(i int) float64 {
		if i > scrape {
			return none
		}
		return value(i)
	}
}

// TestHistories asks a real Prometheus about what it has scraped. The window is from
// scrape 180 to 200, which are five minutes.
func TestHistories(t *testing.T) {
	h := &history{began: time.Now().Add(-time.Hour).Truncate(every), lines: map[string][]string{}}
	always := fixed(1)

	// Two replicas of stable, one gray with faults and a client that hung up.
	for _, i := range []string{"a:1", "b:1"} {
		h.up("plain", i, always)
		h.served("plain", i, "stable", "stable", "200", rising(10))
	}
	h.served("plain", "g:1", "v2", "v2", "200", rising(5))
	h.served("plain", "g:1", "v2", "v2", "INTERNAL", rising(1))
	h.served("plain", "g:1", "v2", "v2", "CANCELLED", rising(100))
	h.served("plain", "a:1", "v2", "stable", "200", rising(2))
	h.served("plain", "a:1", "v3", "v3", "500", rising(7))
	h.add("graylane_route_decisions_total", `job="client",instance="c:1",service="plain",wanted="v2",served="none",outcome="unavailable",reason="missing"`, rising(3))
	h.add("graylane_route_decisions_total", `job="client",instance="c:1",service="plain",wanted="v2",served="v2",outcome="matched",reason=""`, rising(30))

	// The first faults that there ever were, all between two scrapes.
	h.up("begun", "g:1", always)
	h.served("begun", "g:1", "v2", "v2", "200", rising(5))
	h.served("begun", "g:1", "v2", "v2", "500", from(190, fixed(40)))

	// Faults of before the window.
	h.up("before", "g:1", always)
	h.served("before", "g:1", "v2", "v2", "200", rising(5))
	h.served("before", "g:1", "v2", "v2", "500", from(179, fixed(40)))

	// Faults from before a gap in the scrapes, seen only after it.
	h.up("gap", "g:1", func(i int) float64 {
		if i > 100 && i < 190 {
			return none
		}
		return 1
	})
	h.served("gap", "g:1", "v2", "v2", "200", from(190, rising(5)))
	h.served("gap", "g:1", "v2", "v2", "500", from(190, fixed(4000)))

	// An instance that starts anew.
	h.up("reset", "g:1", always)
	h.served("reset", "g:1", "v2", "v2", "200", func(i int) float64 {
		if i >= 190 {
			i -= 190
		}
		return float64(5 * i)
	})

	// One that is gone, and one that came, in the middle of the window.
	h.up("moved", "g:1", until(190, always))
	h.served("moved", "g:1", "v2", "v2", "200", until(190, rising(5)))
	h.up("moved", "g:2", from(191, always))
	h.served("moved", "g:2", "v2", "v2", "200", from(191, func(i int) float64 { return float64(5 * (i - 191)) }))

	// One of two that cannot be scraped for a while.
	down := func(i int) float64 {
		if i >= 185 && i < 190 {
			return 0
		}
		return 1
	}
	h.up("down", "g:1", always)
	h.up("down", "g:2", down)
	h.served("down", "g:1", "v2", "v2", "200", rising(5))

	h.served("stale", "g:1", "v2", "v2", "200", until(188, rising(5)))
	h.served("old", "g:1", "v2", "v2", "200", until(170, rising(5)))
	h.served("once", "g:1", "v2", "v2", "200", from(200, until(200, fixed(100))))
	h.served("nan", "g:1", "v2", "v2", "200", fixed(math.NaN()))
	h.served(`we"ird.\x`, "g:1", "v2.1|x", "v2.1|x", "200", rising(5))
	h.served(`we"irdy\x`, "g:1", "v2.1|x", "v2.1|x", "200", rising(7))
	h.served(`we"ird.\x`, "g:1", "v2", "v2", "200", rising(7))

	url := startPrometheus(t, backfill(t, h.text()), "{}")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	source := func(opts ...promsource.Option) *promsource.Source {
		s, err := promsource.New(url, append(opts, promsource.WithHTTPClient(client))...)
		require.NoError(t, err)
		return s
	}
	ask := func(s *promsource.Source, service, version string, first, last int) ([]rollout.Sample, error) {
		return s.Samples(context.Background(), rollout.Query{Service: service, Version: version, From: h.at(first), To: h.at(last)})
	}
	get := func(service, version string) string {
		list, err := ask(source(), service, version, 180, 200)
		if err != nil {
			return err.Error()
		}
		return show(list)
	}

	assert.Equal(t, " by : 400, 0 failed; v2 by : 40, 0 failed; v2 by none: 60, 60 failed; v2 by v2: 120, 20 failed", get("plain", "v2"))
	assert.Equal(t, " by : 400, 0 failed; v3 by v3: 140, 140 failed", get("plain", "v3"))
	assert.Equal(t, " by : 400, 0 failed", get("plain", ""))
	assert.Equal(t, "v2 by v2: 140, 40 failed", get("begun", "v2"))
	assert.Equal(t, "v2 by v2: 100, 0 failed", get("before", "v2"), "they are no evidence")
	assert.Regexp(t, `^v2 by v2: 5[0-9], 0 failed$`, get("gap", "v2"), "nobody knows when they were")
	assert.Equal(t, "v2 by v2: 95, 0 failed", get("reset", "v2"), "what it counted after the last scrape is lost")
	assert.Regexp(t, `^v2 by v2: (9[5-9]|10[0-9]), 0 failed$`, get("moved", "v2"))
	assert.Equal(t, "", get("nobody", "v2"), "no traffic")
	assert.Contains(t, get("stale", "v2"), "no scrape in the newer half")
	assert.Equal(t, "", get("old", "v2"), "nothing in the window, and no samples of it")
	assert.Contains(t, get("once", "v2"), "1 scrapes in the window")
	assert.Contains(t, get("nan", "v2"), `the value "NaN"`)
	assert.Equal(t, "v2.1|x by v2.1|x: 100, 0 failed", get(`we"ird.\x`, "v2.1|x"))
	assert.Equal(t, "v2 by v2: 140, 0 failed", get(`we"ird.\x`, "v2"))

	list, err := ask(source(promsource.WithMatchers(`instance="a:1"`)), "plain", "v2", 180, 200)
	require.NoError(t, err)
	assert.Equal(t, " by : 200, 0 failed; v2 by : 40, 0 failed", show(list))
	list, err = ask(source(promsource.WithServiceLabel("instance")), "g:1", "v2.1|x", 180, 200)
	require.NoError(t, err)
	assert.Equal(t, "v2.1|x by v2.1|x: 240, 0 failed", show(list))
	_, err = ask(source(), "", "v2", 180, 200)
	assert.ErrorContains(t, err, "NaN", "all services, and one of them has no numbers")
	list, err = ask(source(promsource.WithMatchers(`job!="nan"`)), "", "v3", 180, 200)
	require.NoError(t, err)
	assert.Equal(t, " by : 400, 0 failed; v3 by v3: 140, 140 failed", show(list))

	// The latencies of a plain window.
	list, err = ask(source(), "plain", "v2", 180, 200)
	require.NoError(t, err)
	for _, s := range list {
		if s.Served == rollout.ServedNone {
			assert.Nil(t, s.Latency)
			continue
		}
		assert.Equal(t, s.Requests, s.Latency.Count())
		assert.InDelta(t, 0.0748, s.Latency.Quantile(0.99).Seconds(), 0.002)
	}

	// A stage that has just begun: what was before is not in it.
	list, err = ask(source(), "begun", "v2", 191, 195)
	require.NoError(t, err)
	assert.Equal(t, "v2 by v2: 20, 0 failed", show(list))
	_, err = ask(source(), "begun", "v2", 191, 191)
	assert.ErrorContains(t, err, "too short")
	list, err = ask(source(), "begun", "v2", 185, 195)
	require.NoError(t, err)
	assert.Equal(t, "v2 by v2: 90, 40 failed", show(list))

	// Whoever wants that says that all targets have to be up, as the documentation has it.
	strict := promsource.DefaultQueries()
	strict.Scrapes += ` and on () min(min_over_time(up{$label=~"$service"$matchers}[$window])) == 1`
	assert.Equal(t, "v2 by v2: 100, 0 failed", get("down", "v2"))
	_, err = ask(source(promsource.WithQueries(strict)), "down", "v2", 180, 200)
	assert.ErrorContains(t, err, "0 scrapes in the window")
	list, err = ask(source(promsource.WithQueries(strict)), "down", "v2", 190, 210)
	require.NoError(t, err)
	assert.Equal(t, "v2 by v2: 100, 0 failed", show(list))

	// A query that Prometheus does not understand.
	_, err = ask(source(promsource.WithMatchers("nonsense")), "plain", "v2", 180, 200)
	var no *promsource.APIError
	require.ErrorAs(t, err, &no)
	assert.Equal(t, "bad_data", no.Type)
}

func show(list []rollout.Sample) string {
	var all []string
	for _, s := range list {
		all = append(all, fmt.Sprintf("%s by %s: %d, %d failed", s.Wanted, s.Served, s.Requests, s.Errors))
	}
	return strings.Join(all, "; ")
}
