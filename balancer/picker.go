package balancer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/elsewhere"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// target is a child in one state, as pickers see it.
type target struct {
	child  *child
	picker balancer.Picker
	ring   *ring // where picker takes its instances in turn, else nil
}

func newTarget(c *child, s balancer.State) *target {
	return &target{child: c, picker: s.Picker, ring: newRing(s)}
}

// picker is an immutable view of all versions.
type picker struct {
	table       *subset.Table
	routes      []route // by Choice.Index
	stable      *route  // of requests that want stable
	connectWait time.Duration
	tally       *tally             // nil where nobody counts and nobody looks
	down        map[string]*target // versions without a ready instance
	cause       error              // of the resolver

	// For the few calls that an instance has refused, see pickElsewhere.
	service  string
	selector *subset.Selector
	subsets  []subset.Subset
	targets  []*target // of the first of them
	known    *instances
}

// route is what there is to do for one choice.
type route struct {
	choice *subset.Choice
	single *server   // serves alone
	ring   *ring     // of single, where it has one
	spread []server  // share, by their instances
	total  uint32    // of those instances
	wait   []*target // to be asked, and waited for
}

// server is a version that serves for a route.
type server struct {
	picker  balancer.Picker
	version string
	upTo    uint32                           // its share ends here, see spread
	series  atomic.Pointer[telemetry.Series] // of the route's own version; made on first use
}

func (b *graylane) newPickerLocked(children []*child) *picker {
	subsets := make([]subset.Subset, len(children))
	p := &picker{
		connectWait: b.connectWait, tally: b.tally.Load(), cause: b.cause,
		service: b.selector.Service(), selector: b.selector, targets: make([]*target, len(children)), known: &b.known,
	}
	for i, c := range children {
		subsets[i] = c.subsetLocked()
		subsets[i].Registered += b.unusable[c.version]
		p.targets[i] = c.target
		if subsets[i].Ready == 0 {
			if p.down == nil {
				p.down = make(map[string]*target)
			}
			p.down[c.version] = c.target
		}
	}
	// Versions without a child come last: none of them is ever chosen.
	for v, n := range b.unusable {
		if b.children[v] == nil {
			subsets = append(subsets, subset.Subset{Version: v, Registered: n, State: subset.Down})
		}
	}
	p.subsets = subsets
	p.table = b.selector.NewTable(subsets)
	choices := p.table.Choices()
	p.routes = make([]route, len(choices))
	p.stable = &p.routes[p.table.Stable().Index]
	for i, choice := range choices {
		p.prepare(&p.routes[i], choice)
	}
	return p
}

// prepare makes r the route of choice.
func (p *picker) prepare(r *route, choice *subset.Choice) {
	r.choice = choice
	switch {
	case choice.Wait:
		for _, at := range choice.Subsets {
			r.wait = append(r.wait, p.targets[at])
		}
	case len(choice.Subsets) == 1:
		t := p.targets[choice.Subsets[0]]
		r.single, r.ring = &server{picker: t.picker, version: t.child.version}, t.ring
	case len(choice.Subsets) > 1:
		r.spread = make([]server, len(choice.Subsets))
		for j, at := range choice.Subsets {
			r.total += uint32(p.subsets[at].Ready)
			s := &r.spread[j]
			s.picker, s.version, s.upTo = p.targets[at].picker, p.targets[at].child.version, r.total
		}
	}
}

// Pick implements [balancer.Picker]. It takes no lock, and allocates nothing
// beyond what the version's own picker does, as long as an instance serves and
// nobody records.
func (p *picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	if elsewhere.Live() {
		if refusal := elsewhere.FromContext(info.Ctx); refusal != nil && refusal.Service == p.service {
			return p.pickElsewhere(info, refusal)
		}
	}
	r, wanted := p.stable, ""
	if tag := graytag.FromContext(info.Ctx); !tag.IsZero() {
		var choice *subset.Choice
		choice, wanted = p.table.Choose(tag)
		r = &p.routes[choice.Index]
	}
	if r.ring == nil {
		return p.pickOther(r, wanted, info)
	}
	n := r.ring.next.Add(1)
	instance := r.ring.at(n)
	if p.tally.idle(n) && !hops.Live() {
		return instance.Pick(info)
	}
	return p.pickCounted(instance, r, r.single, wanted, info, n)
}

func (p *picker) pickOther(r *route, wanted string, info balancer.PickInfo) (balancer.PickResult, error) {
	s := r.single
	if s == nil {
		if r.spread == nil {
			return p.pickNone(r, wanted, info)
		}
		s = r.draw()
	}
	return p.pickCounted(s.picker, r, s, wanted, info, rand.Uint32())
}

func (p *picker) pickCounted(from balancer.Picker, r *route, s *server, wanted string, info balancer.PickInfo, n uint32) (balancer.PickResult, error) {
	res, err := from.Pick(info)
	if err == nil {
		p.served(info.Ctx, r.choice, s, wanted, res.SubConn, n)
	}
	return res, err
}

// draw chooses among versions in proportion to their instances, by chance: a
// counter would be one word that all cores write.
func (r *route) draw() *server {
	n := rand.Uint32N(r.total)
	for i := range r.spread {
		if n < r.spread[i].upTo {
			return &r.spread[i]
		}
	}
	return &r.spread[len(r.spread)-1]
}

func (p *picker) pickNone(r *route, wanted string, info balancer.PickInfo) (balancer.PickResult, error) {
	if len(r.wait) == 0 {
		return p.unavailable(r, wanted, info)
	}
	// Asking connects, where the policy waits to be asked.
	var failed error
	queued := false
	for _, t := range r.wait {
		t.child.startWindow(p.connectWait)
		res, err := t.picker.Pick(info)
		switch {
		case err == nil:
			p.served(info.Ctx, r.choice, &server{version: t.child.version}, wanted, res.SubConn, 1)
			return res, nil
		case err == balancer.ErrNoSubConnAvailable: // gRPC compares, so do we
			queued = true
		default:
			failed = err
		}
	}
	if queued {
		return balancer.PickResult{}, balancer.ErrNoSubConnAvailable
	}
	return balancer.PickResult{}, failed
}

func (p *picker) unavailable(r *route, wanted string, info balancer.PickInfo) (balancer.PickResult, error) {
	cause := p.cause
	// The wanted version has instances, and its policy gave them up. It may know
	// of one that is worth a try all the same, as ring_hash does; at least it
	// knows why.
	if t := p.down[wanted]; t != nil {
		res, err := t.picker.Pick(info)
		switch {
		case err == nil:
			p.served(info.Ctx, own(wanted), &server{version: wanted}, wanted, res.SubConn, 1)
			return res, nil
		case err == balancer.ErrNoSubConnAvailable:
			return balancer.PickResult{}, err
		}
		cause = err
	}
	p.failed(info.Ctx, r.choice, wanted)
	text := p.table.Unavailable(r.choice, wanted, cause).Error()
	if r.choice.Final {
		// A status ends RPCs that wait for ready, too: there is nothing to wait for.
		return balancer.PickResult{}, status.Error(codes.Unavailable, text)
	}
	// Flat: a status somewhere in the chain would make this one.
	return balancer.PickResult{}, errors.New(text)
}

func own(wanted string) *subset.Choice {
	if wanted == "" {
		return &subset.Choice{Outcome: subset.Stable}
	}
	return &subset.Choice{Outcome: subset.Matched}
}

// failing is the picker before there is a first good state.
func failing(cause error) balancer.Picker {
	return base.NewErrPicker(fmt.Errorf("balancer: no instances are known yet: %v", cause))
}
