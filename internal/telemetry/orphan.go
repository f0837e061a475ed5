package telemetry

import (
	"context"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/internal/callsite"
)

// OrphanCounter counts the outbound calls of one client that belong to no request, by the
// place in the program that makes them. It is safe for concurrent use.
type OrphanCounter struct {
	metrics *Metrics
	logger  *slog.Logger
	sites   callsite.Finder
	labels  *Labels
}

// NewOrphanCounter counts at m and logs each site once, at debug level. A nil logger is
// slog.Default() at the time of the call.
func NewOrphanCounter(m *Metrics, logger *slog.Logger) *OrphanCounter {
	return &OrphanCounter{metrics: m, logger: logger, labels: NewLabels(DistinctValues)}
}

// Count counts the call that is under way; to says where it goes. It costs a look
// up the stack where somebody counts or logs, else nothing.
func (o *OrphanCounter) Count(ctx context.Context, to string) {
	logger := o.logger
	if logger == nil {
		logger = slog.Default()
	}
	counts, logs := o.metrics != nil && o.metrics.orphans.Enabled(ctx), logger.Enabled(ctx, slog.LevelDebug)
	if !counts && !logs {
		return
	}
	site := o.sites.Find(1)
	if counts {
		o.metrics.orphans.Add(ctx, 1, metric.WithAttributes(attribute.String("site", o.labels.Real(site.String()))))
	}
	if logs && site.First() {
		logger.LogAttrs(ctx, slog.LevelDebug, "graylane: call without the context of a request, the tag is lost here",
			slog.String("file", site.File), slog.Int("line", site.Line), slog.String("function", site.Function), slog.String("to", to))
	}
}
