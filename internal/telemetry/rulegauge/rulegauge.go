// Package rulegauge shows the state of rules as OTel gauges. It is apart from
// package telemetry because package rule must not link net/http, which OTel's
// global provider does.
package rulegauge

import (
	"context"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Scope is the instrumentation scope of all instruments of graylane.
const Scope = "github.com/graylane/graylane"

// Names of the gauges.
const (
	Revision = "graylane.rules.revision"
	Age      = "graylane.rules.age"
	Failing  = "graylane.rules.failing"
)

// Causes of [Failing].
const (
	Refused = "refused" // the newest document has a fault
	Store   = "store"   // the store cannot be read
)

// Global is what package telemetry brings along: the global provider, and where its
// errors go. It is set by an init function and never changed. In a program that links
// rules alone it is nil.
var Global *Defaults

// Defaults are those of OTel.
type Defaults struct {
	Provider func() metric.MeterProvider
	Handle   func(error)
}

// State is what the gauges show.
type State struct {
	Revision       uint64
	Age            time.Duration // since the set came into force
	Refused, Store bool          // the causes of Failing
}

// Observe shows what state returns, whenever somebody reads, until stop is called. state
// must be safe for concurrent use, and not block. A nil provider means the global
// one.
func Observe(provider metric.MeterProvider, state func() State) (stop func()) {
	if provider == nil {
		if Global == nil {
			return func() {}
		}
		provider = Global.Provider()
	}
	meter := provider.Meter(Scope)
	revision, err := meter.Int64ObservableGauge(Revision, metric.WithUnit("{revision}"),
		metric.WithDescription("Revision of the rules in force, 0 where there are none."))
	handle(err)
	age, err := meter.Float64ObservableGauge(Age, metric.WithUnit("s"),
		metric.WithDescription("How long ago the rules in force came into force."))
	handle(err)
	failing, err := meter.Int64ObservableGauge(Failing, metric.WithUnit("{fault}"),
		metric.WithDescription("1 while something keeps the newest rules out of force: a document that was refused, a store that cannot be read."))
	handle(err)

	refused := metric.WithAttributeSet(attribute.NewSet(attribute.String("cause", Refused)))
	store := metric.WithAttributeSet(attribute.NewSet(attribute.String("cause", Store)))
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := state()
		o.ObserveInt64(revision, int64(min(s.Revision, math.MaxInt64)))
		o.ObserveFloat64(age, s.Age.Seconds())
		o.ObserveInt64(failing, one(s.Refused), refused)
		o.ObserveInt64(failing, one(s.Store), store)
		return nil
	}, revision, age, failing)
	if err != nil {
		handle(err)
		return func() {}
	}
	return func() { handle(registration.Unregister()) }
}

func handle(err error) {
	if err != nil && Global != nil {
		Global.Handle(err)
	}
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
