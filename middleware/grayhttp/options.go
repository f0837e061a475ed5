package grayhttp

import (
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
)

// EdgeOption configures [Edge].
type EdgeOption interface {
	apply(*config)
	edge()
}

// HandlerOption configures the server side: [NewHandler] and [Middleware], and
// [Edge], which is a server side, too.
type HandlerOption interface {
	EdgeOption
	handler()
}

// ClientOption configures [NewClient].
type ClientOption interface {
	apply(*config)
	client()
}

// TransportOption configures what sends requests: [NewTransport] and [NewClient].
type TransportOption interface {
	ClientOption
	transport()
}

// Option fits both sides.
type Option interface {
	HandlerOption
	TransportOption
}

// PolicyOption fits a handler, which has to know what may arrive, and
// [NewClient]. It does not fit [NewTransport], which chooses no instance.
type PolicyOption interface {
	HandlerOption
	ClientOption
}

type (
	optionFunc          func(*config)
	edgeOptionFunc      func(*config)
	handlerOptionFunc   func(*config)
	clientOptionFunc    func(*config)
	transportOptionFunc func(*config)
	policyOptionFunc    func(*config)
)

var (
	_ Option          = optionFunc(nil)
	_ EdgeOption      = edgeOptionFunc(nil)
	_ HandlerOption   = handlerOptionFunc(nil)
	_ ClientOption    = clientOptionFunc(nil)
	_ TransportOption = transportOptionFunc(nil)
	_ PolicyOption    = policyOptionFunc(nil)
)

func (f optionFunc) apply(c *config)          { f(c) }
func (optionFunc) edge()                      {}
func (optionFunc) handler()                   {}
func (optionFunc) client()                    {}
func (optionFunc) transport()                 {}
func (f edgeOptionFunc) apply(c *config)      { f(c) }
func (edgeOptionFunc) edge()                  {}
func (f handlerOptionFunc) apply(c *config)   { f(c) }
func (handlerOptionFunc) edge()               {}
func (handlerOptionFunc) handler()            {}
func (f clientOptionFunc) apply(c *config)    { f(c) }
func (clientOptionFunc) client()              {}
func (f transportOptionFunc) apply(c *config) { f(c) }
func (transportOptionFunc) client()           {}
func (transportOptionFunc) transport()        {}
func (f policyOptionFunc) apply(c *config)    { f(c) }
func (policyOptionFunc) edge()                {}
func (policyOptionFunc) handler()             {}
func (policyOptionFunc) client()              {}

type config struct {
	prop     *propagation.Propagator
	provider metric.MeterProvider
	logger   *slog.Logger
	exempt   []string
	reject   bool
	profiles bool

	self     *registry.Instance
	policy   subset.Policy
	policies map[string]subset.Policy

	defaultTag graytag.Tag
	injectTo   func(host string) bool
	balancer   []httplb.Option

	gateways, proxies []string
	attrs             []attr
	sticky            *StickyCookie
	rules             *edge.HopRules
}

// newConfig applies opts and checks what both sides share.
func newConfig[O interface {
	comparable
	apply(*config)
}](opts []O) (*config, error) {
	c := &config{policies: make(map[string]subset.Policy)}
	var none O
	for _, o := range opts {
		if o != none {
			o.apply(c)
		}
	}
	for _, p := range c.exempt {
		if !strings.HasPrefix(p, "/") {
			return nil, fmt.Errorf("grayhttp: exempt path %q, want /path, or /path/ for all beneath it", p)
		}
	}
	if c.prop == nil {
		var err error
		if c.prop, err = propagation.New(propagation.WithMeterProvider(c.provider)); err != nil {
			return nil, fmt.Errorf("grayhttp: %w", err)
		}
	}
	return c, nil
}

func (c *config) metrics() *telemetry.Metrics { return telemetry.New(c.provider) }

// exempts tells whether requests for path are no traffic.
func exempts(exempt []string, path string) bool {
	for _, e := range exempt {
		if path == e || e[len(e)-1] == '/' && strings.HasPrefix(path, e) {
			return true
		}
	}
	return false
}

// WithPropagator sets what reads and writes tags: one with compatibility
// formats, for example. The default is propagation.New(), which counts at the
// provider of [WithMeterProvider].
func WithPropagator(p *propagation.Propagator) Option {
	return optionFunc(func(c *config) {
		if p != nil {
			c.prop = p
		}
	})
}

// WithMeterProvider sets where is counted what happens. The default is the
// global provider of OTel.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

