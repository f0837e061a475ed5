package rule

import "log/slog"

// Option changes how an [Engine] works.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	log    *slog.Logger
	notify func(Status)
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

func (c *config) logger() *slog.Logger {
	if c.log != nil {
		return c.log
	}
	return slog.Default()
}
