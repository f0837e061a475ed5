package graygrpc

import (
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
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

// ServerOption configures [ServerOptions] and the interceptors of a server, and
// [Edge], which is a server side, too.
type ServerOption interface {
	EdgeOption
	server()
}

// DialOption configures [DialOptions].
type DialOption interface {
	apply(*config)
	dial()
}

// ClientOption configures what sends calls: [DialOptions] and the bare
// interceptors of a client.
type ClientOption interface {
	DialOption
	client()
}

// Option fits both sides.
type Option interface {
	ServerOption
	ClientOption
}

// PolicyOption fits a server, which has to know what may arrive, and
// [DialOptions]. It does not fit the bare interceptors of a client: those
// choose no instance.
type PolicyOption interface {
	ServerOption
	DialOption
}

type (
	optionFunc       func(*config)
	edgeOptionFunc   func(*config)
	serverOptionFunc func(*config)
	clientOptionFunc func(*config)
	dialOptionFunc   func(*config)
	policyOptionFunc func(*config)
)

var (
	_ Option       = optionFunc(nil)
	_ EdgeOption   = edgeOptionFunc(nil)
	_ ServerOption = serverOptionFunc(nil)
	_ ClientOption = clientOptionFunc(nil)
	_ DialOption   = dialOptionFunc(nil)
	_ PolicyOption = policyOptionFunc(nil)
)

func (f optionFunc) apply(c *config)       { f(c) }
func (optionFunc) edge()                   {}
func (optionFunc) server()                 {}
func (optionFunc) client()                 {}
func (optionFunc) dial()                   {}
func (f edgeOptionFunc) apply(c *config)   { f(c) }
func (edgeOptionFunc) edge()               {}
func (f serverOptionFunc) apply(c *config) { f(c) }
func (serverOptionFunc) edge()             {}
func (serverOptionFunc) server()           {}
func (f clientOptionFunc) apply(c *config) { f(c) }
func (clientOptionFunc) client()           {}
func (clientOptionFunc) dial()             {}
func (f dialOptionFunc) apply(c *config)   { f(c) }
func (dialOptionFunc) dial()               {}
func (f policyOptionFunc) apply(c *config) { f(c) }
func (policyOptionFunc) edge()             {}
func (policyOptionFunc) server()           {}
func (policyOptionFunc) dial()             {}

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
	resolver   []resolver.Option

	gateways, proxies []string
	attrs             []attr
	rules             *edge.HopRules
}

// newConfig applies opts and checks what both sides share.
func newConfig[O interface {
	comparable
	apply(*config)
}](opts []O) (*config, error) {
	c := &config{policies: map[string]subset.Policy{}, exempt: []string{
		"/grpc.health.v1.Health/",
		"/grpc.reflection.v1.ServerReflection/",
		"/grpc.reflection.v1alpha.ServerReflection/",
	}}
	var none O
	for _, o := range opts {
		if o != none {
			o.apply(c)
		}
	}
	for _, m := range c.exempt {
		if service, _, ok := strings.Cut(strings.TrimPrefix(m, "/"), "/"); !ok || service == "" || m[0] != '/' {
			return nil, fmt.Errorf("graygrpc: exempt method %q, want /package.Service/Method, or /package.Service/ for all of its methods", m)
		}
	}
	if c.prop == nil {
		var err error
		if c.prop, err = propagation.New(propagation.WithMeterProvider(c.provider)); err != nil {
			return nil, fmt.Errorf("graygrpc: %w", err)
		}
	}
	return c, nil
}

func (c *config) metrics() *telemetry.Metrics { return telemetry.New(c.provider) }

