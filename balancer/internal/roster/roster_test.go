package roster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/balancer/internal/roster"
	"github.com/graylane/graylane/registry"
)

func TestRead(t *testing.T) {
	in := func(id, address string, seq uint64, status registry.Status) registry.Instance {
		return registry.Instance{ID: id, Address: address, Seq: seq, Status: status}
	}
	const (
		passing     = registry.StatusPassing
		warning     = registry.StatusWarning
		critical    = registry.StatusCritical
		maintenance = registry.StatusMaintenance
	)
	four := []registry.Instance{in("a", "1", 1, passing), in("b", "2", 2, warning), in("c", "3", 3, critical), in("d", "4", 4, maintenance)}
	for name, c := range map[string]struct {
		set     []registry.Instance
		warning bool
		want    map[string]bool // by ID: whether it may serve
	}{
		"nothing":                   {nil, false, map[string]bool{}},
		"by status":                 {four, false, map[string]bool{"a": true, "b": false, "c": false, "d": false}},
		"warning by option":         {four, true, map[string]bool{"a": true, "b": true, "c": false, "d": false}},
		"the newest of an address":  {[]registry.Instance{in("a", "1", 2, passing), in("b", "1", 1, passing)}, false, map[string]bool{"a": true}},
		"the newest, though sick":   {[]registry.Instance{in("a", "1", 1, passing), in("b", "1", 2, critical)}, false, map[string]bool{"b": false}},
		"no order: the healthy one": {[]registry.Instance{in("a", "1", 0, passing), in("b", "1", 0, critical)}, false, map[string]bool{"a": true}},
		"no order, both healthy":    {[]registry.Instance{in("a", "1", 0, passing), in("b", "1", 0, passing)}, false, map[string]bool{"b": true}},
		"no order, none is healthy": {[]registry.Instance{in("a", "1", 0, critical), in("b", "1", 0, critical)}, false, map[string]bool{"b": false}},
		"without an address":        {[]registry.Instance{in("a", "", 1, passing)}, false, map[string]bool{}},
	} {
		got := map[string]bool{}
		for _, i := range roster.Read(c.set, c.warning) {
			got[i.ID] = i.Usable
		}
		assert.Equal(t, c.want, got, name)
	}
}
