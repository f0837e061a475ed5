package graygrpc_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// 10,000 distinct users and versions, from callers who choose both.
func TestM2_SeriesAreBounded(t *testing.T) {
	// No limit of the SDK's own hides what we do.
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithCardinalityLimit(0))
	reg := memory.New()
	self := registry.Instance{Service: "order"}
	register(t, reg, "s1", "order", "", serve(t, quiet{}, serverOptions(t, graygrpc.WithSelf(self), graygrpc.WithMeterProvider(provider), silent)...))
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg, graygrpc.WithMeterProvider(provider))...)
	client := testgrpc.NewTestServiceClient(conn)
	send := func(from, to int) {
		for i := from; i < to; i++ {
			ctx := graytag.NewContext(context.Background(), graytag.MustParse(fmt.Sprintf("uid=user-%d;version=v%d", i, i)))
			if _, err := client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	send(0, 2000)
	before := heap()
	send(2000, 10_000)
	if after := heap(); !race.Enabled {
		assert.Less(t, int64(after)-int64(before), int64(1<<20), "8000 more users and versions are kept nowhere")
	}

	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	series := map[string]int{}
	total := map[string]int64{}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				series[m.Name] = len(data.DataPoints)
				for _, dp := range data.DataPoints {
					total[m.Name] += dp.Value
					assert.NotContains(t, dp.Attributes.Encoded(attribute.DefaultEncoder()), "user-")
				}
			case metricdata.Histogram[float64]:
				series[m.Name] = len(data.DataPoints)
				for _, dp := range data.DataPoints {
					total[m.Name] += int64(dp.Count)
					assert.NotContains(t, dp.Attributes.Encoded(attribute.DefaultEncoder()), "user-")
				}
			}
		}
	}
	for _, name := range []string{"graylane.route.decisions", "graylane.server.requests", "graylane.server.duration"} {
		assert.EqualValues(t, 10_000, total[name], name)
		assert.LessOrEqual(t, series[name], 102, name)
		assert.Greater(t, series[name], 50, name)
	}
}
