package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/experimental/balancer/weight"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/balancer/internal/roster"
	"github.com/graylane/graylane/registry"
)

const (
	// settle is how long the reader of a watch rests after it has handed a
	// state down: what changes meanwhile arrives as one.
	settle = 20 * time.Millisecond
	// rewatch is the pause before a watch that ended against its contract is
	// started again.
	rewatch = time.Second
)

// grayResolver follows one service for one client.
type grayResolver struct {
	cc            resolver.ClientConn
	cfg           *config
	service       string
	serviceConfig *serviceconfig.ParseResult
	client        *lbattr.Client

	cancel context.CancelFunc
	done   sync.WaitGroup

	// Of run alone.
	last    []roster.Instance // what was handed down, nil before the first
	failing bool
}

// ResolveNow implements [resolver.Resolver]. A watch has nothing to look up.
func (r *grayResolver) ResolveNow(resolver.ResolveNowOptions) {}

// Close implements [resolver.Resolver].
func (r *grayResolver) Close() {
	r.cancel()
	r.done.Wait()
}

func (r *grayResolver) run(ctx context.Context, disc registry.Discovery) {
	for {
		for set, err := range disc.Watch(ctx, r.service) {
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				r.failed(ctx, err)
				continue
			}
			if r.push(ctx, set) {
				rest(ctx, settle)
			}
		}
		if ctx.Err() != nil {
			return
		}
		r.failed(ctx, fmt.Errorf("%w by %T", errWatchEnded, disc))
		rest(ctx, rewatch)
	}
}

var errWatchEnded = errors.New("the watch was ended")

func rest(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// failed reports err: before the first state RPCs fail with it, later the
// balancer keeps what it has.
func (r *grayResolver) failed(ctx context.Context, err error) {
	if !r.failing {
		r.failing = true
		level := slog.LevelWarn
		if errors.Is(err, registry.ErrClosed) || errors.Is(err, errWatchEnded) {
			level = slog.LevelDebug // somebody closed it: no trouble
		}
		r.cfg.logger.Log(ctx, level, "resolver: discovery fails, the last known instances stay",
			"service", r.service, "known", len(r.last), "error", err)
	}
	// Flat: a status inside would become that of RPCs.
	r.cc.ReportError(fmt.Errorf("resolver: service %q: discovery: %v", r.service, err))
}

// push hands set down where it differs from the last, and tells whether it did.
func (r *grayResolver) push(ctx context.Context, set []registry.Instance) bool {
	recovered := r.failing
	if recovered {
		r.failing = false
		r.cfg.logger.InfoContext(ctx, "resolver: discovery answers again", "service", r.service)
	}
	next := roster.Read(set, r.cfg.warning)
	// After an error an equal state is news: that the error is over.
	if r.last != nil && !recovered && slices.EqualFunc(r.last, next, sameEndpoint) {
		return false
	}
	endpoints := make([]resolver.Endpoint, len(next))
	for i, in := range next {
		e := resolver.Endpoint{Addresses: []resolver.Address{{Addr: in.Address}}}
		if in.Weight > 1 {
			e = weight.Set(e, weight.EndpointInfo{Weight: uint32(min(in.Weight, 1<<16))})
		}
		e = lbattr.SetMetadata(lbattr.SetID(e, in.ID), in.Metadata)
		if !in.Usable {
			e = lbattr.SetUnusable(e)
		}
		endpoints[i] = e
	}
	r.last = next
	// Whatever is wrong with a state, a watch would bring the same again.
	_ = r.cc.UpdateState(lbattr.SetClient(resolver.State{Endpoints: endpoints, ServiceConfig: r.serviceConfig}, r.client))
	return true
}

// sameEndpoint tells whether a and b are one to the balancer.
func sameEndpoint(a, b roster.Instance) bool {
	return a.ID == b.ID && a.Address == b.Address && a.Usable == b.Usable && max(1, a.Weight) == max(1, b.Weight) && maps.Equal(a.Metadata, b.Metadata)
}
