package registry_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
)

func valid() registry.Instance {
	return registry.Instance{ID: "order-1", Service: "order", Address: "10.0.0.7:8080"}
}

func TestValidate(t *testing.T) {
	for _, address := range []string{
		"10.0.0.7:8080", "[::1]:1", "[fe80::1%eth0]:65535", "order.internal:80", "localhost:8080",
	} {
		i := valid()
		i.Address = address
		assert.NoError(t, i.Validate(), address)
	}
	i := valid()
	i.ID, i.Service = strings.Repeat("x", registry.MaxNameLen), "订单"
	i.Weight, i.Status = 1, registry.StatusMaintenance
	i.Metadata = map[string]string{"version": "", "a b": "灰度"}
	assert.NoError(t, i.Validate())

	for field, changes := range map[string][]func(*registry.Instance){
		"ID": {
			func(i *registry.Instance) { i.ID = "" },
			func(i *registry.Instance) { i.ID = strings.Repeat("x", registry.MaxNameLen+1) },
			func(i *registry.Instance) { i.ID = "a b" },
			func(i *registry.Instance) { i.ID = "a\x00" },
			func(i *registry.Instance) { i.ID = "a\xff" },
			func(i *registry.Instance) { i.ID = "a/b" },
		},
		"Service": {
			func(i *registry.Instance) { i.Service = "" },
			func(i *registry.Instance) { i.Service = "a?b" },
			func(i *registry.Instance) { i.Service = "a%b" },
			func(i *registry.Instance) { i.Service = "a#b" },
		},
		"Address": {
			func(i *registry.Instance) { i.Address = "" },
			func(i *registry.Instance) { i.Address = "10.0.0.7" },
			func(i *registry.Instance) { i.Address = "::1:8080" },
			func(i *registry.Instance) { i.Address = "10.0.0.7:0" },
			func(i *registry.Instance) { i.Address = "10.0.0.7:65536" },
			func(i *registry.Instance) { i.Address = "10.0.0.7:-1" },
			func(i *registry.Instance) { i.Address = "10.0.0.7:http" },
			func(i *registry.Instance) { i.Address = ":8080" },
			func(i *registry.Instance) { i.Address = "0.0.0.0:8080" },
			func(i *registry.Instance) { i.Address = "[::]:8080" },
			func(i *registry.Instance) { i.Address = "a b:8080" },
			func(i *registry.Instance) { i.Address = "http://a:8080" },
		},
		"Weight": {func(i *registry.Instance) { i.Weight = -1 }},
		"Status": {func(i *registry.Instance) { i.Status = registry.StatusMaintenance + 1 }},
		"Metadata": {
			func(i *registry.Instance) { i.Metadata = map[string]string{"": "v"} },
			func(i *registry.Instance) { i.Metadata = map[string]string{"k\xff": "v"} },
			func(i *registry.Instance) { i.Metadata = map[string]string{"k": "\xff"} },
		},
	} {
		for _, change := range changes {
			i := valid()
			change(&i)
			err := i.Validate()
			var invalid *registry.InvalidError
			require.ErrorAs(t, err, &invalid, "%+v", i)
			assert.Equal(t, field, invalid.Field, "%+v", i)
			assert.Contains(t, err.Error(), "registry: invalid "+field)
			assert.Less(t, len(err.Error()), 250)
		}
	}
}

func TestStatusString(t *testing.T) {
	for s, want := range map[registry.Status]string{
		0: "passing", registry.StatusWarning: "warning", registry.StatusCritical: "critical",
		registry.StatusMaintenance: "maintenance", 9: "unknown",
	} {
		assert.Equal(t, want, s.String())
	}
}

func TestEqual(t *testing.T) {
	a := valid()
	b := valid()
	b.Metadata, b.Weight = map[string]string{}, 1
	assert.True(t, a.Equal(b), "a nil map and an empty one, weight 0 and 1")
	assert.True(t, registry.EqualSnapshots(nil, []registry.Instance{}))
	for name, change := range map[string]func(*registry.Instance){
		"ID":       func(i *registry.Instance) { i.ID = "x" },
		"Service":  func(i *registry.Instance) { i.Service = "x" },
		"Address":  func(i *registry.Instance) { i.Address = "x" },
		"Metadata": func(i *registry.Instance) { i.Metadata = map[string]string{"version": ""} },
		"Weight":   func(i *registry.Instance) { i.Weight = 2 },
		"Status":   func(i *registry.Instance) { i.Status = registry.StatusWarning },
		"Seq":      func(i *registry.Instance) { i.Seq = 1 },
	} {
		c := valid()
		change(&c)
		assert.False(t, a.Equal(c), name)
		assert.False(t, registry.EqualSnapshots([]registry.Instance{a}, []registry.Instance{c}), name)
	}
}

func TestSortSnapshot(t *testing.T) {
	s := []registry.Instance{
		{ID: "b", Address: "h:1"}, {ID: "a", Address: "h:2", Seq: 2}, {ID: "a", Address: "h:2", Seq: 1}, {ID: "a", Address: "h:1", Seq: 3},
	}
	registry.SortSnapshot(s)
	assert.Equal(t, []registry.Instance{
		{ID: "a", Address: "h:1", Seq: 3}, {ID: "a", Address: "h:2", Seq: 1}, {ID: "a", Address: "h:2", Seq: 2}, {ID: "b", Address: "h:1"},
	}, s)
}
