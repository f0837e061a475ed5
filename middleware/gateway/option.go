package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
)

// Option configures [New]. Options with a nil argument are ignored.
type Option interface{ applyGateway(*config) }

// ForwardAuthOption configures [ForwardAuth]. Options with a nil argument are
// ignored.
type ForwardAuthOption interface{ applyForwardAuth(*config) }

// EntranceOption fits both.
type EntranceOption interface {
	Option
	ForwardAuthOption
}

type (
	optionFunc      func(*config)
	forwardAuthFunc func(*config)
	entranceFunc    func(*config)
)

var (
	_ Option            = optionFunc(nil)
	_ ForwardAuthOption = forwardAuthFunc(nil)
	_ EntranceOption    = entranceFunc(nil)
)

func (f optionFunc) applyGateway(c *config)          { f(c) }
func (f forwardAuthFunc) applyForwardAuth(c *config) { f(c) }
func (f entranceFunc) applyGateway(c *config)        { f(c) }
func (f entranceFunc) applyForwardAuth(c *config)    { f(c) }

type config struct {
	prop     *propagation.Propagator
	provider metric.MeterProvider
	logger   *slog.Logger
	edge     []grayhttp.EdgeOption

	routes    []Route
	client    []grayhttp.ClientOption
	transport *http.Transport
	timeout   time.Duration
	maxBody   int64
	upgrades  []string
	fail      func(http.ResponseWriter, *http.Request, Failure)
	observers []func(context.Context, Exchange)

	convention Convention
	service    string
}

func newConfig() *config {
	return &config{
		logger:     slog.Default(),
		upgrades:   []string{"websocket"},
		fail:       WriteFailure,
		convention: Forwarded(),
	}
}

// check checks what is not checked elsewhere, and fills in the propagator, which
// all parts share.
func (c *config) check(engine *rule.Engine) error {
	if engine == nil {
		return errors.New("gateway: engine is nil")
	}
	if c.timeout < 0 {
		return fmt.Errorf("gateway: timeout %v, want 0 for none, or more", c.timeout)
	}
	if c.maxBody < 0 {
		return fmt.Errorf("gateway: body of at most %d bytes, want 0 for any, or more", c.maxBody)
	}
	for _, p := range c.upgrades {
		if name, _, _ := strings.Cut(p, "/"); p == "" || strings.EqualFold(p, "h2c") || strings.EqualFold(name, "http") || strings.EqualFold(name, "tls") {
			return fmt.Errorf("gateway: upgrade to %q, want a protocol that carries no HTTP requests: they would pass the rules by", p)
		}
	}
	if c.prop == nil {
		var err error
		if c.prop, err = propagation.New(propagation.WithMeterProvider(c.provider)); err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
	}
	return nil
}

func (c *config) edgeOptions() []grayhttp.EdgeOption {
	shared := []grayhttp.EdgeOption{grayhttp.WithPropagator(c.prop), grayhttp.WithMeterProvider(c.provider), grayhttp.WithLogger(c.logger)}
	return append(shared, c.edge...)
}

// clientOptions are those of one of the clients. To them every host is a service:
// the rewrite has set it.
func (c *config) clientOptions(base *http.Transport) []grayhttp.ClientOption {
	shared := []grayhttp.ClientOption{
		grayhttp.WithPropagator(c.prop), grayhttp.WithMeterProvider(c.provider), grayhttp.WithLogger(c.logger),
		grayhttp.WithBalancer(httplb.WithServiceHost(func(host string) (string, bool) { return host, true })),
	}
	if len(c.observers) > 0 {
		shared = append(shared, grayhttp.WithBalancer(httplb.WithObserver(observe)))
	}
	shared = append(shared, c.client...)
	return append(shared, grayhttp.WithBalancer(httplb.WithBase(base)))
}

// WithRoutes adds routes. Their order does not matter.
func WithRoutes(routes ...Route) Option {
	return optionFunc(func(c *config) { c.routes = append(c.routes, routes...) })
}

// WithEdge hands options on to [grayhttp.Edge]: whom to trust, what code knows of a
// user, the sticky cookie. What the gateway has of its own, meter provider, logger and
// propagator, is named by [WithMeterProvider] and its like: decisions of the balancer
// are counted there. Forward-auth believes no tag, also where
// [grayhttp.WithTrustedGateways] names the peer.
func WithEdge(opts ...grayhttp.EdgeOption) EntranceOption {
	return entranceFunc(func(c *config) { c.edge = append(c.edge, opts...) })
}

// WithClient hands options on to what sends requests to services, which
// [grayhttp.NewClient] makes: policies, per-hop rules, options of the balancer but
// for its base, which [WithTransport] sets. The propagator is named by
// [WithPropagator], so that what is written is also taken out of what comes from
// outside, in any case.
func WithClient(opts ...grayhttp.ClientOption) Option {
	return optionFunc(func(c *config) { c.client = append(c.client, opts...) })
}

// WithPropagator sets what writes tags, and takes forged ones out: one with
// compatibility formats, for example. The default is propagation.New().
func WithPropagator(p *propagation.Propagator) EntranceOption {
	return entranceFunc(func(c *config) {
		if p != nil {
			c.prop = p
		}
	})
}

// WithMeterProvider sets where is counted what happens. The default is the global
// provider of OTel.
func WithMeterProvider(p metric.MeterProvider) EntranceOption {
	return entranceFunc(func(c *config) {
		if p != nil {
			c.provider = p
		}
	})
}

// WithLogger sets the logger. The default is slog.Default(). Failures of a route are
// logged once a second at most, with the number of those that were not.
func WithLogger(l *slog.Logger) EntranceOption {
	return entranceFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithTransport sets what instances are reached through: timeouts of dials, TLS.
// It is cloned; compression is left to client and service, and 512 idle connections
// are kept per instance where MaxIdleConnsPerHost is 0. See [httplb.WithBase] for
// what else happens to it.
func WithTransport(t *http.Transport) Option {
	return optionFunc(func(c *config) {
		if t != nil {
			c.transport = t
		}
	})
}

// WithTimeout sets the Timeout of routes that have none of their own. The default is
// 0: the gateway waits as long as the client does.
func WithTimeout(d time.Duration) Option { return optionFunc(func(c *config) { c.timeout = d }) }

// WithMaxBody limits the body of a request, in bytes; a longer one gets 413, or
// breaks off where its length was not announced and the answer has begun. The default
// is 0: any length. It is in place of [http.MaxBytesHandler], which writes into the
// header of the answer while the body is read; here that may be when an answer of the
// service is written there.
func WithMaxBody(bytes int64) Option { return optionFunc(func(c *config) { c.maxBody = bytes }) }

// WithUpgrades sets the protocols for which the gateway makes a tunnel, in place of
// "websocket" alone. Nothing that runs through a tunnel meets rules; h2c and the
// like, which carry requests, are refused. The wish for any other protocol is not
// handed on.
func WithUpgrades(protocols ...string) Option {
	return optionFunc(func(c *config) { c.upgrades = protocols })
}

// WithErrorHandler sets what answers requests that no service has answered, in place
// of [WriteFailure]. r is the request of the client. For [ReasonClosed] nobody sees
// the answer.
func WithErrorHandler(f func(w http.ResponseWriter, r *http.Request, f Failure)) Option {
	return optionFunc(func(c *config) {
		if f != nil {
			c.fail = f
		}
	})
}
