package httplb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/balancer/subset"
)

// Option changes what [New] makes. Options with a nil argument are ignored.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	policy      subset.Policy
	policies    map[string]subset.Policy
	serviceHost func(host string) (service string, ok bool)
	base        http.RoundTripper
	coolOff     time.Duration
	maxCoolOff  time.Duration
	retries     int
	idleTimeout time.Duration
	warning     bool
	logger      *slog.Logger
	provider    metric.MeterProvider
	observers   []func(context.Context, Decision)

	selectors map[string]*subset.Selector // of policies, compiled
}

func newConfig(opts []Option) (*config, error) {
	c := &config{
		policies:    make(map[string]subset.Policy),
		serviceHost: ServiceHost,
		coolOff:     time.Second,
		maxCoolOff:  30 * time.Second,
		retries:     2,
		idleTimeout: 10 * time.Minute,
		logger:      slog.Default(),
		selectors:   make(map[string]*subset.Selector),
	}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	if _, err := c.policy.Compile(""); err != nil {
		return nil, fmt.Errorf("httplb: %w", err)
	}
	for service, p := range c.policies {
		if service == "" {
			return nil, errors.New("httplb: policy for a service without a name")
		}
		s, err := p.Compile(service)
		if err != nil {
			return nil, fmt.Errorf("httplb: service %q: %w", service, err)
		}
		c.selectors[service] = s
	}
	switch {
	case c.coolOff <= 0 || c.maxCoolOff < c.coolOff:
		return nil, fmt.Errorf("httplb: cool-off from %v to %v, want more than 0 and no less than that", c.coolOff, c.maxCoolOff)
	case c.retries < 0:
		return nil, fmt.Errorf("httplb: retries %d, want 0 or more", c.retries)
	case c.idleTimeout <= 0:
		return nil, fmt.Errorf("httplb: idle timeout %v, want more than 0", c.idleTimeout)
	}
	if t, ok := c.base.(*http.Transport); ok {
		if err := checkTransport(t); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// selector returns the compiled policy for a service.
func (c *config) selector(service string) (*subset.Selector, error) {
	if s, ok := c.selectors[service]; ok {
		return s, nil
	}
	return c.policy.Compile(service)
}

// WithPolicy sets the policy for every service that [WithPolicyFor] does not
// name. The default is the zero [subset.Policy]: route by "version", fall back to
// stable.
func WithPolicy(p subset.Policy) Option { return optionFunc(func(c *config) { c.policy = p }) }

// WithPolicyFor sets the policy for one service.
func WithPolicyFor(service string, p subset.Policy) Option {
	return optionFunc(func(c *config) { c.policies[service] = p })
}

// WithServiceHost decides which hosts are services, and which: it gets the host of
// a URL, with its port where it has one. ok is false for a host that the request
// should go to as it stands. The default is [ServiceHost]. The Host header stays
// what the URL says; https verifies the name of the service.
func WithServiceHost(f func(host string) (service string, ok bool)) Option {
	return optionFunc(func(c *config) {
		if f != nil {
			c.serviceHost = f
		}
	})
}

// ServiceHost is how hosts name services by default: a host without port and dot,
// other than localhost and an IPv6 address, is the name of a service.
func ServiceHost(host string) (service string, ok bool) {
	if host == "" || strings.ContainsAny(host, ".:[]") || strings.EqualFold(host, "localhost") {
		return "", false
	}
	return host, true
}

// WithBase sets what requests are sent through. Requests that name no service go
// to rt as they are. For instances an [*http.Transport] is cloned once per service,
// so that its limits on connections hold for each service, and its Proxy is left
// out; one with DialTLS or DialTLSContext is refused. Any other RoundTripper gets
// each request with the address of an instance as the host of its URL, and cannot
// do https to services. The default is a transport with a dial timeout of three
// seconds and up to 64 idle connections per instance.
func WithBase(rt http.RoundTripper) Option {
	return optionFunc(func(c *config) {
		if t, ok := rt.(*http.Transport); rt != nil && (!ok || t != nil) {
			c.base = rt
		}
	})
}

// WithCoolOff sets for how long an instance that could not be dialled is put
// aside: first after the first failure, twice as long after each further one, up to
// longest. The default is one second and thirty.
func WithCoolOff(first, longest time.Duration) Option {
	return optionFunc(func(c *config) { c.coolOff, c.maxCoolOff = first, longest })
}

// WithRetries sets how often a request that may have reached a server is sent
// again, where it is idempotent and can be sent twice. The default is 2; 0 turns
// it off. Instances that could not be dialled do not count.
func WithRetries(n int) Option { return optionFunc(func(c *config) { c.retries = n }) }

// WithIdleTimeout sets for how long a service that nobody asks for is watched. The
// default is ten minutes; a service without instances is forgotten after half a
// minute at the latest.
func WithIdleTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.idleTimeout = d })
}

// WithWarning lets instances serve that their registry reports as
// [github.com/graylane/graylane/registry.StatusWarning]. They do not by default.
func WithWarning() Option { return optionFunc(func(c *config) { c.warning = true }) }

// WithLogger sets the logger. The default is [slog.Default].
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithMeterProvider sets where routing decisions are counted. The default is
// OTel's global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

// WithObserver calls f with every decision, once per request to a service, after
// the answer came (its header, not its body), or the request failed or was given up. ctx is that of
// the request. f must be safe for concurrent use and quick. A request that ended
// before an instance was chosen is not reported.
func WithObserver(f func(ctx context.Context, d Decision)) Option {
	return optionFunc(func(c *config) {
		if f != nil {
			c.observers = append(c.observers, f)
		}
	})
}
