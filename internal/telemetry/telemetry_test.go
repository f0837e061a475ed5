package telemetry_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

func TestNilRecordsNothing(t *testing.T) {
	var m *telemetry.Metrics
	ctx := context.Background()
	m.CountMalformed(ctx, "x")
	m.CountOrphan(ctx)
	m.CountWithheld(ctx, telemetry.WithheldHost)
	m.CountForged(ctx, telemetry.ForgedHeader)
	m.Request(ctx, "", "")
	m.Decision("a", "b", "c", "d", "e").Add(ctx)
	assert.False(t, m.DecisionsEnabled(ctx))

	m = telemetry.New(nil)
	s := m.Decision("a", "b", "c", "d", "e")
	assert.Zero(t, testing.AllocsPerRun(100, func() { s.Add(ctx) }))
}
