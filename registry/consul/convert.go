package consul

import (
	"net"
	"strconv"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
)

// snapshot converts what the health endpoint answered. It leaves out, and counts,
// what callers cannot dial. Nothing in the answer may make it panic: a proxy or a
// test server may answer with nulls.
func snapshot(entries []*api.ServiceEntry) (set []registry.Instance, skipped int) {
	set = make([]registry.Instance, 0, len(entries))
	for _, e := range entries {
		if e == nil || e.Service == nil {
			skipped++
			continue
		}
		host := e.Service.Address
		if host == "" && e.Node != nil {
			host = e.Node.Address
		}
		if host == "" || e.Service.Port <= 0 {
			skipped++
			continue
		}
		i := registry.Instance{
			ID:      e.Service.ID,
			Service: e.Service.Service,
			Address: net.JoinHostPort(host, strconv.Itoa(e.Service.Port)),
			Weight:  e.Service.Weights.Passing,
			Status:  status(e.Checks),
			Seq:     e.Service.CreateIndex,
		}
		if len(e.Service.Meta) > 0 {
			i.Metadata = e.Service.Meta
		}
		set = append(set, i)
	}
	registry.SortSnapshot(set)
	return set, skipped
}

// status aggregates the checks of the instance and of its node as Consul does.
func status(checks api.HealthChecks) registry.Status {
	known := make(api.HealthChecks, 0, len(checks))
	for _, c := range checks {
		if c != nil {
			known = append(known, c)
		}
	}
	switch known.AggregatedStatus() {
	case api.HealthPassing:
		return registry.StatusPassing
	case api.HealthWarning:
		return registry.StatusWarning
	case api.HealthMaint:
		return registry.StatusMaintenance
	}
	// Critical, or a state that does not exist yet: nothing to send users to.
	return registry.StatusCritical
}
