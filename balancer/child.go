package balancer

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/attributes"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"

	"github.com/graylane/graylane/balancer/subset"
)

// child runs the policy of one version. To the policy it is the ClientConn.
type child struct {
	balancer.ClientConn // of the parent; UpdateState and NewSubConn are ours
	parent              *graylane
	version             string
	builder             balancer.Builder

	// callMu keeps the calls into policy apart: those of gRPC come one at a
	// time, but a replaced child is closed beside them. It is taken before the
	// policy's locks, and they before parent.mu.
	callMu sync.Mutex
	policy balancer.Balancer
	closed bool
	config serviceconfig.LoadBalancingConfig // the last that update was given
	last   given

	// The window of connectWait: waiting is when, since parent.born, the first
	// pick had to wait, 0 while none has. The timer fires at its end.
	waiting atomic.Int64
	timer   *time.Timer

	// Guarded by parent.mu.
	state    balancer.State
	target   *target // made of state
	next     *child  // is to replace this one as soon as it can serve
	gone     bool    // no longer in use: what it says is not heard
	overdue  bool    // the window has ended, and READY has not come since
	endpoint int     // how many instances it has
	ready    int     // SubConns that are READY
	shown    int     // ready instances as the last picker knew them
	subConns map[balancer.SubConn]struct{}
}

func newChild(b *graylane, version string, builder balancer.Builder) *child {
	c := &child{
		ClientConn: b.cc,
		parent:     b,
		version:    version,
		builder:    builder,
		subConns:   make(map[balancer.SubConn]struct{}),
	}
	c.setStateLocked(balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)})
	// A timer that is made and stopped can be set by a pick without a lock.
	c.timer = time.AfterFunc(time.Hour, c.windowEnds)
	c.timer.Stop()
	return c
}

// update hands a state to the policy; a nil cfg means the one that it has. It
// does nothing where the state brings nothing.
func (c *child) update(cfg *config, endpoints []resolver.Endpoint, attrs *attributes.Attributes) error {
	c.callMu.Lock()
	defer c.callMu.Unlock()
	if c.closed {
		return nil
	}
	next := given{raw: c.last.raw, attrs: attrs, endpoints: endpoints}
	if cfg != nil {
		next.raw, c.config = cfg.raw, cfg.childConfig
	}
	if c.last.endpoints != nil && c.last.equal(&next) {
		return nil
	}
	c.parent.mu.Lock()
	c.endpoint = len(endpoints)
	c.parent.mu.Unlock()
	var addresses []resolver.Address // for policies that do not know endpoints
	for _, e := range endpoints {
		addresses = append(addresses, e.Addresses...)
	}
	err := c.policy.UpdateClientConnState(balancer.ClientConnState{
		ResolverState:  resolver.State{Addresses: addresses, Endpoints: endpoints, Attributes: attrs},
		BalancerConfig: c.config,
	})
	next.failed = err != nil
	c.last = next
	return err
}

func (c *child) exitIdle() {
	c.callMu.Lock()
	defer c.callMu.Unlock()
	if !c.closed {
		c.policy.ExitIdle()
	}
}

// takeOutLocked ends the use of c and of its replacement, which the caller has
// to close once mu is free.
func (c *child) takeOutLocked() []*child {
	all := []*child{c}
	if c.next != nil {
		all = append(all, c.next)
	}
	for _, x := range all {
		x.gone = true
	}
	c.next = nil
	return all
}

// close ends the policy and every connection that it left.
func (c *child) close() {
	c.timer.Stop()
	c.callMu.Lock()
	if !c.closed {
		c.closed = true
		c.policy.Close()
	}
	c.callMu.Unlock()

	c.parent.mu.Lock()
	c.gone = true
	left := slices.Collect(maps.Keys(c.subConns))
	c.parent.mu.Unlock()
	for _, sc := range left {
		sc.Shutdown()
	}
}

// UpdateState implements [balancer.ClientConn] for the policy, which may hold
// its locks: nothing here calls it back.
func (c *child) UpdateState(s balancer.State) {
	b := c.parent
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.gone || b.closed {
		return
	}
	c.setStateLocked(s)
	if current := b.children[c.version]; current != c {
		if current == nil || current.next != c {
			return // being built
		}
		// As gRPC switches policies: not before the new one can serve or has
		// failed, unless the old one cannot serve either.
		if s.ConnectivityState == connectivity.Connecting && current.state.ConnectivityState == connectivity.Ready {
			return
		}
		b.replaceLocked(current, c)
	} else if c.next != nil && s.ConnectivityState != connectivity.Ready {
		b.replaceLocked(c, c.next)
	}
	b.publishLocked()
}

