package middleware_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/middleware/grayslog"
)

// seen is what an engineer sees of one process: its metrics, its log, its spans.
type seen struct {
	reader *sdkmetric.ManualReader
	meter  *sdkmetric.MeterProvider
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
	log    *lines
	logger *slog.Logger
}

func newSeen(t testing.TB) *seen {
	t.Helper()
	s := &seen{reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder(), log: &lines{}}
	s.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))
	s.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(s.spans))
	s.logger = slog.New(grayslog.NewHandler(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}), grayslog.WithTag()))
	return s
}

// point is one series of a metric.
type point struct {
	metric, kind, unit string
	attrs              map[string]string
	value              float64 // of a histogram, how many were recorded
}

func (s *seen) points(t testing.TB) (all []point) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, s.reader.Collect(context.Background(), &rm))
	for _, scope := range rm.ScopeMetrics {
		if scope.Scope.Name != telemetry.Scope {
			continue
		}
		for _, m := range scope.Metrics {
			add := func(kind string, set attribute.Set, value float64) {
				p := point{metric: m.Name, kind: kind, unit: m.Unit, attrs: map[string]string{}, value: value}
				for _, kv := range set.ToSlice() {
					p.attrs[string(kv.Key)] = kv.Value.AsString()
				}
				all = append(all, p)
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				require.True(t, data.IsMonotonic, m.Name)
				for _, p := range data.DataPoints {
					add("counter", p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add("gauge", p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add("gauge", p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add("histogram", p.Attributes, float64(p.Count))
				}
			default:
				require.Fail(t, "metric of another kind", "%s: %T", m.Name, data)
			}
		}
	}
	return all
}

// count adds up the series of a metric that have all of some attributes, given as
// key, value, key, value.
func (s *seen) count(t testing.TB, metric string, attrs ...string) (n float64) {
	t.Helper()
next:
	for _, p := range s.points(t) {
		if p.metric != metric {
			continue
		}
		for i := 0; i < len(attrs); i += 2 {
			if p.attrs[attrs[i]] != attrs[i+1] {
				continue next
			}
		}
		n += p.value
	}
	return n
}

// lines is a log to look at.
type lines struct {
	mu sync.Mutex // guards b: whatever runs logs
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// with returns the lines whose message holds text.
func (l *lines) with(t testing.TB, text string) (found []map[string]any) {
	t.Helper()
	l.mu.Lock()
	data := bytes.Clone(l.b.Bytes())
	l.mu.Unlock()
	for line := range bytes.Lines(data) {
		var m map[string]any
		require.NoError(t, json.Unmarshal(line, &m))
		if msg, _ := m["msg"].(string); strings.Contains(msg, text) {
			found = append(found, m)
		}
	}
	return found
}
