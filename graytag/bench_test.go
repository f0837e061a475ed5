package graytag_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
)

func wire(pairs int) (tag, members string) {
	all := []string{"channel=app", "uid=10086", "version=v2.1.0", "lane=checkout", "region=sh", "zone=sh-1", "env=prod", "a=1", "b=2", "c=3"}
	list := all[:pairs]
	var m []string
	for _, p := range list {
		m = append(m, "gray."+p)
	}
	return strings.Join(list, ";"), strings.Join(m, ",")
}

func BenchmarkParse(b *testing.B) {
	for _, n := range []int{1, 3, 10} {
		tag, members := wire(n)
		b.Run(fmt.Sprintf("graylane/pairs=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := graytag.Parse(tag); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("otel_baggage/pairs=%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := baggage.Parse(members); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type otherKey int

func deep(ctx context.Context) context.Context {
	for i := range 3 {
		ctx = context.WithValue(ctx, otherKey(i), i)
	}
	return ctx
}

func BenchmarkFromContext(b *testing.B) {
	ctx := deep(graytag.NewContext(context.Background(), graytag.MustParse("uid=1;version=v2")))
	b.ReportAllocs()
	for b.Loop() {
		if graytag.FromContext(ctx).IsZero() {
			b.Fatal("no tag")
		}
	}
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	for _, n := range []int{1, 3, 10} {
		in, _ := wire(n)
		assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = graytag.Parse(in) }), 3.0, in)
	}
	escaped := "channel=小程序;note=a%2Fb;uid=10086"
	assert.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = graytag.Parse(escaped) }), 3.0, escaped)

	tag := graytag.MustParse("uid=10086;version=v2;version.order=v3")
	tagged := deep(graytag.NewContext(context.Background(), tag))
	untagged := deep(graytag.NewContext(context.Background(), graytag.Tag{}))
	for name, f := range map[string]func(){
		"FromContext":             func() { graytag.FromContext(tagged) },
		"FromContext of untagged": func() { graytag.FromContext(untagged) },
		"FromContext of lost":     func() { graytag.FromContext(context.Background()) },
		"InScope":                 func() { graytag.InScope(tagged) },
		"String":                  func() { _ = tag.String() },
		"Route":                   func() { tag.Route("version", "order") },
	} {
		assert.Zero(t, testing.AllocsPerRun(100, f), name)
	}
	require.Equal(t, "v3", tag.Route("version", "order"))
}
