package lbtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// Cluster is a registry and what was registered in it.
type Cluster struct {
	*memory.Registry
	registrations map[string]registry.Registration
}

// NewCluster returns an empty one.
func NewCluster() *Cluster {
	return &Cluster{Registry: memory.New(), registrations: make(map[string]registry.Registration)}
}

// Add runs and registers an instance of service; version "" is none.
func (c *Cluster) Add(tb testing.TB, service, id, version string) *Server {
	tb.Helper()
	s := Start(tb, id)
	c.AddAddress(tb, service, id, s.Addr, version)
	return s
}

// AddAddress registers an instance that runs elsewhere, or not at all.
func (c *Cluster) AddAddress(tb testing.TB, service, id, addr, version string) {
	tb.Helper()
	c.Put(tb, registry.Instance{ID: id, Service: service, Address: addr, Metadata: metadataOf(version)})
}

// Put registers i.
func (c *Cluster) Put(tb testing.TB, i registry.Instance) {
	tb.Helper()
	r, err := c.Register(context.Background(), i)
	require.NoError(tb, err)
	c.registrations[i.ID] = r
}

// SetVersion changes the version of an instance.
func (c *Cluster) SetVersion(tb testing.TB, id, version string) {
	tb.Helper()
	c.SetMetadata(tb, id, metadataOf(version))
}

// SetMetadata replaces the metadata of an instance.
func (c *Cluster) SetMetadata(tb testing.TB, id string, m map[string]string) {
	tb.Helper()
	require.NoError(tb, c.registrations[id].Update(context.Background(), m))
}

// Remove takes an instance out of the registry; it runs on.
func (c *Cluster) Remove(tb testing.TB, id string) {
	tb.Helper()
	require.NoError(tb, c.registrations[id].Deregister(context.Background()))
}

func metadataOf(version string) map[string]string {
	if version == "" {
		return nil
	}
	return map[string]string{registry.MetadataVersion: version}
}