// WithExempt names paths that are no traffic, health checks for example: they
// are neither classified nor counted, measured, labelled or refused as arrivals, nor
// counted as calls without scope. "/healthz" is one path, "/debug/" all beneath it. None
// is exempt by default: HTTP has no path that is a health check wherever it is found.
func WithExempt(paths ...string) Option {
	return optionFunc(func(c *config) { c.exempt = append(c.exempt, paths...) })
}

// WithSelf tells the handler which instance it is: of which service, with which
// metadata. Arrivals are then classified and counted, answers are measured, and
// handlers can ask for their arrival with [ArrivalFromContext]. The ID, else the
// address, stands for the instance in X-Gray-Route; both may be empty.
// Where callers have a policy for this service, give it here too ([WithPolicy]):
// what it allows them is a fallback, anything else counts as misrouted.
func WithSelf(self registry.Instance) HandlerOption {
	self = self.Clone()
	return handlerOptionFunc(func(c *config) { c.self = &self })
}

// WithPolicy sets which instances may serve: on a client for every service that
// [WithPolicyFor] does not name, on a handler what it takes for a legitimate
// fallback. Give both the same. The default is the zero Policy: by version, and
// fall back to stable.
func WithPolicy(p subset.Policy) PolicyOption {
	return policyOptionFunc(func(c *config) {
		c.policy = p
		c.balancer = append(c.balancer, httplb.WithPolicy(p))
	})
}

// WithPolicyFor sets the policy for one service, in place of that of
// [WithPolicy]. A handler takes the one that names the service of [WithSelf].
func WithPolicyFor(service string, p subset.Policy) PolicyOption {
	return policyOptionFunc(func(c *config) {
		c.policies[service] = p
		c.balancer = append(c.balancer, httplb.WithPolicyFor(service, p))
	})
}

// WithDefaultTag sets the tag of requests that belong to no other request: those
// of background jobs, whose context is not in scope and whose header holds no
// tag. A gray service's own jobs stay gray with it. A request that is known to
// be untagged stays so.
func WithDefaultTag(t graytag.Tag) TransportOption {
	return transportOptionFunc(func(c *config) { c.defaultTag = t })
}

// WithInjectTo lets tags go to more hosts than those inside the system, see
// [propagation.InternalHost]. allow gets the host of the URL without its port;
// it must be quick and safe for concurrent use.
func WithInjectTo(allow func(host string) bool) TransportOption {
	return transportOptionFunc(func(c *config) {
		if allow != nil {
			c.injectTo = allow
		}
	})
}

// WithRejectMisrouted has a handler refuse requests that should not have come to
// this instance, see [ArrivalFromContext], before anything else sees them: with 421
// Misdirected Request, and [MisroutedHeader]. Clients of this library then try once
// elsewhere, whatever the method, unless the body of the request cannot be had
// again: one without GetBody, of which more than 16 KiB were read. It takes [WithSelf], and the policy that callers have for this service.
//
// Whatever comes here by another way than through a balancer of this library must be
// exempt ([WithExempt]): health checks above all. A gray instance that rejects
// misrouted requests, and whose health check is not exempt, is taken for dead.
// Without this option such requests are served; in either case they are counted and
// logged, eight in ten seconds at most.
func WithRejectMisrouted() HandlerOption {
	return handlerOptionFunc(func(c *config) { c.reject = true })
}

// MisroutedHeader is the header of an answer that [WithRejectMisrouted] gives: the
// service of the instance, escaped as a segment of a path. It is for the balancer of the
// caller, which takes it out of the answer: a handler that handed it on would have its
// own caller send once more what it has run already.
const MisroutedHeader = arrival.MisroutedHeader

// WithProfileLabels labels what handlers burn in CPU profiles, and the goroutines
// that they start: gray.version is the version that the request wants of this
// service, which [WithSelf] names, "stable" for stable and "other" past the first
// hundred, or where the policy routes by uid. See [runtime/pprof.Do] and the
// -tagfocus of go tool pprof. It costs a request some allocations.
func WithProfileLabels() HandlerOption {
	return handlerOptionFunc(func(c *config) { c.profiles = true })
}

// WithLogger sets where is logged that a tag is withheld or lost, that requests arrive
// that should not, and trouble with the discovery and with instances. The default is
// slog.Default().
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithBalancer hands options on to the balancer of [NewClient]: its base
// transport, cool-off, retries, an observer of decisions. They are applied after
// those of this package.
func WithBalancer(opts ...httplb.Option) ClientOption {
	return clientOptionFunc(func(c *config) { c.balancer = append(c.balancer, opts...) })
}
