package balancer

import (
	"math/rand/v2"
	"slices"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/elsewhere"
	"github.com/graylane/graylane/internal/hops"
)

// maxDraws bounds how often the policy of a version is asked for an instance other
// than the one that has refused the RPC. Some give the same one every time.
const maxDraws = 32

// pickElsewhere picks for an RPC that an instance has refused: another instance of
// the version that it was sent to, else what there is where that is down. The price
// of it is that of a new table.
func (p *picker) pickElsewhere(info balancer.PickInfo, refusal *elsewhere.Refusal) (balancer.PickResult, error) {
	tag := graytag.FromContext(info.Ctx)
	by := p.known.find(refusal.ID, refusal.Address)
	view := *p
	view.subsets = slices.Clone(p.subsets)
	// Where nobody knows who it was, any instance of the version may be the one.
	for pass := 0; pass <= len(view.subsets); pass++ {
		view.table = p.selector.NewTable(view.subsets)
		choice, wanted := view.table.Choose(tag)
		r := &route{}
		view.prepare(r, choice)
		if len(r.wait) > 0 {
			return view.pickNone(r, wanted, info)
		}
		servers := r.spread
		if r.single != nil {
			servers = []server{{picker: r.single.picker, version: r.single.version}}
		}
		if len(servers) == 0 {
			break
		}
		first := 0
		if len(servers) > 1 {
			first = rand.IntN(len(servers))
		}
		for i := range servers {
			s := &servers[(first+i)%len(servers)]
			if by != "" || pass > 0 {
				if res, err, ok := view.pickOtherThan(by, r, s, wanted, info); ok {
					return res, err
				}
			}
			view.takeDown(s.version)
		}
	}
	refusal.Nowhere()
	hops.CallFromContext(info.Ctx).Forget()
	return balancer.PickResult{}, status.Errorf(codes.Unavailable, "balancer: an instance of service %q has refused the call as misrouted, and no other may serve it", p.service)
}

// takeDown has the next table take version for one that cannot be reached.
func (p *picker) takeDown(version string) {
	for i, t := range p.targets {
		if t.child.version == version {
			p.subsets[i].Ready, p.subsets[i].State = 0, subset.Down
		}
	}
}

// pickOtherThan picks an instance of s other than the one at address; ok is false
// where there is none, or none to be had.
func (p *picker) pickOtherThan(address string, r *route, s *server, wanted string, info balancer.PickInfo) (res balancer.PickResult, err error, ok bool) {
	for range maxDraws {
		res, err = s.picker.Pick(info)
		if err != nil {
			return res, err, err == balancer.ErrNoSubConnAvailable
		}
		if p.known.address(res.SubConn) != address {
			p.served(info.Ctx, r.choice, s, wanted, res.SubConn, 1)
			return res, nil, true
		}
		if res.Done != nil {
			res.Done(balancer.DoneInfo{}) // picked, and not sent
		}
	}
	return balancer.PickResult{}, nil, false
}
