package graygrpc_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry/memory"
)

// Every attempt of a retried RPC carries the tag and stays on its version, also
// where an interceptor behind ours has replaced the metadata.
func TestRetriesStayOnTheVersion(t *testing.T) {
	reg := memory.New()
	var calls atomic.Int32
	var gray []*node
	for _, id := range []string{"g1", "g2"} {
		n := &node{name: id, next: func(context.Context) error {
			if calls.Add(1)%3 != 0 {
				return status.Error(codes.Unavailable, "not now")
			}
			return nil
		}}
		gray = append(gray, n)
		register(t, reg, id, "order", "v2.1.0", serve(t, n, serverOptions(t)...))
	}
	stable := &node{name: "s1"}
	register(t, reg, "s1", "order", "", serve(t, stable, serverOptions(t)...))

	opts := graygrpc.DialOptions(reg, graygrpc.WithResolver(resolver.WithServiceConfig(`{"methodConfig":[{"name":[{}],
		"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`)))
	conn := dial(t, "gray:///order", append(opts, replacing("tenant", "acme")...)...)
	ctx, cancel := context.WithTimeout(graytag.NewContext(context.Background(), tag), 20*time.Second)
	defer cancel()
	for range 10 {
		require.NoError(t, callUnary(ctx, conn))
	}
	assert.EqualValues(t, 30, calls.Load())
	assert.Empty(t, stable.seen())
	for _, n := range gray {
		visits := n.seen()
		assert.NotEmpty(t, visits)
		for _, v := range visits {
			assert.Equal(t, tag.String(), v.tag)
			assert.Equal(t, []string{tag.String()}, v.md.Get("x-gray-tag"))
			assert.Equal(t, []string{"acme"}, v.md.Get("tenant"))
		}
	}
}
