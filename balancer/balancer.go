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
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/balancer/subset"
)

// graylane runs one child per version and publishes pickers that choose among
// the children.
type graylane struct {
	cc   balancer.ClientConn
	opts balancer.BuildOptions
	born time.Time // what child.waiting counts from

	// The parent calls the methods of balancer.Balancer one at a time; these
	// fields belong to them.
	given given

	tally atomic.Pointer[tally]
	known instances

	closing sync.WaitGroup // of children that were replaced

	// mu guards what follows and the fields of children that say so. A child
	// calls UpdateState under its own locks, and with it takes mu: so no method
	// of a child is called while mu is held. The parent's UpdateState is called
	// under mu, so that pickers arrive in the order in which they were made.
	mu          sync.Mutex
	children    map[string]*child // by version
	order       []string          // the versions, sorted
	unusable    map[string]int    // registered instances that must not serve, by version
	selector    *subset.Selector  // nil until there is a first good state
	connectWait time.Duration
	counted     bool  // the policy asks how many instances are ready
	cause       error // of the resolver, since its last good state
	inhibited   bool  // a state is being handed down: one picker follows at its end
	closed      bool
}

// given is the last good state, to see whether a new one brings anything.
type given struct {
	raw       string
	service   string
	attrs     *attributes.Attributes
	endpoints []resolver.Endpoint
	failed    bool // a child refused it
}

func (g *given) equal(o *given) bool {
	return !g.failed && g.raw == o.raw && g.service == o.service && g.attrs.Equal(o.attrs) && slices.EqualFunc(g.endpoints, o.endpoints, equalEndpoint)
}

func equalEndpoint(a, b resolver.Endpoint) bool {
	return slices.EqualFunc(a.Addresses, b.Addresses, resolver.Address.Equal) && a.Attributes.Equal(b.Attributes)
}

var _ balancer.Balancer = (*graylane)(nil)

// UpdateClientConnState implements [balancer.Balancer]. An empty set of
// endpoints is a good state: it takes every version away.
func (b *graylane) UpdateClientConnState(s balancer.ClientConnState) error {
	client := lbattr.ClientOf(s.ResolverState)
	cfg, ok := s.BalancerConfig.(*config)
	if !ok {
		return fmt.Errorf("balancer: config of type %T, want what ParseConfig returned", s.BalancerConfig)
	}
	next := given{raw: cfg.raw, service: b.service(cfg, client), attrs: s.ResolverState.Attributes, endpoints: s.ResolverState.Endpoints}
	if b.selected() && b.given.equal(&next) {
		return b.recovered()
	}
	selector, err := cfg.policy.Compile(next.service)
	if err != nil {
		return fmt.Errorf("balancer: config: %w", err)
	}
	b.tallyFor(client)

	parts, unusable := make(map[string][]resolver.Endpoint), make(map[string]int)
	for _, e := range next.endpoints {
		v := selector.Version(lbattr.Metadata(e))
		if lbattr.Unusable(e) {
			unusable[v]++
			continue
		}
		parts[v] = append(parts[v], e)
	}
	b.known.setIDs(next.endpoints)
	b.mu.Lock()
	b.inhibited = true
	b.mu.Unlock()

	var firstErr error
	for _, v := range slices.Sorted(maps.Keys(parts)) {
		if err := b.updateVersion(v, cfg, parts[v], next.attrs); err != nil && firstErr == nil {
			firstErr = err
		}
	}
	next.failed = firstErr != nil
	b.given = next

	b.mu.Lock()
	var gone []*child
	for v, c := range b.children {
		if _, ok := parts[v]; !ok {
			delete(b.children, v)
			gone = append(gone, c.takeOutLocked()...)
		}
	}
	b.order, b.unusable = slices.Sorted(maps.Keys(b.children)), unusable
	b.selector, b.connectWait, b.cause = selector, cfg.connectWait, nil
	b.counted = cfg.policy.MinReady > 1 || slices.Contains(cfg.policy.Fallback, subset.FallbackToAny)
	b.inhibited = false
	b.publishLocked()
	b.mu.Unlock()

	// Only now that no picker offers them any more.
	for _, c := range gone {
		c.close()
	}
	return firstErr
}

