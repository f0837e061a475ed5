package httplb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/internal/loglimit"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/registry"
)

// Balancer is an [http.RoundTripper] that sends a request whose URL names a service
// to one of the service's instances. It is safe for concurrent use. Create one with
// [New], share it, and end it with [Balancer.Close].
type Balancer struct {
	config
	disc    registry.Discovery
	metrics *telemetry.Metrics
	through http.RoundTripper // for requests that name no service
	own     bool              // nobody but the balancer knows through
	lines   *loglimit.Limit   // on discoveries that fail, of all services

	services atomic.Pointer[map[string]*service] // replaced, never changed
	running  sync.WaitGroup                      // every goroutine of every service

	// mu guards replacing services, and closed. Requests to a service that is
	// watched already do not take it. Lock order: before service.mu.
	mu     sync.Mutex
	closed bool
}

var _ http.RoundTripper = (*Balancer)(nil)

// ErrClosed is what a request to a service gets, wrapped, after
// [Balancer.Close].
var ErrClosed = errors.New("httplb: balancer is closed")

var errWatchEnded = errors.New("httplb: the discovery ended its watch")

const (
	// maxServices bounds the services that are watched at a time: a host may
	// come from outside. Past it the one that was longest unused gives way, those
	// without instances first.
	maxServices = 512
	// maxUnknown bounds those among them that have no instance. A registry may
	// allow a client so many watches and no more (a Consul agent 200 connections):
	// names that nobody registered must not take the place of what keeps the own
	// instance registered.
	maxUnknown = 64
	// maxLines bounds the lines on services whose discovery fails in a minute: a
	// host may come from outside.
	maxLines = 64
	// unknownTimeout is how long a service without instances is watched at most
	// without being asked for.
	unknownTimeout = 30 * time.Second
)

// New returns a Balancer that finds instances through disc. It fails where disc is
// nil or an option is wrong. Nothing is watched before the first request.
func New(disc registry.Discovery, opts ...Option) (*Balancer, error) {
	if disc == nil {
		return nil, errors.New("httplb: discovery is nil")
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	b := &Balancer{config: *c, disc: disc, metrics: telemetry.New(c.provider), through: c.base, lines: loglimit.New(maxLines, time.Minute)}
	if b.through == nil {
		b.through, b.own = defaultTransport(), true
	}
	b.services.Store(&map[string]*service{})
	return b, nil
}

// Service returns the service that u names; ok is false where a request for u goes
// straight through.
func (b *Balancer) Service(u *url.URL) (name string, ok bool) {
	if u == nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	return b.serviceHost(u.Host)
}

// CloseIdleConnections closes the connections that no request uses.
func (b *Balancer) CloseIdleConnections() {
	closeIdle(b.through)
	for _, s := range *b.services.Load() {
		s.closeIdle()
	}
}

// Close ends all watches and closes idle connections, and waits for the goroutines
// of the balancer. Requests under way go on; new ones to services fail with
// [ErrClosed]. It always returns nil.
func (b *Balancer) Close() error {
	b.mu.Lock()
	b.closed = true
	for _, s := range *b.services.Swap(&map[string]*service{}) {
		s.close()
	}
	b.mu.Unlock()
	if b.own {
		closeIdle(b.through)
	}
	b.running.Wait()
	return nil
}

// service returns the watched service of that name once it has heard of its
// instances, or has heard an error.
func (b *Balancer) service(ctx context.Context, name string) (*service, error) {
	for {
		s := (*b.services.Load())[name]
		if s == nil {
			var err error
			if s, err = b.watch(name); err != nil {
				return nil, err
			}
		}
		s.touch()
		select {
		case <-s.answered:
		default:
			select {
			case <-s.answered:
			case <-ctx.Done():
				return nil, &waitError{service: name, err: ctx.Err()}
			}
		}
		if s.view.Load() != nil {
			return s, nil
		}
		// It was ended before it heard anything: ask anew, or find the balancer
		// closed.
	}
}

// watch starts to watch a service.
func (b *Balancer) watch(name string) (*service, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("%w: request to service %q", ErrClosed, name)
	}
	services := *b.services.Load()
	if s := services[name]; s != nil {
		return s, nil
	}
	selector, err := b.selector(name)
	if err != nil {
		return nil, fmt.Errorf("httplb: service %q: %w", name, err)
	}
	if least, unknown := leastUsed(services); len(services) >= maxServices || unknown >= maxUnknown {
		b.remove(least)
	}
	s := &service{
		b:         b,
		name:      name,
		selector:  selector,
		counters:  counters{metrics: b.metrics, service: name, hidden: telemetry.Hidden(selector.Key())},
		answered:  make(chan struct{}),
		endpoints: make(map[string]*endpoint),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.used.Store(sinceEpoch(time.Now()))
	s.idle = time.AfterFunc(min(b.idleTimeout, unknownTimeout), s.expire)
	next := maps.Clone(*b.services.Load())
	next[name] = s
	b.services.Store(&next)
	b.running.Add(1)
	go s.run()
	return s, nil
}

// remove ends s. mu is held.
func (b *Balancer) remove(s *service) {
	services := *b.services.Load()
	if services[s.name] == s {
		next := maps.Clone(services)
		delete(next, s.name)
		b.services.Store(&next)
	}
	s.close()
}

// leastUsed returns the service that is missed least, and the number of those
// that are known to have no instance.
func leastUsed(services map[string]*service) (least *service, unknown int) {
	var rank int
	for _, s := range services {
		r := s.rank()
		if r == rankUnknown {
			unknown++
		}
		if least == nil || r < rank || r == rank && s.used.Load() < least.used.Load() {
			least, rank = s, r
		}
	}
	return least, unknown
}

// waitError is the end of a context before a service was heard of.
type waitError struct {
	service string
	err     error
}

func (e *waitError) Error() string {
	return fmt.Sprintf("httplb: waiting for the instances of service %q: %v", e.service, e.err)
}
func (e *waitError) Unwrap() error { return e.err }

// Timeout tells net/http whether a deadline has passed.
func (e *waitError) Timeout() bool { return errors.Is(e.err, context.DeadlineExceeded) }
