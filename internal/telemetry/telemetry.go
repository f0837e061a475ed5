// Package telemetry holds the OTel instruments of graylane in one place, so
// that every middleware and balancer counts the same things under the same
// names. It uses the OTel API only: without a MeterProvider nothing is recorded
// and a call costs a few nanoseconds.
package telemetry

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/internal/telemetry/rulegauge"
)

func init() {
	rulegauge.Global = &rulegauge.Defaults{Provider: otel.GetMeterProvider, Handle: otel.Handle}
}

// Scope is the instrumentation scope of all instruments.
const Scope = rulegauge.Scope

// Names of the instruments.
const (
	RouteDecisions = "graylane.route.decisions"
	ServerRequests = "graylane.server.requests"
	ServerDuration = "graylane.server.duration"
	RulesRevision  = rulegauge.Revision
	RulesAge       = rulegauge.Age
	RulesFailing   = rulegauge.Failing
	Malformed      = "graylane.propagation.malformed"
	Orphans        = "graylane.propagation.orphans"
	Withheld       = "graylane.propagation.withheld"
	Forged         = "graylane.edge.forged"
)

// Metrics holds the instruments of one MeterProvider. It is safe for concurrent
// use; the zero value and nil record nothing.
type Metrics struct {
	decisions, requests, malformed, orphans, withheld, forged metric.Int64Counter
	durations                                                 *durations

	arrivals           sync.Map // arrivalLabels -> *Series, as many as there are labels
	services, versions *Labels
}

type arrivalLabels struct{ wanted, outcome string }

// New makes the instruments; a nil provider means the global one, also where
// that is set only later.
func New(provider metric.MeterProvider) *Metrics {
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	meter := provider.Meter(Scope)
	m := &Metrics{services: NewLabels(DistinctValues), versions: NewLabels(DistinctValues)}
	m.decisions = counter(meter, RouteDecisions, "{decision}", "Routing decisions of clients: which version was wanted, which one served, and why.")
	m.requests = counter(meter, ServerRequests, "{request}", "Inbound requests by what it means that they arrived here.")
	m.durations = newDurations(meter)
	m.malformed = counter(meter, Malformed, "{tag}", "Inbound tags that were refused; the request went on without them.")
	m.orphans = counter(meter, Orphans, "{call}", "Outbound calls whose context no inbound middleware has seen: where tags get lost.")
	m.withheld = counter(meter, Withheld, "{call}", "Outbound calls that the tag, or its baggage members, were kept from.")
	m.forged = counter(meter, Forged, "{request}", "Requests from outside that claimed a tag; an edge took it out.")
	return m
}

func counter(meter metric.Meter, name, unit, description string) metric.Int64Counter {
	c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
	if err != nil {
		otel.Handle(err)
	}
	return c
}

// Series is one combination of labels of one counter, made once and counted
// often. nil counts nothing.
type Series struct {
	counter metric.Int64Counter
	options []metric.AddOption
}

func newSeries(c metric.Int64Counter, attrs ...attribute.KeyValue) *Series {
	if c == nil {
		return nil
	}
	return &Series{counter: c, options: []metric.AddOption{metric.WithAttributeSet(attribute.NewSet(attrs...))}}
}

// Add counts one. It does not allocate where nothing records.
func (s *Series) Add(ctx context.Context) {
	if s != nil && s.counter.Enabled(ctx) {
		s.counter.Add(ctx, 1, s.options...)
	}
}

// Enabled tells whether somebody records the series.
func (s *Series) Enabled(ctx context.Context) bool { return s != nil && s.counter.Enabled(ctx) }

// Decision returns the series of a routing decision. Versions are "" for
// stable and are shown as "stable"; where the outcome is "unavailable" nothing
// served, which is shown as "none". Each label is bounded.
func (m *Metrics) Decision(service, wanted, served, outcome, reason string) *Series {
	if m == nil {
		return nil
	}
	unavailable := outcome == "unavailable"
	if unavailable {
		served = "none"
	}
	if unavailable && reason == missing {
		service = m.services.Bound(service) // it may be a name that nobody registered
	} else {
		service = m.services.Real(service)
	}
	return newSeries(m.decisions,
		attribute.String("service", service),
		attribute.String("wanted", m.Wanted(wanted, reason)),
		attribute.String("served", m.real(served)),
		attribute.String("outcome", outcome),
		attribute.String("reason", reason))
}

// Wanted returns what stands for a wanted version in the series of decisions
// with this reason: a caller chooses what he wants, so that where no instance
// has the version only the first ones are told apart.
func (m *Metrics) Wanted(version, reason string) string {
	switch {
	case version == "":
		return "stable"
	case m == nil:
		return version
	case reason == missing:
		return m.versions.Bound(version)
	}
	return m.versions.Real(version)
}

// missing is the reason of a decision for a version that no instance has.
const missing = "missing"

// DecisionsEnabled tells whether somebody records routing decisions.
func (m *Metrics) DecisionsEnabled(ctx context.Context) bool {
	return m != nil && m.decisions != nil && m.decisions.Enabled(ctx)
}

// RequestsEnabled tells whether somebody counts inbound requests.
func (m *Metrics) RequestsEnabled(ctx context.Context) bool {
	return m != nil && m.requests != nil && m.requests.Enabled(ctx)
}

// Request counts an inbound request. outcome must be one of a bounded set.
func (m *Metrics) Request(ctx context.Context, wanted, outcome string) {
	if m.RequestsEnabled(ctx) {
		if outcome == "matched" { // what is wanted is the own version
			wanted = m.real(wanted)
		} else {
			wanted = m.Wanted(wanted, missing)
		}
		key := arrivalLabels{wanted, outcome}
		s, ok := m.arrivals.Load(key)
		if !ok {
			s, _ = m.arrivals.LoadOrStore(key, newSeries(m.requests, attribute.String("wanted", wanted), attribute.String("outcome", outcome)))
		}
		s.(*Series).Add(ctx)
	}
}

// CountMalformed counts a refused tag; format names the carrier format that held it.
func (m *Metrics) CountMalformed(ctx context.Context, format string) {
	if m != nil && m.malformed != nil && m.malformed.Enabled(ctx) {
		m.malformed.Add(ctx, 1, metric.WithAttributes(attribute.String("format", format)))
	}
}

// Reasons of CountWithheld.
const (
	WithheldHost    = "host"         // the host is outside the outbound scope
	WithheldBaggage = "baggage_full" // the members do not fit beside the others; the header went
)

// CountWithheld counts a call that the tag or its members were kept from.
func (m *Metrics) CountWithheld(ctx context.Context, reason string) {
	if m != nil && m.withheld != nil && m.withheld.Enabled(ctx) {
		m.withheld.Add(ctx, 1, metric.WithAttributes(attribute.String("reason", reason)))
	}
}

// What is forged, for CountForged.
const (
	ForgedHeader        = "header"        // X-Gray-Tag
	ForgedBaggage       = "baggage"       // gray.* members, of the header or of the context
	ForgedCompatibility = "compatibility" // a compatibility header
	ForgedTrace         = "trace"         // X-Gray-Trace
)

// CountForged counts a request from outside that held something of a tag.
func (m *Metrics) CountForged(ctx context.Context, carrier string) {
	if m != nil && m.forged != nil && m.forged.Enabled(ctx) {
		m.forged.Add(ctx, 1, metric.WithAttributes(attribute.String("carrier", carrier)))
	}
}

func (m *Metrics) real(version string) string {
	if version == "" {
		return "stable"
	}
	return m.versions.Real(version)
}
