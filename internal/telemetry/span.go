package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Attributes of spans.
const (
	SpanVersion = "gray.version" // what was wanted of the service, "stable" for stable
	SpanServed  = "gray.served"  // the version that served, "stable" for stable; not set where none did
	SpanOutcome = "gray.outcome"
	SpanReason  = "gray.reason"  // not set where the wanted version served
	SpanService = "gray.service" // of a decision
	SpanEvent   = "gray.decision"
)

// Arrived marks the span of ctx, where there is one that records, as that of a
// request that arrived at version served.
func Arrived(ctx context.Context, wanted, served, outcome string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(
			attribute.String(SpanVersion, Text(wanted)),
			attribute.String(SpanServed, Text(served)),
			attribute.String(SpanOutcome, outcome))
	}
}

// Decided notes a routing decision in the span of ctx: as attributes where it is the
// client span of the call, else, since it is that of the request or job which makes
// the call, as an event.
func Decided(ctx context.Context, service, wanted, served, outcome, reason string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	attrs := make([]attribute.KeyValue, 0, 5)
	attrs = append(attrs, attribute.String(SpanService, strings.ToValidUTF8(service, "\uFFFD")),
		attribute.String(SpanVersion, Text(wanted)), attribute.String(SpanOutcome, outcome))
	if outcome != "unavailable" {
		attrs = append(attrs, attribute.String(SpanServed, Text(served)))
	}
	if reason != "" {
		attrs = append(attrs, attribute.String(SpanReason, reason))
	}
	// The kind is no part of the API's span; the SDK's tells it.
	if k, ok := span.(interface{ SpanKind() trace.SpanKind }); ok && k.SpanKind() == trace.SpanKindClient {
		span.SetAttributes(attrs...)
		return
	}
	span.AddEvent(SpanEvent, trace.WithAttributes(attrs...))
}

// Text returns what stands for a version in a span: versions are chosen by callers.
func Text(version string) string {
	if version == "" {
		return "stable"
	}
	return strings.ToValidUTF8(version, "\uFFFD")
}
