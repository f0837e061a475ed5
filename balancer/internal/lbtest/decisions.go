package lbtest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
)

// Decisions sees what a client decides, both ways: by observer and by metrics.
type Decisions struct {
	reader *sdkmetric.ManualReader

	mu  sync.Mutex
	all []subset.Decision
}

// NewDecisions returns one that sees what its Options are given to.
func NewDecisions() *Decisions { return &Decisions{reader: sdkmetric.NewManualReader()} }

// Options are for the client to be watched.
func (d *Decisions) Options() []resolver.Option {
	return []resolver.Option{
		resolver.WithObserver(func(_ context.Context, one subset.Decision) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.all = append(d.all, one)
		}),
		resolver.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(d.reader))),
	}
}

// Take returns what was observed since the last call.
func (d *Decisions) Take() []subset.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.all
	d.all = nil
	return all
}

// Labels are those of graylane.route.decisions.
type Labels struct{ Service, Wanted, Served, Outcome, Reason string }

// Counted returns the counter since the client began.
func (d *Decisions) Counted(tb testing.TB) map[Labels]int {
	tb.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(tb, d.reader.Collect(context.Background(), &rm))
	got := make(map[Labels]int)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != telemetry.RouteDecisions {
				continue
			}
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				value := func(key string) string {
					v, _ := p.Attributes.Value(attribute.Key(key))
					return v.AsString()
				}
				got[Labels{value("service"), value("wanted"), value("served"), value("outcome"), value("reason")}] += int(p.Value)
			}
		}
	}
	return got
}
