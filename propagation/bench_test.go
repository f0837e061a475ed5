package propagation_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprop "go.opentelemetry.io/otel/propagation"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/propagation"
)

func BenchmarkInject(b *testing.B) {
	p, err := propagation.New()
	require.NoError(b, err)
	tagged := graytag.NewContext(context.Background(), tag)
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})
	for _, c := range []struct {
		name string
		p    otelprop.TextMapPropagator
		ctx  context.Context
	}{{"graylane", p, tagged}, {"otel_baggage", otelprop.Baggage{}, tagged}, {"graylane/untagged", p, untagged}, {"otel_baggage/untagged", otelprop.Baggage{}, untagged}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			h := http.Header{}
			for b.Loop() {
				c.p.Inject(c.ctx, otelprop.HeaderCarrier(h))
			}
		})
	}
}

func BenchmarkExtract(b *testing.B) {
	p, err := propagation.New()
	require.NoError(b, err)
	full := http.Header{"Accept": {"*/*"}, "User-Agent": {"x"}}
	p.Inject(graytag.NewContext(context.Background(), tag), otelprop.HeaderCarrier(full))
	only := full.Clone()
	only.Del("X-Gray-Tag")
	none := http.Header{"Accept": {"*/*"}, "User-Agent": {"x"}}
	for _, c := range []struct {
		name string
		p    otelprop.TextMapPropagator
		h    http.Header
	}{{"graylane", p, full}, {"otel_baggage", otelprop.Baggage{}, only}, {"graylane/untagged", p, none}, {"otel_baggage/untagged", otelprop.Baggage{}, none}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.p.Extract(context.Background(), otelprop.HeaderCarrier(c.h))
			}
		})
	}
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	p, err := propagation.New()
	require.NoError(t, err)
	none := http.Header{"Accept": {"*/*"}}
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Extract(context.Background(), otelprop.HeaderCarrier(none)) }))
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Inject(untagged, otelprop.HeaderCarrier(none)) }))

	tagged := graytag.NewContext(context.Background(), tag)
	h := http.Header{}
	ours := testing.AllocsPerRun(100, func() { p.Inject(tagged, otelprop.HeaderCarrier(h)) })
	theirs := testing.AllocsPerRun(100, func() { otelprop.Baggage{}.Inject(tagged, otelprop.HeaderCarrier(h)) })
	assert.LessOrEqual(t, ours, theirs+2, "Inject")
	ours = testing.AllocsPerRun(100, func() { p.Extract(context.Background(), otelprop.HeaderCarrier(h)) })
	theirs = testing.AllocsPerRun(100, func() { otelprop.Baggage{}.Extract(context.Background(), otelprop.HeaderCarrier(h)) })
	assert.LessOrEqual(t, ours, theirs+2, "Extract")
}
