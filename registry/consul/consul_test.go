package consul_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/registrytest"
)

// patience bounds the waiting for what must happen, on a busy machine.
const patience = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open returns a registry that is closed with the test.
func open(t *testing.T, cfg *api.Config, opts ...consul.Option) *consul.Registry {
	t.Helper()
	opts = append([]consul.Option{consul.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	r, err := consul.New(cfg, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() }) // the agent may be gone already
	return r
}

func TestConformance(t *testing.T) {
	agent := consultest.Start(t)
	registrytest.Run(t, func(t *testing.T) registrytest.Registry { return open(t, agent.Config()) })
}

func TestWithAddress(t *testing.T) {
	agent := consultest.Start(t)
	r, err := consul.New(nil, consul.WithAddress(agent.Address()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	reg, err := r.Register(t.Context(), registry.Instance{ID: "a", Service: "order", Address: "10.0.0.1:80"})
	require.NoError(t, err)
	require.NoError(t, reg.Deregister(t.Context()))

	cfg := agent.Config()
	cfg.Address = "127.0.0.1:1"
	r2, err := consul.New(cfg, consul.WithAddress(agent.Address()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r2.Close()) })
	reg, err = r2.Register(t.Context(), registry.Instance{ID: "b", Service: "order", Address: "10.0.0.1:80"})
	require.NoError(t, err)
	require.NoError(t, reg.Deregister(t.Context()))
	require.Equal(t, "127.0.0.1:1", cfg.Address, "the caller's config is not changed")
}
