package balancer

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/connectivity"
)

// ring takes the instances of a version in turn. It does what the picker of
// round_robin does over the same instances, without going through it: that
// pays for the look at the tag.
type ring struct {
	instances []balancer.Picker
	inverse   uint64 // of their number

	_    [64]byte // what every pick reads stays out of the line that every pick writes
	next atomic.Uint32
}

// newRing returns nil where the picker of s does not show its instances, or
// where none is ready: round_robin does both, policies with an order of their
// own show nothing.
func newRing(s balancer.State) *ring {
	if s.ConnectivityState != connectivity.Ready {
		return nil
	}
	var instances []balancer.Picker
	for _, e := range endpointsharding.ChildStatesFromPicker(s.Picker) {
		if e.State.ConnectivityState == connectivity.Ready {
			instances = append(instances, e.State.Picker)
		}
	}
	if len(instances) == 0 {
		return nil
	}
	r := ringOf(instances)
	r.next.Store(rand.Uint32())
	return r
}

func ringOf(instances []balancer.Picker) *ring {
	return &ring{instances: instances, inverse: ^uint64(0)/uint64(len(instances)) + 1}
}

// at returns instance n modulo their number, by two multiplications in place
// of a division (Lemire, Kaser, Kurz: Faster remainder by direct computation,
// 2019; exact for all n of 32 bits).
func (r *ring) at(n uint32) balancer.Picker {
	i, _ := bits.Mul64(r.inverse*uint64(n), uint64(len(r.instances)))
	return r.instances[i]
}
