package memory_test

import (
	"context"
	"fmt"
	"iter"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestSetStatus(t *testing.T) {
	ctx := context.Background()
	reg := memory.New()
	require.ErrorIs(t, reg.SetStatus("a", registry.StatusCritical), registry.ErrNotRegistered)

	g, err := reg.Register(ctx, registry.Instance{ID: "a", Service: "s", Address: "h:1", Metadata: map[string]string{"version": "v1"}})
	require.NoError(t, err)
	next, stop := iter.Pull2(reg.Watch(ctx, "s"))
	defer stop()
	got, _, _ := next()
	assert.Equal(t, registry.StatusPassing, got[0].Status)
	for _, status := range []registry.Status{registry.StatusWarning, registry.StatusCritical, registry.StatusMaintenance, registry.StatusPassing} {
		require.NoError(t, reg.SetStatus("a", status))
		got, err, _ := next()
		require.NoError(t, err)
		assert.Equal(t, status, got[0].Status)
		assert.Equal(t, "v1", got[0].Metadata["version"])
	}

	// A status survives an update, and an unknown one is refused.
	require.NoError(t, reg.SetStatus("a", registry.StatusWarning))
	require.NoError(t, g.Update(ctx, nil))
	var invalid *registry.InvalidError
	require.ErrorAs(t, reg.SetStatus("a", 77), &invalid)
	got, _, _ = next()
	assert.Equal(t, registry.StatusWarning, got[0].Status)
	assert.Nil(t, got[0].Metadata)

	require.NoError(t, g.Deregister(ctx))
	require.ErrorIs(t, reg.SetStatus("a", registry.StatusPassing), registry.ErrNotRegistered)
}

// An ID that moves to another service leaves the first one.
func TestRegister_OtherService(t *testing.T) {
	ctx := context.Background()
	reg := memory.New()
	_, err := reg.Register(ctx, registry.Instance{ID: "a", Service: "s", Address: "h:1"})
	require.NoError(t, err)
	old, stopOld := iter.Pull2(reg.Watch(ctx, "s"))
	defer stopOld()
	got, _, _ := old()
	require.Len(t, got, 1)

	_, err = reg.Register(ctx, registry.Instance{ID: "a", Service: "t", Address: "h:1"})
	require.NoError(t, err)
	got, _, _ = old()
	assert.Empty(t, got)
	young, stopYoung := iter.Pull2(reg.Watch(ctx, "t"))
	defer stopYoung()
	got, _, _ = young()
	assert.Len(t, got, 1)
}

// A shutdown with a context that has ended must not leave the instance behind.
func TestDeregister_EndedContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	reg := memory.New()
	g, err := reg.Register(ctx, registry.Instance{ID: "a", Service: "s", Address: "h:1"})
	require.NoError(t, err)
	cancel()
	require.NoError(t, g.Deregister(ctx))
	for got := range reg.Watch(context.Background(), "s") {
		assert.Empty(t, got)
		break
	}
}

// A snapshot is built once per change, whatever the number of readers.
func TestWatch_SharesSnapshots(t *testing.T) {
	ctx := context.Background()
	reg := memory.New()
	for n := range 100 {
		_, err := reg.Register(ctx, registry.Instance{ID: fmt.Sprintf("i%03d", n), Service: "s", Address: "h:1"})
		require.NoError(t, err)
	}
	var first []registry.Instance
	for range 3 {
		for got := range reg.Watch(ctx, "s") {
			if first == nil {
				first = got
			}
			assert.Same(t, &first[0], &got[0])
			break
		}
	}
}
