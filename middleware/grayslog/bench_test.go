package grayslog_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/grayslog"
)

func contexts() map[string]context.Context {
	return map[string]context.Context{
		"no_scope": context.Background(),
		"untagged": graytag.NewContext(context.Background(), graytag.Tag{}),
		"tagged":   tagged("uid=10086;channel=app;version=v2.1.0"),
	}
}

func BenchmarkHandle(b *testing.B) {
	json := slog.NewJSONHandler(io.Discard, nil)
	for name, h := range map[string]slog.Handler{
		"bare": json, "version": grayslog.NewHandler(json), "tag": grayslog.NewHandler(json, grayslog.WithTag()),
	} {
		for _, group := range []string{"", "g"} {
			l := slog.New(h).With("service", "order").WithGroup(group).With("component", "payment")
			for kind, ctx := range contexts() {
				b.Run(fmt.Sprintf("%s/group=%t/%s", name, group != "", kind), func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						l.LogAttrs(ctx, slog.LevelInfo, "paid", slog.Int("amount", 100), slog.String("currency", "CNY"))
					}
				})
			}
		}
	}
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	bare := slog.New(slog.NewJSONHandler(io.Discard, nil))
	ours := slog.New(grayslog.NewHandler(bare.Handler(), grayslog.WithService("order")))
	lots := make([]slog.Attr, 8)
	for i := range lots {
		lots[i] = slog.Int(fmt.Sprint("k", i), i)
	}
	for kind, ctx := range contexts() {
		for _, c := range []struct {
			name  string
			group string
			attrs []slog.Attr
			more  float64 // where a version is added
		}{
			{"few", "", lots[:4], 0},
			{"many", "", lots, 1},
			{"few, in a group", "g", lots[:4], 0},
			{"many, in a group", "g", lots, 0},
		} {
			want := 0.0
			if kind != "no_scope" {
				want = c.more
			}
			allocs := func(l *slog.Logger) float64 {
				l = l.With("a", 1).WithGroup(c.group).With("b", 1)
				return testing.AllocsPerRun(100, func() { l.LogAttrs(ctx, slog.LevelInfo, "x", c.attrs...) })
			}
			assert.LessOrEqual(t, allocs(ours)-allocs(bare), want, "%s, %s", kind, c.name)
		}
	}
	// Whoever chooses versions does not make the handler keep them: every line costs
	// the same in the end.
	l := ours.WithGroup("g").With("b", 1)
	next := 0
	versions := make([]context.Context, 200)
	for i := range versions {
		versions[i] = tagged(fmt.Sprint("version=v", i))
	}
	one := func() {
		l.LogAttrs(versions[next%len(versions)], slog.LevelInfo, "x")
		next++
	}
	assert.LessOrEqual(t, testing.AllocsPerRun(1000, one), 30.0)
}
