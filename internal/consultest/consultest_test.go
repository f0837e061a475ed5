package consultest_test

import (
	"errors"
	"testing"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/internal/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestAgent(t *testing.T) {
	a := consultest.Start(t)
	kv := a.Client().KV()
	_, err := kv.Put(&api.KVPair{Key: "k", Value: []byte("v")}, nil)
	require.NoError(t, err)

	address := a.Address()
	a.Kill()
	_, _, err = kv.Get("k", nil)
	require.Error(t, err, "the agent is gone")

	a.Restart()
	assert.Equal(t, address, a.Address())
	pair, _, err := kv.Get("k", nil)
	require.NoError(t, err)
	require.NotNil(t, pair, "a restart keeps the data")

	a.Reset()
	pair, _, err = kv.Get("k", nil)
	require.NoError(t, err)
	assert.Nil(t, pair, "a reset loses it")
}

func TestCluster(t *testing.T) {
	c := consultest.StartCluster(t, 3)
	_, err := c.Agents[0].Client().KV().Put(&api.KVPair{Key: "k", Value: []byte("v")}, nil)
	require.NoError(t, err)
	require.Len(t, c.Followers(), 2)

	killed := c.KillLeader()
	leader := c.Leader()
	assert.NotSame(t, killed, leader)
	// A leader that is new answers others before it knows all.
	pair, _, err := leader.Client().KV().Get("k", &api.QueryOptions{RequireConsistent: true})
	require.NoError(t, err)
	require.NotNil(t, pair)

	killed.Restart()
	assert.Len(t, c.Followers(), 2)
}

func TestStartSecure(t *testing.T) {
	a := consultest.StartSecure(t, consultest.NewCertificates(t))
	name, err := a.Client().Agent().NodeName()
	require.NoError(t, err, "the management token")
	assert.Equal(t, "solo", name)

	get := func(change func(*api.Config)) error {
		cfg := a.Config()
		change(cfg)
		c, err := api.NewClient(cfg)
		require.NoError(t, err)
		defer cfg.HttpClient.CloseIdleConnections()
		_, _, err = c.KV().Get("k", nil)
		return err
	}
	var status api.StatusError
	require.ErrorAs(t, get(func(*api.Config) {}), &status)
	assert.Equal(t, 403, status.Code, "no token")
	require.ErrorContains(t, get(func(c *api.Config) { c.Scheme = "http" }), "HTTPS server")
	require.ErrorContains(t, get(func(c *api.Config) { c.TLSConfig = consultest.NewCertificates(t).TLSConfig() }), "unknown authority")
	err = get(func(c *api.Config) { c.TLSConfig.CertFile, c.TLSConfig.KeyFile = "", "" })
	require.Error(t, err, "no client certificate")
	require.False(t, errors.As(err, &status), "it gets no answer: %v", err)
}
