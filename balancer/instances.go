package balancer

import (
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/resolver"

	"github.com/graylane/graylane/balancer/internal/lbattr"
)

// instances tells which instance a connection leads to. It outlives pickers.
type instances struct {
	addresses sync.Map                          // balancer.SubConn -> string
	ids       atomic.Pointer[map[string]string] // by address
}

// setIDs takes note of the IDs of endpoints.
func (n *instances) setIDs(endpoints []resolver.Endpoint) {
	ids := make(map[string]string, len(endpoints))
	for _, e := range endpoints {
		if id := lbattr.ID(e); id != "" && len(e.Addresses) > 0 {
			ids[e.Addresses[0].Addr] = id
		}
	}
	n.ids.Store(&ids)
}

// address returns where sc leads to, "" where that is not known.
func (n *instances) address(sc balancer.SubConn) string {
	a, _ := n.addresses.Load(sc)
	address, _ := a.(string)
	return address
}

// id returns the ID of the instance at address, "" where it is not known.
func (n *instances) id(address string) string {
	if ids := n.ids.Load(); ids != nil {
		return (*ids)[address]
	}
	return ""
}

// find returns the address of the instance with this ID or, where none has it, this
// address; "" where there is none with either.
func (n *instances) find(id, address string) string {
	found := ""
	if ids := n.ids.Load(); ids != nil && id != "" {
		for a, i := range *ids {
			if i == id {
				return a
			}
		}
	}
	n.addresses.Range(func(_, a any) bool {
		if a == address {
			found = address
		}
		return found == ""
	})
	return found
}
