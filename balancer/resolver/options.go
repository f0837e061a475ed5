package resolver

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/balancer/subset"
)

// Option changes how a client resolves and chooses instances.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

// WithPolicy sets what happens where the wanted version cannot serve, for every
// service that [WithPolicyFor] does not name. The default is the zero Policy.
func WithPolicy(p subset.Policy) Option {
	return optionFunc(func(c *config) { c.policy = p })
}

// WithPolicyFor sets the policy for one service, in place of that of
// [WithPolicy]. Of several for one service the last counts.
func WithPolicyFor(service string, p subset.Policy) Option {
	return optionFunc(func(c *config) { c.policies[service] = p })
}

// WithChildPolicy sets how an instance is chosen inside a version: a list of
// gRPC load balancing policies as in a service config, of which the first that
// is registered counts. The default is
//
//	[{"round_robin":{}}]
//
// Other policies have to be imported by who names them, for example
// google.golang.org/grpc/balancer/leastrequest.
func WithChildPolicy(json string) Option {
	return optionFunc(func(c *config) { c.childPolicy = json })
}

// WithConnectWait sets for how long RPCs wait for a version whose instances are
// connecting before they fall back to one that is ready. The time runs from the
// first RPC that waits. 0 means not at all; the default is one second.
func WithConnectWait(d time.Duration) Option {
	return optionFunc(func(c *config) { c.connectWait = &d })
}

// WithWarning lets instances serve that their registry reports in warning. By
// default they are left out. Instances in maintenance never serve.
func WithWarning() Option {
	return optionFunc(func(c *config) { c.warning = true })
}

// WithServiceConfig adds to the service config of the client: method configs
// (timeouts, retries), retry throttling, health checks, in the JSON of gRPC's
// service config. It holds no load balancing policy: that is graylane, and
// [WithChildPolicy] says which one works inside a version.
//
// It takes the place of grpc.WithDefaultServiceConfig, which gRPC does not
// read where a resolver delivers a service config, as this one does.
func WithServiceConfig(json string) Option {
	return optionFunc(func(c *config) { c.serviceConfig = json })
}

// WithMeterProvider sets where decisions are counted
// (graylane.route.decisions). The default is the global provider of OTel.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) {
		if p != nil {
			c.meterProvider = p
		}
	})
}

// WithObserver calls f with every routing decision, from the goroutine of the
// RPC and with its context, before the RPC is sent. f must be quick and safe
// for concurrent use.
func WithObserver(f func(ctx context.Context, d subset.Decision)) Option {
	return optionFunc(func(c *config) {
		if f != nil {
			c.observe = f
		}
	})
}

// WithLogger sets where trouble with the discovery is logged. The default is
// slog.Default().
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}
