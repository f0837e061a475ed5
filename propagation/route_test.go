package propagation_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/propagation"
)

// Traces that nobody has ended, and nobody can read any more, end.
func TestForgottenTracesEnd(t *testing.T) {
	var all []context.Context // which live on
	for range 100 {
		ctx, _ := propagation.TraceRoute(context.Background())
		all = append(all, ctx)
	}
	assert.Eventually(t, func() bool {
		runtime.GC()
		return !hops.Live()
	}, 10*time.Second, 10*time.Millisecond)
	runtime.KeepAlive(all)
}
