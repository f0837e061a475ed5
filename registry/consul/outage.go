package consul

import (
	"net/http"
	"time"

	"github.com/graylane/graylane/registry"
)

// outage keeps what served before the agent could not be reached, for a while
// after it is back. An agent that restarts without its data, as a development one
// does, knows nothing until every process has registered again; one that was down
// for longer than a TTL reports everything as critical until it is told otherwise.
// Believing either at once would fail every request though nothing is wrong with
// any instance.
type outage struct {
	grace time.Duration

	down  bool                         // not reached since the last good answer
	until time.Time                    // end of the grace
	held  map[string]registry.Instance // by ID: what served and is not back yet
}

// failed notes a failed query.
func (o *outage) failed(err error) {
	switch statusCode(err) {
	case 0, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		o.down = true
	}
}

// apply returns the set to tell readers of: what Consul answered, and until the end
// of the grace also what served before the outage. An instance is believed as
// answered from the moment it is back; maintenance is believed at once.
func (o *outage) apply(before, set []registry.Instance, now time.Time) []registry.Instance {
	if o.down {
		o.down, o.until = false, now.Add(o.grace)
		o.held = make(map[string]registry.Instance, len(before))
		for _, i := range before {
			if i.Status == registry.StatusPassing || i.Status == registry.StatusWarning {
				o.held[i.ID] = i
			}
		}
	}
	if len(o.held) == 0 {
		return set
	}
	if !now.Before(o.until) {
		o.held = nil
		return set
	}

	// set is ours alone until it is yielded.
	addresses := make(map[string]bool, len(set))
	missing := make(map[string]bool, len(o.held))
	for id := range o.held {
		missing[id] = true
	}
	for n, i := range set {
		addresses[i.Address] = true
		old, ok := o.held[i.ID]
		if !ok {
			continue
		}
		delete(missing, i.ID)
		if i.Status == registry.StatusCritical {
			set[n].Status = old.Status
		} else {
			delete(o.held, i.ID)
		}
	}
	for id := range missing {
		// Whoever has the address now is not who had it then.
		if old := o.held[id]; !addresses[old.Address] {
			set = append(set, old)
		}
	}
	registry.SortSnapshot(set)
	return set
}

// remaining returns how long the grace lasts, 0 where nothing is held.
func (o *outage) remaining(now time.Time) time.Duration {
	if len(o.held) == 0 {
		return 0
	}
	return max(o.until.Sub(now), 0)
}
