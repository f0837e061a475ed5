package e2e_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry/memory"
)

// The way of a request is gathered over HTTP, unary calls and streams alike.
func TestTheWayOverHTTPAndGRPC(t *testing.T) {
	reg := memory.New()
	l, client := &log{}, newClient(t, reg)
	startHTTP(t, reg, l, "e", "", 1, nil)
	startGRPC(t, reg, l, "d", "v2", 1, overHTTP(client, "e"))
	startGRPC(t, reg, l, "d", "", 1, overHTTP(client, "e"))
	startHTTP(t, reg, l, "c", "", 1, overBidi(dial(t, reg, "d")))
	startGRPC(t, reg, l, "b", "v2", 1, overHTTP(client, "c"))
	startHTTP(t, reg, l, "a", "v2", 1, overUnary(dial(t, reg, "b")))
	ctx, cancel := context.WithTimeout(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), wait)
	defer cancel()

	hop := func(depth int, service string) propagation.Hop {
		return propagation.Hop{Depth: depth, Service: service, Instance: service + "-v21", Wanted: "v2", Got: "v2", Outcome: "matched"}
	}
	stable := func(depth int, service string) propagation.Hop {
		return propagation.Hop{Depth: depth, Service: service, Instance: service + "-1", Wanted: "v2", Got: "stable", Outcome: "fallback_stable", Reason: "missing"}
	}
	for range 2 {
		ctx, trace := propagation.TraceRoute(ctx)
		require.NoError(t, overHTTP(client, "a")(ctx))
		got, more := trace.Hops()
		trace.End()
		assert.Equal(t, []propagation.Hop{hop(0, "a"), hop(1, "b"), stable(2, "c"), hop(3, "d"), stable(4, "e")}, got)
		assert.Zero(t, more)
	}
	ctx2, trace := propagation.TraceRoute(ctx)
	defer trace.End()
	require.NoError(t, overUnary(dial(t, reg, "b"))(ctx2))
	got, _ := trace.Hops()
	assert.Equal(t, []propagation.Hop{hop(0, "b"), stable(1, "c"), hop(2, "d"), stable(3, "e")}, got)

	for _, service := range []string{"a", "b", "c", "d", "e"} {
		for _, v := range l.of(service) {
			assert.Equal(t, "1", v.header.Get("X-Gray-Trace"), service)
		}
	}
	require.NoError(t, overHTTP(client, "a")(ctx))
	for _, service := range []string{"a", "b", "c", "d", "e"} {
		all := l.of(service)
		assert.Empty(t, all[len(all)-1].header.Get("X-Gray-Trace"), "nobody asked at %s", service)
	}
}
