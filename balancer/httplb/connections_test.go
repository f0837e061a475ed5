package httplb_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counted starts a server that counts the connections made to it.
func (c *cluster) counted(id string) (address string, connections *atomic.Int32) {
	connections = &atomic.Int32{}
	srv := httptest.NewUnstartedServer(c.serve(id))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	srv.Start()
	c.t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), connections
}

// Whatever the registry says of an instance or of others, its connections stay as
// long as its address does.
func TestConnectionsOutliveChanges(t *testing.T) {
	c := newCluster(t)
	address, connections := c.counted("g1")
	g1 := c.register(instance("inventory", "g1", "v2", address))
	c.up("inventory", "s1", "")
	lb := c.balancer()
	is := func(tag, id string) {
		t.Helper()
		require.Eventually(t, func() bool {
			got, err := get(tagged(tag), lb, "http://inventory/")
			require.NoError(t, err)
			return got == id
		}, 5*time.Second, time.Millisecond)
	}
	is("version=v2", "g1")
	other := c.up("inventory", "h1", "v3")
	is("version=v3", "h1")
	require.NoError(t, other.Deregister(context.Background()))
	is("version=v3", "s1")
	is("version=v2", "g1")
	require.NoError(t, g1.Update(context.Background(), map[string]string{"version": "v4"}))
	is("version=v4", "g1")
	is("version=v2", "s1")
	assert.EqualValues(t, 1, connections.Load())
}