// service is the name that the config says, else the resolver, else the target.
func (b *graylane) service(cfg *config, client *lbattr.Client) string {
	switch {
	case cfg.service != "":
		return cfg.service
	case client != nil && client.Service != "":
		return client.Service
	}
	return b.opts.Target.Endpoint()
}

func (b *graylane) selected() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.selector != nil
}

// recovered takes note of a state that brings nothing but itself.
func (b *graylane) recovered() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cause != nil {
		b.cause = nil
		b.publishLocked()
	}
	return nil
}

func (b *graylane) tallyFor(client *lbattr.Client) {
	if t := b.tally.Load(); client == nil || t != nil && t.client == client {
		return
	}
	b.tally.Store(newTally(client, &b.known))
}

// updateVersion hands endpoints to the child of version v, and makes it where
// there is none that runs the right policy.
func (b *graylane) updateVersion(v string, cfg *config, endpoints []resolver.Endpoint, attrs *attributes.Attributes) error {
	b.mu.Lock()
	var current, pending *child
	if current = b.children[v]; current != nil {
		pending = current.next
	}
	latest := current
	if pending != nil {
		latest = pending
	}
	if latest == nil || latest.builder.Name() != cfg.child.Name() {
		latest = newChild(b, v, cfg.child)
		if current == nil {
			b.children[v] = latest
		} else {
			current.next = latest
		}
	} else {
		pending = nil // it stays
	}
	b.mu.Unlock()
	if pending != nil {
		pending.close()
	}
	if latest.policy == nil {
		latest.policy = cfg.child.Build(latest, b.opts)
	}
	if current != nil && current != latest {
		// It serves until its replacement does: what left the version leaves it.
		_ = current.update(nil, endpoints, attrs)
	}
	return latest.update(cfg, endpoints, attrs)
}

// ResolverError implements [balancer.Balancer]. It keeps the last good state;
// where there has been none, RPCs fail with err.
func (b *graylane) ResolverError(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cause = err
	if len(b.children) == 0 {
		b.publishLocked()
	}
}

// UpdateSubConnState implements [balancer.Balancer]. It is never called: every
// SubConn has a listener.
func (b *graylane) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {}

// ExitIdle implements [balancer.Balancer].
func (b *graylane) ExitIdle() {
	b.mu.Lock()
	var all []*child
	for _, c := range b.children {
		all = append(all, c)
		if c.next != nil {
			all = append(all, c.next)
		}
	}
	b.mu.Unlock()
	for _, c := range all {
		c.exitIdle()
	}
}

// Close implements [balancer.Balancer].
func (b *graylane) Close() {
	b.mu.Lock()
	b.closed = true
	var all []*child
	for v, c := range b.children {
		delete(b.children, v)
		all = append(all, c.takeOutLocked()...)
	}
	b.mu.Unlock()
	for _, c := range all {
		c.close()
	}
	b.closing.Wait()
}

// publishLocked makes a picker of what is known and hands it to gRPC.
func (b *graylane) publishLocked() {
	if b.closed || b.inhibited {
		return
	}
	if b.selector == nil {
		b.cc.UpdateState(balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: failing(b.cause)})
		return
	}
	children := make([]*child, len(b.order))
	var states [connectivity.Shutdown + 1]int
	for i, v := range b.order {
		children[i] = b.children[v]
		states[children[i].state.ConnectivityState]++
	}
	state := connectivity.TransientFailure
	for _, s := range []connectivity.State{connectivity.Ready, connectivity.Connecting, connectivity.Idle} {
		if states[s] > 0 {
			state = s
			break
		}
	}
	b.cc.UpdateState(balancer.State{ConnectivityState: state, Picker: b.newPickerLocked(children)})
}
