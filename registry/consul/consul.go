package consul

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/internal/loglimit"
	"github.com/graylane/graylane/registry"
)

// ErrClosed is what [Registry.Register] returns, and what a watch yields before it
// ends, once the registry is closed. It wraps [registry.ErrClosed].
var ErrClosed = fmt.Errorf("consul: %w", registry.ErrClosed)

// closeTimeout bounds the deregistrations of Close.
const closeTimeout = 5 * time.Second

// Registry is HashiCorp Consul as a [registry.Registrar] and a
// [registry.Discovery]; its [Registry.RuleStore] keeps rules there, its
// [Registry.Elector] elects a leader. It is safe for concurrent use. Create one
// with [New].
type Registry struct {
	config  config
	address string // clients.address
	clients *clients

	shared   registry.Discovery
	watchLog *loglimit.Limit

	// ctx ends when the registry is closed, and all background work with it.
	ctx    context.Context
	cancel context.CancelFunc

	// mu guards slots, their reference counts, and closed together with additions
	// to work. No request is made while it is held.
	mu     sync.Mutex
	closed bool
	slots  map[string]*slot // by instance ID
	work   sync.WaitGroup   // watches and clean-ups; keepalives end with their registration
}

var (
	_ registry.Registrar    = (*Registry)(nil)
	_ registry.Discovery    = (*Registry)(nil)
	_ registry.Registration = (*registration)(nil)
)

// New returns a registry that talks to the Consul agent of cfg; nil means
// [api.DefaultConfig], which reads the environment. cfg is copied and not changed;
// the Timeout of its HttpClient is not applied, because blocking queries have
// limits of their own. New makes no request. It fails where cfg or an option is
// invalid, and changes nothing then.
func New(cfg *api.Config, opts ...Option) (*Registry, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if c.agent != "" {
		if cfg == nil {
			cfg = api.DefaultConfig()
		}
		there := *cfg
		there.Address = c.agent
		cfg = &there
	}
	cs, err := newClients(cfg)
	if err != nil {
		return nil, err
	}
	r := &Registry{
		config:  c,
		address: cs.address,
		clients: cs,
		slots:   make(map[string]*slot),

		watchLog: loglimit.New(watchLines, logInterval),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.shared = registry.Share(source{r})
	return r, nil
}

// Watch implements [registry.Discovery]. All readers of a service share one
// blocking query. The errors that it yields name the service and the agent; an
// HTTP error of Consul is an [api.StatusError] inside. Closing the registry ends
// the loop.
func (r *Registry) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return r.shared.Watch(ctx, service)
}

// Close deregisters what is still registered through r, ends all watches and
// background work, and returns when they have ended: after 5 s at most where
// Consul does not answer, and 2 s more where an [Elector] has a lock to release.
// It also waits for the function that leads. The error says what could not be deregistered. A second
// call does nothing and returns nil.
func (r *Registry) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	var slots []*slot
	for _, s := range r.slots {
		slots = append(slots, s)
	}
	r.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	errs := make([]error, len(slots))
	var wg sync.WaitGroup
	for i, s := range slots {
		wg.Go(func() { errs[i] = r.clear(ctx, s) })
	}
	wg.Wait()

	r.cancel()
	r.work.Wait()
	r.clients.idle()
	return errors.Join(errs...)
}

// begin counts a piece of background work in, unless the registry is closed.
func (r *Registry) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.work.Add(1)
	return true
}

// logger returns the logger for one subject.
func (r *Registry) logger(args ...any) *slog.Logger {
	return r.config.logger.With(append([]any{slog.String("consul", r.address)}, args...)...)
}

// statusCode returns the HTTP status that Consul answered with, or 0.
func statusCode(err error) int {
	var status api.StatusError
	if errors.As(err, &status) {
		return status.Code
	}
	return 0
}

// isNotFound reports whether Consul's agent does not know what it was asked about.
func isNotFound(err error) bool { return statusCode(err) == http.StatusNotFound }