// exempts tells whether calls of method, in full, are no traffic.
func exempts(exempt []string, method string) bool {
	for _, e := range exempt {
		if method == e || e[len(e)-1] == '/' && strings.HasPrefix(method, e) {
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

// WithExempt names methods that are no traffic: they are neither classified nor
// counted, measured, labelled or refused as arrivals, nor counted as calls without
// scope. "/package.Service/Method" is one method, "/package.Service/" all of a service.
// Health checks (grpc.health.v1) and reflection are exempt by default.
func WithExempt(methods ...string) Option {
	return optionFunc(func(c *config) { c.exempt = append(c.exempt, methods...) })
}

// WithSelf tells the server which instance it is: of which service, with which
// metadata. Arrivals are then classified and counted, answers are measured, and
// handlers can ask for their arrival with [ArrivalFromContext]. The ID, else the
// address, stands for the instance in routes, and both in refusals; they may be empty.
// Where callers have a policy for this service, give it here too ([WithPolicy]):
// what it allows them is a fallback, anything else counts as misrouted.
func WithSelf(self registry.Instance) ServerOption {
	self = self.Clone()
	return serverOptionFunc(func(c *config) { c.self = &self })
}

// WithPolicy sets which instances may serve: on a client for every service that
// [WithPolicyFor] does not name, on a server what it takes for a legitimate
// fallback. Give both the same. The default is the zero Policy: by version, and
// fall back to stable.
func WithPolicy(p subset.Policy) PolicyOption {
	return policyOptionFunc(func(c *config) {
		c.policy = p
		c.resolver = append(c.resolver, resolver.WithPolicy(p))
	})
}

// WithPolicyFor sets the policy for one service, in place of that of
// [WithPolicy]. A server takes the one that names the service of [WithSelf].
func WithPolicyFor(service string, p subset.Policy) PolicyOption {
	return policyOptionFunc(func(c *config) {
		c.policies[service] = p
		c.resolver = append(c.resolver, resolver.WithPolicyFor(service, p))
	})
}

// WithDefaultTag sets the tag of calls that belong to no request: those of
// background jobs, whose context is not in scope and whose metadata holds no
// tag. A gray service's own jobs stay gray with it. A request that is known to
// be untagged stays so.
func WithDefaultTag(t graytag.Tag) ClientOption {
	return clientOptionFunc(func(c *config) { c.defaultTag = t })
}

// WithInjectTo lets tags go to more hosts than those inside the system, see
// [propagation.InternalHost]. allow gets the host of the target without its
// port; it must be quick and safe for concurrent use.
func WithInjectTo(allow func(host string) bool) ClientOption {
	return clientOptionFunc(func(c *config) {
		if allow != nil {
			c.injectTo = allow
		}
	})
}

// WithLogger sets where is logged that a tag is withheld or lost, that calls arrive
// that should not, and trouble with the discovery. The default is
// slog.Default().
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithRejectMisrouted has a server refuse calls that should not have come to this
// instance, see [ArrivalFromContext], before a handler or an interceptor behind ours
// sees them: with FailedPrecondition, and [MisroutedKey]. Clients of this library
// then try once elsewhere, see the package's section on refusals. It takes
// [WithSelf], and the policy that callers have for this service; give that the ID or
// the address of the registration, too, so that clients know who has refused.
//
// Whatever comes here by another way than through a balancer of this library must be
// exempt ([WithExempt]). Health checks and reflection are. Without this option such
// calls are served; in either case they are counted and logged, eight in ten seconds
// at most.
func WithRejectMisrouted() ServerOption {
	return serverOptionFunc(func(c *config) { c.reject = true })
}

// WithProfileLabels labels what handlers burn in CPU profiles, and the goroutines
// that they start: gray.version is the version that the call wants of this service,
// which [WithSelf] names, "stable" for stable and "other" past the first hundred, or
// where the policy routes by uid. See [runtime/pprof.Do], and -tagfocus of go tool
// pprof. It costs a call some allocations.
func WithProfileLabels() ServerOption {
	return serverOptionFunc(func(c *config) { c.profiles = true })
}

// WithResolver hands options on to the resolver: the policy inside a version,
// how long to wait for connections, method configs, an observer of decisions.
// They are applied after those of this package.
func WithResolver(opts ...resolver.Option) DialOption {
	return dialOptionFunc(func(c *config) { c.resolver = append(c.resolver, opts...) })
}
