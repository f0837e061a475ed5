package telemetry

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Statuses of [Metrics.Duration] beside those of HTTP ("200") and gRPC ("OK", in
// upper snake case as in its documentation).
const (
	StatusCanceled = "CANCELLED" // the client gave up: no error of the version, over HTTP as over gRPC
	StatusAborted  = "aborted"   // the handler gave up, or was too late, while the client waited
	StatusHijacked = "hijacked"  // HTTP: the handler took the connection, and what became of it nobody knows
)

// durationBounds are the buckets that OpenTelemetry advises for http.server.request.duration, in seconds
// (Semantic Conventions 1.23, HTTP metrics).
var durationBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}

// maxPoints bounds what is kept of the combinations of labels. Past it a request is
// recorded all the same, only more slowly.
const maxPoints = 2048

type point struct{ version, wanted, status string }

// durations is the histogram of one MeterProvider.
type durations struct {
	histogram metric.Float64Histogram
	known     sync.Map // point -> []metric.RecordOption
	size      atomic.Int64
}

func newDurations(meter metric.Meter) *durations {
	h, err := meter.Float64Histogram(ServerDuration, metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(durationBounds...),
		metric.WithDescription("Duration of inbound requests by the version that served, the one that was wanted, and the status."))
	if err != nil {
		otel.Handle(err)
	}
	return &durations{histogram: h}
}

// DurationEnabled tells whether somebody records how long requests take.
func (m *Metrics) DurationEnabled(ctx context.Context) bool {
	return m != nil && m.durations != nil && m.durations.histogram.Enabled(ctx)
}

// Duration records an inbound request that version, "" for stable, has served. matched
// tells that wanted is a version that is known to be real. status must be one of a
// bounded set.
func (m *Metrics) Duration(ctx context.Context, version, wanted string, matched bool, status string, d time.Duration) {
	if !m.DurationEnabled(ctx) {
		return
	}
	if matched {
		wanted = m.real(wanted)
	} else {
		wanted = m.Wanted(wanted, missing)
	}
	p := point{m.real(version), wanted, status}
	options, ok := m.durations.known.Load(p)
	if !ok {
		options = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(
			attribute.String("version", p.version), attribute.String("wanted", p.wanted), attribute.String("status", p.status)))}
		if m.durations.size.Load() < maxPoints {
			if _, loaded := m.durations.known.LoadOrStore(p, options); !loaded {
				m.durations.size.Add(1)
			}
		}
	}
	m.durations.histogram.Record(ctx, d.Seconds(), options.([]metric.RecordOption)...)
}

// httpStatuses spares an allocation for the status codes that there are.
var httpStatuses = func() (s [600]string) {
	for i := 100; i < len(s); i++ {
		s[i] = strconv.Itoa(i)
	}
	return s
}()

// HTTPStatus returns the status label of an HTTP status code; codes outside 100 to
// 599 are [Other].
func HTTPStatus(code int) string {
	if code < 100 || code >= len(httpStatuses) {
		return Other
	}
	return httpStatuses[code]
}
