package rule

import (
	"log/slog"

	"go.opentelemetry.io/otel/metric"
)

// Option changes how an [Engine] works.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	log      *slog.Logger
	notify   func(Status)
	provider metric.MeterProvider
}

func newConfig(opts []Option) config {
	var c config
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	return c
}

// WithLogger makes the engine log to l what happens to its rules: each change,
// and each document that it refused, once. nil, and the default, is
// slog.Default() at the time of the entry.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) { c.log = l })
}

// WithNotify makes the engine call f after every change: another set is in
// force, or a document was refused. f is called by the goroutine that made the
// change, one call at a time for one store, and has to return soon.
func WithNotify(f func(Status)) Option {
	return optionFunc(func(c *config) { c.notify = f })
}

// WithMeterProvider sets where the state of the rules is shown while the engine follows
// a store: graylane.rules.revision, graylane.rules.age and graylane.rules.failing, see
// [Status]; an engine that follows none shows nothing. nil, and the default, is the
// global provider of OTel in a program that links anything of graylane that speaks HTTP
// or gRPC, as edges and the gateway do; in others it is none. The gauges have no label
// that tells engines apart: where a process has several that follow stores, give each a
// provider of its own.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

func (c *config) logger() *slog.Logger {
	if c.log != nil {
		return c.log
	}
	return slog.Default()
}