func (b *graylane) replaceLocked(old, next *child) {
	old.next, old.gone = nil, true
	b.children[old.version] = next
	// The caller is inside a policy, perhaps that of old, and holds mu.
	b.closing.Go(old.close)
}

func (c *child) setStateLocked(s balancer.State) {
	c.state = s
	c.target = newTarget(c, s)
	if s.ConnectivityState == connectivity.Ready {
		c.overdue = false
		if c.waiting.Swap(0) != 0 {
			c.timer.Stop()
		}
	}
}

// NewSubConn implements [balancer.ClientConn] for the policy: it counts.
func (c *child) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	b := c.parent
	var sc balancer.SubConn
	var ready bool // guarded by b.mu
	listener := opts.StateListener
	opts.StateListener = func(s balancer.SubConnState) {
		b.mu.Lock()
		if now := s.ConnectivityState == connectivity.Ready; now != ready {
			if ready = now; now {
				c.ready++
			} else {
				c.ready--
			}
		}
		if s.ConnectivityState == connectivity.Shutdown {
			delete(c.subConns, sc)
			b.known.addresses.Delete(sc)
		}
		b.mu.Unlock()

		c.callMu.Lock()
		if !c.closed {
			if listener != nil {
				listener(s)
			} else {
				//lint:ignore SA1019 what gRPC does for policies that give no listener
				c.policy.UpdateSubConnState(sc, s)
			}
		}
		c.callMu.Unlock()

		// A policy may find its state unchanged by what changed the number.
		b.mu.Lock()
		if b.counted && !c.gone && b.children[c.version] == c && c.readyLocked() != c.shown {
			b.publishLocked()
		}
		b.mu.Unlock()
	}
	b.mu.Lock()
	gone := c.gone || b.closed
	b.mu.Unlock()
	if gone {
		return nil, fmt.Errorf("balancer: version %q is closed: no new connections", c.version)
	}
	//lint:ignore SA1019 its lists of addresses are on the way out, the method is not
	sc, err := c.ClientConn.NewSubConn(addrs, opts)
	if err != nil {
		return nil, err
	}
	if len(addrs) > 0 {
		b.known.addresses.Store(sc, addrs[0].Addr)
	}
	b.mu.Lock()
	c.subConns[sc] = struct{}{}
	gone = c.gone || b.closed
	b.mu.Unlock()
	if gone {
		sc.Shutdown() // closed meanwhile, before it could be seen
		return nil, fmt.Errorf("balancer: version %q is closed: no new connections", c.version)
	}
	return sc, nil
}

// subsetLocked is what the decision has to know of c.
func (c *child) subsetLocked() subset.Subset {
	s := subset.Subset{Version: c.version, Registered: c.endpoint, Ready: c.readyLocked()}
	c.shown = s.Ready
	switch c.state.ConnectivityState {
	case connectivity.Connecting, connectivity.Idle:
		s.State = subset.Pending
		if c.overdue || c.parent.connectWait == 0 {
			s.State = subset.Overdue
		}
	default:
		s.State = subset.Down
	}
	return s
}

// readyLocked counts the instances that can serve. Where the policy shows them,
// its word counts: it knows of health checks; else connections are counted.
// Nobody counts where nobody asks.
func (c *child) readyLocked() int {
	if c.state.ConnectivityState != connectivity.Ready {
		return 0
	}
	if !c.parent.counted {
		return 1
	}
	if r := c.target.ring; r != nil {
		return len(r.instances)
	}
	return max(1, c.ready)
}

// startWindow begins the time that picks are ready to wait for c. Of all the
// picks that wait only the first has anything to do.
func (c *child) startWindow(wait time.Duration) {
	if wait > 0 && c.waiting.Load() == 0 && c.waiting.CompareAndSwap(0, max(1, int64(time.Since(c.parent.born)))) {
		c.timer.Reset(wait)
	}
}

// windowEnds releases the picks that wait for c to what else is ready.
func (c *child) windowEnds() {
	b := c.parent
	b.mu.Lock()
	defer b.mu.Unlock()
	began := c.waiting.Load()
	// A pick may have set the timer for a window that READY has closed since.
	if c.gone || b.closed || c.overdue || began == 0 || int64(time.Since(b.born))-began < int64(b.connectWait) {
		return
	}
	c.overdue = true
	b.publishLocked()
}
