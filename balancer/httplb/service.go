package httplb

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/registry"
)

// service is one watched service: its view, its connections, its goroutine. It
// ends with its balancer, or when nobody has asked for it for long enough.
type service struct {
	b        *Balancer
	name     string
	selector *subset.Selector
	counters counters
	way      atomic.Pointer[way] // to the instances; nil until a request goes to one

	ctx      context.Context // of everything that runs for the service
	cancel   context.CancelFunc
	answered chan struct{}              // closed at the first snapshot or error
	view     atomic.Pointer[view]       // nil until then
	failure  atomic.Pointer[watchError] // the last error of the watch, nil after a snapshot
	used     atomic.Int64               // when a request last asked, since epoch; coarse

	// mu guards what follows, and the order of views. It is taken by the watch,
	// by failures and recoveries, never by a request that simply works. Lock
	// order: Balancer.mu before service.mu.
	mu        sync.Mutex
	closed    bool
	groups    []group
	endpoints map[string]*endpoint // by address
	idle      *time.Timer
}

type watchError struct {
	err    error
	logged bool // the log knows of the present run of failures
}

// way is how instances are reached.
type way struct {
	base  http.RoundTripper
	probe func(ctx context.Context, address string) error // nil: cannot dial by itself
}

// reach returns the way to the instances. It is made when there is one to go to:
// names that nobody registered may come by the thousand, and transports are dear.
func (s *service) reach() *way {
	if w := s.way.Load(); w != nil {
		return w
	}
	w := &way{base: s.b.through}
	if t, ok := s.b.through.(*http.Transport); ok {
		transport, dial := instanceTransport(t, s.name, s.dialFailed)
		w.base, w.probe = transport, prober(dial)
	}
	if !s.way.CompareAndSwap(nil, w) {
		return s.way.Load()
	}
	return w
}

func (s *service) closeIdle() {
	if w := s.way.Load(); w != nil {
		closeIdle(w.base)
	}
}

// begin counts a goroutine of the service in; false says that the service has
// ended. The caller calls b.running.Done.
func (s *service) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.b.running.Add(1) // before Close waits: it closes every service first
	return true
}

// run is the goroutine of the watch.
func (s *service) run() {
	defer s.b.running.Done()
	telemetry.Unlabel() // a request has started it
	wait := time.Second
	for {
		for set, err := range s.b.disc.Watch(s.ctx, s.name) {
			if err != nil {
				s.failed(err)
				continue
			}
			wait = time.Second
			s.apply(set)
		}
		if s.ctx.Err() != nil {
			return
		}
		// Watch goes on by contract; one that does not is asked again, slowly.
		s.failed(errWatchEnded)
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(wait):
			wait = min(2*wait, 30*time.Second)
		}
	}
}

// apply takes a snapshot over.
func (s *service) apply(set []registry.Instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.groups = groupInstances(set, s.selector, s.b.warning, s.endpoint)
	live := make(map[*endpoint]bool, len(s.endpoints))
	for _, g := range s.groups {
		for _, in := range g.instances {
			live[in.endpoint] = true
		}
	}
	for address, e := range s.endpoints {
		if !live[e] {
			e.stop()
			delete(s.endpoints, address)
		}
	}
	s.rebuild()
	if f := s.failure.Swap(nil); f != nil && f.logged {
		s.b.logger.Info("httplb: discovery answers again", "service", s.name)
	}
	s.answer()
}

// failed notes an error of the watch; the last good view stays.
func (s *service) failed(err error) {
	before := s.failure.Load() // nobody else writes it
	now := &watchError{err: err, logged: before != nil && before.logged}
	if before == nil && s.b.lines.Allow(time.Now()) {
		now.logged = true
		s.b.logger.Log(s.ctx, troubleLevel(err), "httplb: discovery fails, the last known instances stay", "service", s.name, "known", s.registered(), "error", err)
	}
	s.failure.Store(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view.Load() == nil {
		s.rebuild()
	}
	s.answer()
}

// troubleLevel is how loud an error of the watch is: the end of a discovery that
// was closed is no trouble.
func troubleLevel(err error) slog.Level {
	if errors.Is(err, registry.ErrClosed) || errors.Is(err, errWatchEnded) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// registered counts the instances that the last view knows.
func (s *service) registered() (n int) {
	if v := s.view.Load(); v != nil {
		for _, g := range v.groups {
			n += g.registered
		}
	}
	return n
}

// answer lets the requests go that wait for a first word. mu is held.
func (s *service) answer() {
	select {
	case <-s.answered:
	default:
		close(s.answered)
	}
}

// rebuild replaces the view. mu is held.
func (s *service) rebuild() { s.view.Store(newView(s.groups, s.selector)) }

// cause returns the last error of the watch, nil where it is well.
func (s *service) cause() error {
	if f := s.failure.Load(); f != nil {
		return f.err
	}
	return nil
}

// touch notes that somebody asks for the service. Most calls write nothing.
func (s *service) touch() {
	now := sinceEpoch(time.Now())
	if now-s.used.Load() > int64(min(s.b.idleTimeout, unknownTimeout)/16) {
		s.used.Store(now)
	}
}

// known tells whether the service has an instance.
func (s *service) known() bool {
	v := s.view.Load()
	return v != nil && len(v.groups) > 0
}

// Ranks of services, from those that are missed least.
const (
	rankUnknown = iota // has no instance
	rankAsked          // nothing was heard of it yet: requests wait for that
	rankKnown
)

func (s *service) rank() int {
	switch {
	case s.known():
		return rankKnown
	case s.view.Load() == nil:
		return rankAsked
	}
	return rankUnknown
}

// patience is how long the service is watched without being asked for.
func (s *service) patience() time.Duration {
	if s.known() {
		return s.b.idleTimeout
	}
	return min(s.b.idleTimeout, unknownTimeout)
}

// expire ends the service where nobody has asked for it, or looks again later.
func (s *service) expire() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	patience := s.patience()
	left := patience - time.Duration(sinceEpoch(time.Now())-s.used.Load())
	if left <= 0 {
		s.b.remove(s)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.idle.Reset(left)
	}
}

// close ends everything that runs for the service. Requests under way go on, and
// their connections close when they are done.
func (s *service) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.cancel()
	s.idle.Stop()
	for _, e := range s.endpoints {
		e.stop()
	}
	s.answer()
	s.closeIdle()
}
