package rule_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/telemetry"
)

// gauges reads what an engine shows: by name, with the cause where there is one.
func gauges(t *testing.T, reader sdkmetric.Reader) map[string]float64 {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	got := map[string]float64{}
	add := func(name string, set attribute.Set, v float64) {
		if cause, ok := set.Value("cause"); ok {
			name += " " + cause.AsString()
		}
		got[name] = v
	}
	for _, scope := range rm.ScopeMetrics {
		assert.Equal(t, telemetry.Scope, scope.Scope.Name)
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			}
		}
	}
	return got
}

func TestGaugesShowTheRulesWhileTheyAreFollowed(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	e, err := rule.NewEngine(nil, rule.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		rule.WithMeterProvider(nil), rule.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	assert.Empty(t, gauges(t, reader), "an engine that follows nothing")

	s := &scripted{steps: make(chan event)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- e.Follow(ctx, s) }()
	s.steps <- event{doc: rule.Document{Data: []byte(`{}`), Revision: 5}}
	inForce(t, e, 5)
	got := gauges(t, reader)
	age := got[telemetry.RulesAge]
	assert.Greater(t, age, 0.0)
	assert.Less(t, age, time.Minute.Seconds())
	assert.Greater(t, gauges(t, reader)[telemetry.RulesAge], age, "it grows")
	delete(got, telemetry.RulesAge)
	assert.Equal(t, map[string]float64{
		telemetry.RulesRevision: 5, telemetry.RulesFailing + " refused": 0, telemetry.RulesFailing + " store": 0,
	}, got)

	s.steps <- event{doc: rule.Document{Data: []byte(`{`), Revision: 6}}
	s.steps <- event{err: errors.New("connection refused")}
	require.Eventually(t, func() bool { return gauges(t, reader)[telemetry.RulesFailing+" store"] == 1 }, 5*time.Second, time.Millisecond)
	got = gauges(t, reader)
	assert.EqualValues(t, 1, got[telemetry.RulesFailing+" refused"])
	assert.EqualValues(t, 5, got[telemetry.RulesRevision], "what is in force")

	s.steps <- event{doc: rule.Document{Data: []byte(`{}`), Revision: 7}}
	inForce(t, e, 7)
	got = gauges(t, reader)
	assert.Zero(t, got[telemetry.RulesFailing+" refused"]+got[telemetry.RulesFailing+" store"])
	assert.EqualValues(t, 7, got[telemetry.RulesRevision])

	stop()
	close(s.steps)
	require.ErrorIs(t, <-done, context.Canceled)
	assert.Empty(t, gauges(t, reader), "nobody follows any more")
}

// The global provider counts, also where it is set after the engine has begun.
func TestGaugesGoToTheGlobalProvider(t *testing.T) {
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	reader := sdkmetric.NewManualReader()
	var provider metric.MeterProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))

	e, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	s := rule.NewMemoryStore()
	revision, err := s.Put(context.Background(), rule.Document{Data: []byte(`{}`)}, 0)
	require.NoError(t, err)
	follow(t, e, s)
	inForce(t, e, revision)
	otel.SetMeterProvider(provider)
	assert.EqualValues(t, revision, gauges(t, reader)[telemetry.RulesRevision])
}
