package registry_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestCountStable(t *testing.T) {
	reg := memory.New()
	for id, i := range map[string]registry.Instance{
		"old":   {Metadata: map[string]string{"release": "2026-11"}},
		"bare":  {},
		"gray":  {Metadata: map[string]string{"version": "v2", "release": "2026-12"}},
		"sick":  {Metadata: map[string]string{"release": "2026-12"}, Status: registry.StatusWarning},
		"new":   {Metadata: map[string]string{"release": "2026-12"}},
		"named": {Metadata: map[string]string{"release": "2026-12", "version": "stable", "zone": ""}},
	} {
		i.ID, i.Service, i.Address = id, "order", "10.0.0.1:"+map[string]string{"old": "1", "bare": "2", "gray": "3", "sick": "4", "new": "5", "named": "6"}[id]
		_, err := reg.Register(t.Context(), i)
		require.NoError(t, err)
	}
	for want, metadata := range map[int]map[string]string{
		4: nil,
		2: {"release": "2026-12"},
		1: {"release": "2026-12", "zone": ""},
		0: {"release": ""},
	} {
		n, err := registry.CountStable(t.Context(), reg, "order", metadata)
		require.NoError(t, err)
		assert.Equal(t, want, n, "%v", metadata)
	}
	n, err := registry.CountStable(t.Context(), reg, "nobody", nil)
	require.NoError(t, err)
	assert.Zero(t, n)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = registry.CountStable(ended, reg, "order", nil)
	assert.ErrorIs(t, err, context.Canceled)
}
