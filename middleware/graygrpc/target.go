package graygrpc

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/propagation"
)

// destination is where the calls of a connection go, as far as the outbound
// scope has to know.
type destination struct {
	host    string
	service string // "" where the target names none
	inside  bool   // by its scheme or its name; else the scope's function decides
	chosen  bool   // our balancer chooses the instance
}

// destinationOf reads a canonical target, "scheme://authority/endpoint" (gRPC
// Name Resolution, https://github.com/grpc/grpc/blob/master/doc/naming.md).
func destinationOf(canonical string) destination {
	scheme, rest, _ := strings.Cut(canonical, "://")
	_, endpoint, _ := strings.Cut(rest, "/")
	d := destination{host: endpoint}
	switch scheme {
	case resolver.Scheme:
		d.inside, d.service, d.chosen = true, endpoint, true
		return d
	case "unix", "unix-abstract":
		d.inside = true
		return d
	case "passthrough":
		// gRPC takes it without an endpoint for a custom dialer alone, such
		// as one that connects in memory.
		d.inside = endpoint == "" || propagation.InternalHost(endpoint)
	default:
		d.inside = propagation.InternalHost(endpoint)
	}
	d.service = edge.ServiceOf(endpoint)
	return d
}

// maxDestinations bounds what is remembered; a program that dials more targets
// has the rest worked out for each call.
const maxDestinations = 256

// destinations remembers targets, which are read on every call and hardly ever
// change. The zero value is ready; it is safe for concurrent use.
type destinations struct {
	known atomic.Pointer[map[string]destination]
	mu    sync.Mutex // of those who add to known; readers take none
}

func (d *destinations) of(cc *grpc.ClientConn) destination {
	target := cc.Target()
	if known := d.known.Load(); known != nil {
		if found, ok := (*known)[target]; ok {
			return found
		}
	}
	found := destinationOf(cc.CanonicalTarget())
	d.mu.Lock()
	defer d.mu.Unlock()
	next := map[string]destination{}
	if known := d.known.Load(); known != nil {
		if len(*known) >= maxDestinations {
			return found
		}
		next = maps.Clone(*known)
	}
	next[target] = found
	d.known.Store(&next)
	return found
}
