package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/attribute"
	otelprom "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/middleware/grayslog"
	"github.com/graylane/graylane/registry"
)

// telemetry is where metrics, spans and log lines of this program go. A service of
// yours has one process per instance, and each makes one telemetry of its own.
type telemetry struct {
	metrics *prometheus.Registry
	traces  *os.File
	logs    *os.File
	spans   atomic.Int64 // exported so far

	stops []func(context.Context) error
}

// process is what one instance is given.
type process struct {
	meter  metric.MeterProvider
	tracer trace.TracerProvider
	logger *slog.Logger
}

// openTelemetry writes spans and log lines to files in dir.
func openTelemetry(dir string) (_ *telemetry, err error) {
	t := &telemetry{metrics: prometheus.NewRegistry()}
	if t.traces, err = os.Create(filepath.Join(dir, "traces.json")); err != nil {
		return nil, err
	}
	if t.logs, err = os.Create(filepath.Join(dir, "log.json")); err != nil {
		return nil, errors.Join(err, t.traces.Close())
	}
	return t, nil
}

// process sets the SDK up for one instance. In a program that is one instance the
// providers would be made the global ones (otel.SetMeterProvider,
// otel.SetTracerProvider, slog.SetDefault), and no option of graylane had to name
// them.
func (t *telemetry) process(self registry.Instance) (*process, error) {
	about := resource.NewSchemaless(
		attribute.String("service.name", self.Service),
		attribute.String("service.instance.id", self.ID),
	)
	// The labels that tell instances apart come from Prometheus where each is a
	// target of its own; here all are behind one address.
	reader, err := otelprom.New(
		otelprom.WithRegisterer(t.metrics),
		otelprom.WithResourceAsConstantLabels(attribute.NewAllowKeysFilter("service.name", "service.instance.id")),
		otelprom.WithoutScopeInfo(), otelprom.WithoutTargetInfo())
	if err != nil {
		return nil, err
	}
	meter := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(about))
	t.stops = append(t.stops, meter.Shutdown)

	exporter, err := stdouttrace.New(stdouttrace.WithWriter(t.traces))
	if err != nil {
		return nil, err
	}
	tracer := sdktrace.NewTracerProvider(sdktrace.WithResource(about),
		sdktrace.WithBatcher(&counting{exporter, &t.spans}, sdktrace.WithMaxQueueSize(1<<16)))
	t.stops = append(t.stops, tracer.Shutdown)

	logger := slog.New(grayslog.NewHandler(slog.NewJSONHandler(t.logs, nil), grayslog.WithService(self.Service), grayslog.WithTag()))
	return &process{meter: meter, tracer: tracer, logger: logger.With("instance", self.ID)}, nil
}

// flush ends what was started: what is in a queue is written first.
func (t *telemetry) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	for i := len(t.stops) - 1; i >= 0; i-- {
		err = errors.Join(err, t.stops[i](ctx))
	}
	t.stops = nil
	return errors.Join(err, t.traces.Close(), t.logs.Close())
}

// counting counts spans as they are exported.
type counting struct {
	sdktrace.SpanExporter
	n *atomic.Int64
}

func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		c.n.Add(int64(len(spans)))
	}
	return err
}

// serve serves /metrics for Prometheus.
func (t *telemetry) serve(address string) (url string, stop func(), err error) {
	lis, err := net.Listen("tcp", address)
	if err != nil {
		return "", nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(t.metrics, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(lis) // ends with stop
	}()
	return "http://" + lis.Addr().String() + "/metrics", func() { _ = srv.Close(); <-done }, nil
}
