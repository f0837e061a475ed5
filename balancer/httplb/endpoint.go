package httplb

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/registry"
)

// endpoint is what the balancer knows of one address. It outlives snapshots and
// views. Fields that are not atomic are guarded by service.mu; the atomic ones are
// written with it held.
type endpoint struct {
	address string
	id      string // of the registration that has the address
	seq     uint64

	// due is 0, or says that the endpoint is aside and when its cool-off ends,
	// in nanoseconds since epoch.
	due atomic.Int64
	// fails counts dial failures since the last request that got through.
	fails atomic.Int32
	timer *time.Timer
}

// epoch makes monotonic times comparable as integers.
var epoch = time.Now()

func sinceEpoch(t time.Time) int64 { return max(1, int64(t.Sub(epoch))) }

// coolOff is how long an endpoint stays aside after so many failures in a row.
func coolOff(fails int32, first, longest time.Duration) time.Duration {
	d := first
	for ; fails > 1 && d < longest; fails-- {
		d *= 2
	}
	return min(d, longest)
}

// endpoint returns what is known of the address of i, creating it. A registration
// that is new at an address is a process that has started: what was known of the
// one before is forgotten. mu is held.
func (s *service) endpoint(i registry.Instance) *endpoint {
	e := s.endpoints[i.Address]
	if e != nil && e.id == i.ID && e.seq == i.Seq {
		return e
	}
	if e != nil {
		e.stop()
	}
	e = &endpoint{address: i.Address, id: i.ID, seq: i.Seq}
	s.endpoints[i.Address] = e
	return e
}

// stop ends the wait of an endpoint that is aside. mu is held.
func (e *endpoint) stop() {
	if e.timer != nil {
		e.timer.Stop()
	}
}

// dialFailed puts the endpoint at address aside. Most requests learn of a failed
// dial themselves; those with less time than a dial to a black hole takes are gone
// when it fails, and nobody else would ever know.
func (s *service) dialFailed(address string, err error) {
	if errors.Is(err, context.Canceled) {
		return // says nothing of the instance
	}
	s.mu.Lock()
	e := s.endpoints[address]
	s.mu.Unlock()
	if e != nil {
		s.putAside(e, err)
	}
}

// putAside takes an endpoint that could not be dialled out of the choice until its
// cool-off has ended.
func (s *service) putAside(e *endpoint, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.endpoints[e.address] != e {
		return
	}
	now := time.Now()
	if e.due.Load() != 0 {
		// It was tried for want of a better one. Others come first next time;
		// the time of its return stays.
		e.due.Store(sinceEpoch(now.Add(coolOff(e.fails.Load(), s.b.coolOff, s.b.maxCoolOff))))
		return
	}
	if e.fails.Load() == 0 {
		s.b.logger.Warn("httplb: instance cannot be dialled, it is put aside", "service", s.name, "instance", e.id, "address", e.address, "error", cause)
	}
	s.sleep(e, now)
	s.rebuild()
}

// sleep starts the next cool-off of e. mu is held.
func (s *service) sleep(e *endpoint, now time.Time) {
	d := coolOff(e.fails.Add(1), s.b.coolOff, s.b.maxCoolOff)
	e.due.Store(sinceEpoch(now.Add(d)))
	e.timer = time.AfterFunc(d, func() { s.wake(e) })
}

// wake ends the cool-off of e. Where the balancer can dial by itself it does so
// first: no request has to find out that the instance is still away.
func (s *service) wake(e *endpoint) {
	if !s.begin() {
		return
	}
	defer s.b.running.Done()
	var err error
	if probe := s.reach().probe; probe != nil {
		err = probe(s.ctx, e.address)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.endpoints[e.address] != e || e.due.Load() == 0 {
		return
	}
	if err != nil {
		s.sleep(e, time.Now())
		return
	}
	e.due.Store(0)
	s.rebuild()
}

// reached notes that a request got through to e. forced says that e was tried
// although it was aside.
func (s *service) reached(e *endpoint, forced bool) {
	if e.fails.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	aside := e.due.Load() != 0
	if s.closed || s.endpoints[e.address] != e || aside && !forced {
		return // an old connection says nothing about new ones
	}
	e.fails.Store(0)
	if aside {
		e.stop()
		e.due.Store(0)
		s.rebuild()
	}
	s.b.logger.Info("httplb: instance is back", "service", s.name, "instance", e.id, "address", e.address)
}
