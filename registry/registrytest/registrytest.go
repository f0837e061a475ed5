package registrytest

import (
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/graylane/graylane/registry"
)

// Registry is what is tested: both sides of one registry.
type Registry interface {
	registry.Registrar
	registry.Discovery
}

// Option configures [Run].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	timeout     time.Duration
	passingOnly bool
}

// WithTimeout sets how long a test waits for what must happen; default 10 s. A
// conforming registry is never waited for in full.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) {
		if d > 0 {
			c.timeout = d
		}
	})
}

// WithPassingOnly leaves out the test that registers instances of every status,
// for registries that find health out by themselves.
func WithPassingOnly() Option {
	return optionFunc(func(c *config) { c.passingOnly = true })
}

// Run tests the registry that open returns, in a subtest for each requirement.
// open is called once per subtest; it may return one and the same registry.
func Run(t *testing.T, open func(t *testing.T) Registry, opts ...Option) {
	t.Helper()
	c := newConfig(opts)
	for _, test := range tests {
		if test.statuses && c.passingOnly {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			s := newSuite(t, open(t), c)
			defer s.cleanUp()
			test.run(s)
		})
	}
}

func newConfig(opts []Option) config {
	c := config{timeout: 10 * time.Second}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	return c
}

// reporter is the part of testing.T that the tests use; the tests of this package
// have one of their own, to see that faults are found.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
	Failed() bool
}

// suite is one run of one test.
type suite struct {
	t       reporter
	reg     Registry
	timeout time.Duration
	prefix  string
	ctx     context.Context
	cancel  context.CancelFunc

	// mu guards what has to be cleaned up: tests register from many goroutines.
	mu            sync.Mutex
	registrations []registry.Registration
	readers       []*reader
}

func newSuite(t reporter, reg Registry, c config) *suite {
	ctx, cancel := context.WithCancel(context.Background())
	return &suite{t: t, reg: reg, timeout: c.timeout, prefix: "rt-" + rand.Text()[:10], ctx: ctx, cancel: cancel}
}

func (s *suite) cleanUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		r.stop()
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	for _, r := range s.registrations {
		if err := r.Deregister(ctx); err != nil {
			s.t.Errorf("cleaning up: Deregister: %v", err)
		}
	}
	s.cancel()
}

func (s *suite) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Errorf(format, args...)
	s.t.FailNow()
}

// service returns a service name that nobody else uses.
func (s *suite) service() string { return s.prefix }

// instance returns the n-th instance of the service of this test.
func (s *suite) instance(n int) registry.Instance {
	return registry.Instance{
		ID:       fmt.Sprintf("%s-%03d", s.prefix, n),
		Service:  s.service(),
		Address:  fmt.Sprintf("127.0.0.1:%d", 20000+n),
		Metadata: map[string]string{registry.MetadataVersion: fmt.Sprintf("v%d", n)},
		Weight:   1,
	}
}

// register registers i and deregisters it at the end of the test.
func (s *suite) register(i registry.Instance) registry.Registration {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	r, err := s.reg.Register(ctx, i)
	if err != nil {
		s.fatalf("Register(%+v): %v", i, err)
	}
	if r == nil {
		s.fatalf("Register(%+v): no registration and no error", i)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registrations = append(s.registrations, r)
	return r
}

func (s *suite) update(r registry.Registration, metadata map[string]string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := r.Update(ctx, metadata); err != nil {
		s.fatalf("Update(%v): %v", metadata, err)
	}
}

func (s *suite) deregister(r registry.Registration) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := r.Deregister(ctx); err != nil {
		s.fatalf("Deregister: %v", err)
	}
}

// snapshot is one thing that a watch yielded, with a copy made at that time.
type snapshot struct {
	set  []registry.Instance
	copy []registry.Instance
	err  error
}

// reader runs the loop of one watch.
type reader struct {
	s      *suite
	yields chan snapshot
	cancel context.CancelFunc
	done   chan struct{}

	// last is what was yielded last, for the check that nothing comes twice. It
	// belongs to the loop.
	last     []registry.Instance
	haveLast bool
	// seen is everything that next returned.
	seen []snapshot
}

// watch starts a reader, which takes the next snapshot when the one before was
// taken from it.
func (s *suite) watch(service string) *reader {
	ctx, cancel := context.WithCancel(s.ctx)
	r := &reader{s: s, yields: make(chan snapshot), cancel: cancel, done: make(chan struct{})}
	seq := s.reg.Watch(ctx, service)
	go func() {
		defer close(r.done)
		for set, err := range seq {
			r.check(ctx, set, err)
			select {
			case r.yields <- snapshot{set: set, copy: deepCopy(set), err: err}:
			case <-ctx.Done():
				// Staying in the loop shows whether it is left alone.
			}
		}
	}()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers = append(s.readers, r)
	return r
}

// check is what holds for everything that any watch yields.
func (r *reader) check(ctx context.Context, set []registry.Instance, err error) {
	if err != nil {
		if set != nil {
			r.s.t.Errorf("Watch yielded %d instances beside the error %v, want a nil set", len(set), err)
		}
		return
	}
	if r.haveLast && registry.EqualSnapshots(r.last, set) {
		r.s.t.Errorf("Watch yielded equal content twice in a row: %v", set)
	}
	for i := 1; i < len(set); i++ {
		if set[i-1].ID > set[i].ID {
			r.s.t.Errorf("Watch yielded a set that is not sorted by ID: %q before %q", set[i-1].ID, set[i].ID)
		}
	}
	r.last, r.haveLast = deepCopy(set), true
}

// next returns the next thing that the watch yields.
func (r *reader) next() snapshot {
	r.s.t.Helper()
	timer := time.NewTimer(r.s.timeout)
	defer timer.Stop()
	select {
	case y := <-r.yields:
		r.seen = append(r.seen, y)
		return y
	case <-r.done:
		r.s.fatalf("the loop of Watch ended by itself")
	case <-timer.C:
		r.s.fatalf("Watch yielded nothing within %v", r.s.timeout)
	}
	runtime.Goexit() // fatalf does not return
	return snapshot{}
}

// until takes snapshots until one satisfies ok, and returns it.
func (r *reader) until(what string, ok func([]registry.Instance) bool) snapshot {
	r.s.t.Helper()
	deadline := time.Now().Add(r.s.timeout)
	for {
		y := r.next()
		if y.err == nil && ok(y.set) {
			return y
		}
		if time.Now().After(deadline) {
			r.s.fatalf("Watch yielded no set with %s within %v, but %v", what, r.s.timeout, y.set)
		}
	}
}

// untilIDs takes snapshots until one holds exactly these instances.
func (r *reader) untilIDs(ids ...string) snapshot {
	r.s.t.Helper()
	return r.until(fmt.Sprintf("exactly %q", ids), func(set []registry.Instance) bool {
		if len(set) != len(ids) {
			return false
		}
		for n, id := range ids {
			if set[n].ID != id {
				return false
			}
		}
		return true
	})
}

// stop ends the watch and waits for the end of its loop.
func (r *reader) stop() {
	r.s.t.Helper()
	r.cancel()
	select {
	case <-r.done:
	case <-time.After(r.s.timeout):
		r.s.t.Errorf("the loop of Watch did not end within %v of the end of its context", r.s.timeout)
	}
}

func deepCopy(set []registry.Instance) []registry.Instance {
	c := make([]registry.Instance, len(set))
	for n, i := range set {
		c[n] = i.Clone()
	}
	return c
}
