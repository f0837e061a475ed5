package rule_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/race"
)

// others is a set of n rules, each for one other user, by one of two headers or
// by uid.
func others(n int) *rule.Set {
	s := &rule.Set{}
	for i := range n {
		attr := []string{"header:X-Team", "header:X-Device", "uid"}[i%3]
		s.Rules = append(s.Rules, rule.Rule{
			ID:    fmt.Sprintf("rule-%d", i),
			Match: []rule.Condition{{Attr: attr, Op: rule.OpEquals, Values: []string{fmt.Sprintf("other-%d", i)}}},
			Tag:   "version=v2",
		})
	}
	return s
}

func whitelist(n int) *rule.Set {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("user-%d", i)
	}
	return &rule.Set{Rules: []rule.Rule{{
		ID: "whitelist", Tag: "version=v2",
		Match: []rule.Condition{{Attr: "uid", Op: rule.OpIn, Values: values}},
	}}}
}

// full is a request that holds everything that those rules look at.
func full(uid string) *rule.Request {
	return &rule.Request{
		Header: func(name string) (string, bool) {
			switch name {
			case "X-Team":
				return "checkout", true
			case "X-Device":
				return "4711-0815", true
			case "X-User-Id":
				return uid, true
			}
			return "", false
		},
		Cookie: func(string) (string, bool) { return "", false },
		Query:  func(string) (string, bool) { return "", false },
	}
}

func started(t testing.TB, s *rule.Set) *rule.Engine {
	t.Helper()
	e, err := rule.NewEngine(s, rule.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	return e
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("rules=%d", n), func(b *testing.B) {
			e, r := started(b, others(n)), full("10086")
			b.ReportAllocs()
			for b.Loop() {
				if d := e.Decide(r); !d.Tag.IsZero() {
					b.Fatal("matched")
				}
			}
		})
	}
	b.Run("whitelist=100000", func(b *testing.B) {
		e, r := started(b, whitelist(100_000)), full("user-77777")
		b.ReportAllocs()
		for b.Loop() {
			if d := e.Decide(r); d.Tag.IsZero() {
				b.Fatal("not matched")
			}
		}
	})
	b.Run("percent", func(b *testing.B) {
		e, r := started(b, &rule.Set{Rules: []rule.Rule{{ID: "r", Percent: rule.MustPercent("50"), Salt: "checkout-v2", Tag: "version=v2"}}}), full("10086")
		b.ReportAllocs()
		for b.Loop() {
			if d := e.Decide(r); d.Tag.IsZero() {
				b.Fatal("not matched")
			}
		}
	})
	b.Run("services+carry", func(b *testing.B) {
		e, r := started(b, &rule.Set{Carry: []string{"uid"}, Rules: []rule.Rule{
			{ID: "a", Services: []string{"order", "inventory"}, Tag: "version=v2"},
			{ID: "b", Tag: "lane=x"},
		}}), full("10086")
		b.ReportAllocs()
		for b.Loop() {
			if d := e.Decide(r); d.Tag.IsZero() {
				b.Fatal("not matched")
			}
		}
	})
}

func BenchmarkBucket(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if rule.Bucket("app-10pct", "10086") != 32284 {
			b.Fatal("bucket")
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	s := others(10_000)
	doc, err := rule.Marshal(s)
	require.NoError(b, err)
	b.Run("engine/rules=10000", func(b *testing.B) {
		for b.Loop() {
			_, _ = rule.NewEngine(s)
		}
	})
	b.Run("parse/rules=10000", func(b *testing.B) {
		b.SetBytes(int64(len(doc)))
		for b.Loop() {
			_, _ = rule.Parse(doc)
		}
	})
	w := whitelist(100_000)
	b.Run("engine/whitelist=100000", func(b *testing.B) {
		for b.Loop() {
			_, _ = rule.NewEngine(w)
		}
	})
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	one := started(t, &rule.Set{Rules: []rule.Rule{{ID: "r", Tag: "version=v2"}}})
	percent := started(t, &rule.Set{Rules: []rule.Rule{{ID: "r", Percent: rule.MustPercent("50"), HashBy: []string{"uid", "group"}, Salt: "checkout-v2", Tag: "version=v2"}}})
	services := started(t, &rule.Set{Rules: []rule.Rule{{ID: "a", Services: []string{"order"}, Tag: "version=v2"}, {ID: "b", Tag: "lane=x"}}})
	carry := started(t, &rule.Set{Carry: []string{"uid"}, Rules: []rule.Rule{{ID: "r", Tag: "version=v2"}}})
	r := full("10086")
	require.Equal(t, "lane=x;version.order=v2", services.Decide(r).Tag.String())
	require.Equal(t, "uid=10086;version=v2", carry.Decide(r).Tag.String())
	require.Equal(t, "version=v2", percent.Decide(r).Tag.String())
	none, many, listed := started(t, others(10_000)), started(t, whitelist(100_000)), full("user-5")
	for _, c := range []struct {
		name string
		most float64
		f    func()
	}{
		{"one global rule", 0, func() { one.Decide(r) }},
		{"percent", 0, func() { percent.Decide(r) }},
		{"services, seen before", 0, func() { services.Decide(r) }},
		{"carry", 5, func() { carry.Decide(r) }},
		{"10000 rules for others", 0, func() { none.Decide(r) }},
		{"whitelist", 0, func() { many.Decide(listed) }},
		{"bucket", 0, func() { rule.Bucket("app-10pct", "10086") }},
	} {
		assert.LessOrEqual(t, testing.AllocsPerRun(200, c.f), c.most, c.name)
	}
}

// histogram counts durations in steps of 10 ns, without allocating.
type histogram struct {
	counts [100_000]uint32 // the last one is 1 ms and more
	total  int
}

func (h *histogram) add(d time.Duration) {
	h.counts[min(int(d/10), len(h.counts)-1)]++
	h.total++
}

func (h *histogram) at(quantile float64) time.Duration {
	left := int(float64(h.total) * quantile)
	for i, n := range h.counts {
		if left -= int(n); left <= 0 {
			return time.Duration(i) * 10
		}
	}
	return time.Millisecond
}

// Figures, not assertions: what a reload does to the slowest decisions. The
// clock alone is some 50 ns of each.
func TestDecisionsWhileReloading(t *testing.T) {
	e, r := started(t, others(10_000)), full("10086")
	sets := []*rule.Set{others(10_000), others(9_999)}
	idle, under := &histogram{}, &histogram{}
	measure := func(h *histogram) {
		for begin := time.Now(); time.Since(begin) < time.Second; {
			for range 1000 {
				start := time.Now()
				e.Decide(r)
				h.add(time.Since(start))
			}
		}
	}
	measure(idle)
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- i
				return
			case <-tick.C:
				assert.NoError(t, e.Load(sets[i%2]))
			}
		}
	}()
	measure(under)
	close(stop)
	reloads := <-done
	t.Logf("decision by 10000 rules: idle p50 %v p99.9 %v; with %d reloads, one every 100 ms: p50 %v p99.9 %v, that is %.1f x the idle p50",
		idle.at(0.5), idle.at(0.999), reloads, under.at(0.5), under.at(0.999), float64(under.at(0.999))/float64(max(idle.at(0.5), 1)))
	assert.Positive(t, reloads)
}
