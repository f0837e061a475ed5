package telemetry_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/internal/telemetry"
)

func TestLabelsAreBounded(t *testing.T) {
	l := telemetry.NewLabels(10)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				l.Bound(strconv.Itoa(i*8 + g))
				l.Bound("same")
			}
		})
	}
	wg.Wait()
	distinct := map[string]bool{}
	for i := range 8000 {
		distinct[l.Bound(strconv.Itoa(i))] = true
	}
	assert.LessOrEqual(t, len(distinct), 11)
	assert.Equal(t, telemetry.Other, telemetry.NewLabels(10).Bound("\xff"))
}

func TestDecisionsAreCountedUnderTheirLabels(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m := telemetry.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	s := m.Decision("order", "v2", "", "fallback_stable", "missing")
	s.Add(context.Background())
	s.Add(context.Background())
	for i := range 10_000 {
		m.Decision("order", fmt.Sprint("v", i), "", "fallback_stable", "missing").Add(context.Background())
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	points := rm.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints
	assert.LessOrEqual(t, len(points), telemetry.DistinctValues+1)
	var total int64
	for _, p := range points {
		total += p.Value
	}
	assert.EqualValues(t, 10_002, total)
}

// Whoever sends tags chooses what is wanted, and may want anything. What the
// registry knows keeps its name all the same.
func TestWantedVersionsOfOutsidersDoNotHideRealOnes(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	m := telemetry.New(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	ctx := context.Background()
	for i := range 10_000 {
		v := fmt.Sprint("forged", i)
		m.Decision("order", v, "", "fallback_stable", "missing").Add(ctx)
		m.Decision(fmt.Sprint("nobody", i), v, "", "unavailable", "missing").Add(ctx)
		m.Request(ctx, v, "fallback")
	}
	m.Decision("payment", "v2", "v2", "matched", "").Add(ctx)
	m.Decision("payment", "v3", "", "fallback_stable", "unhealthy").Add(ctx)
	m.Decision("payment", "v9", "v4", "fallback_any", "missing").Add(ctx)
	m.Decision("search", "v5", "", "unavailable", "connecting").Add(ctx)
	m.Request(ctx, "v6", "matched")
	for i := range 10_000 { // of a registry that has gone mad
		v := fmt.Sprint("real", i)
		m.Decision(v, v, v, "matched", "").Add(ctx)
	}

	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(ctx, &rm))
	got := map[string]bool{}
	values := map[string]map[string]bool{"service": {}, "wanted": {}, "served": {}}
	for _, metric := range rm.ScopeMetrics[0].Metrics {
		for _, p := range metric.Data.(metricdata.Sum[int64]).DataPoints {
			var line string
			for _, key := range []string{"service", "wanted", "served"} {
				v, ok := p.Attributes.Value(attribute.Key(key))
				line += " " + v.AsString()
				if ok {
					values[key][v.AsString()] = true
				}
			}
			got[line] = true
		}
	}
	for _, line := range []string{" payment v2 v2", " payment v3 stable", " payment other v4", " search v5 none", "  v6 "} {
		assert.Contains(t, got, line)
	}
	for key, distinct := range values {
		assert.LessOrEqual(t, len(distinct), 2*telemetry.DistinctValues+3, "%s is bounded", key)
	}
}

func TestNilRecordsNothing(t *testing.T) {
	var m *telemetry.Metrics
	ctx := context.Background()
	m.CountMalformed(ctx, "x")
	telemetry.NewOrphanCounter(m, slog.New(slog.DiscardHandler)).Count(ctx, "order")
	m.Duration(ctx, "", "", false, "200", time.Second)
	m.CountWithheld(ctx, telemetry.WithheldHost)
	m.CountForged(ctx, telemetry.ForgedHeader)
	m.Request(ctx, "", "")
	m.Decision("a", "b", "c", "d", "e").Add(ctx)
	assert.False(t, m.DecisionsEnabled(ctx))

	m = telemetry.New(nil)
	s := m.Decision("a", "b", "c", "d", "e")
	assert.Zero(t, testing.AllocsPerRun(100, func() { s.Add(ctx) }))
}
