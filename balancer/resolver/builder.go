package resolver

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/resolver"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/registry"
)

// Scheme is the scheme of targets: gray:///inventory is the service inventory.
const Scheme = "gray"

type builder struct {
	disc registry.Discovery
	cfg  *config
	err  error // fails every Build
}

var _ resolver.Builder = (*builder)(nil)

// NewBuilder returns a name resolver over disc, for grpc.WithResolvers. It is
// safe for concurrent use by any number of clients. Most programs want
// [DialOptions], which adds what else a client needs: where a proxy is set in
// the environment, gRPC drops what is known of the versions unless
// grpc.WithNoProxy is given.
//
// It fails where an option is wrong.
func NewBuilder(disc registry.Discovery, opts ...Option) (resolver.Builder, error) {
	return newBuilder(disc, opts)
}

func newBuilder(disc registry.Discovery, opts []Option) (*builder, error) {
	if disc == nil {
		return nil, errors.New("resolver: discovery is nil")
	}
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return &builder{disc: disc, cfg: cfg}, nil
}

// Scheme implements [resolver.Builder].
func (b *builder) Scheme() string { return Scheme }

// Build implements [resolver.Builder]. gRPC calls it again after every idle
// time.
func (b *builder) Build(target resolver.Target, cc resolver.ClientConn, opts resolver.BuildOptions) (resolver.Resolver, error) {
	telemetry.Unlabel() // a goroutine of gRPC's, that the first RPC may have started
	if b.err != nil {
		return nil, b.err
	}
	service := target.Endpoint()
	if service == "" || target.URL.Host != "" {
		return nil, fmt.Errorf("resolver: target %q, want %s:///service", target.URL.String(), Scheme)
	}
	if opts.DisableServiceConfig {
		return nil, fmt.Errorf("resolver: service %q: grpc.WithDisableServiceConfig takes the routing policy away: a client of a gray target cannot have it", service)
	}
	js, err := b.cfg.serviceConfigJSON(service)
	if err != nil {
		return nil, err
	}
	parsed := cc.ParseServiceConfig(js)
	if parsed.Err != nil {
		return nil, fmt.Errorf("resolver: service %q: service config: %w", service, parsed.Err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &grayResolver{
		cc:            cc,
		cfg:           b.cfg,
		service:       service,
		serviceConfig: parsed,
		client:        &lbattr.Client{Service: service, Metrics: b.cfg.metrics, Observe: b.cfg.observe},
		cancel:        cancel,
	}
	r.done.Go(func() { r.run(ctx, b.disc) })
	return r, nil
}
