package rollouttest

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a reporter that fails nobody.
type recorder struct {
	ctx    context.Context
	mu     sync.Mutex // guards faults: leaders report from their own goroutines
	faults []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) FailNow()                 { runtime.Goexit() }
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// failing returns which tests an elector fails.
func failing(t *testing.T, open func() group) (names []string) {
	for _, c := range electorTests {
		ctx, cancel := context.WithCancel(t.Context())
		r := &recorder{ctx: ctx}
		done := make(chan struct{})
		go func() { // FailNow ends this goroutine
			defer close(done)
			c.test(r, open())
		}()
		<-done
		cancel()
		r.mu.Lock()
		if len(r.faults) > 0 {
			names = append(names, c.name)
		}
		r.mu.Unlock()
	}
	return names
}

func TestFailing_None(t *testing.T) {
	assert.Empty(t, failing(t, func() group {
		e := rollout.NewLocalElector("a")
		return func(string) rollout.Elector { return e }
	}))
}

// everybody leads at once.
type everybody struct{}

func (everybody) Lead(ctx context.Context, fn func(context.Context) error) error { return fn(ctx) }

func (everybody) Leader(context.Context) (rollout.Leader, error) { return rollout.Leader{}, nil }

func TestFailing_Everybody(t *testing.T) {
	assert.Equal(t, []string{"OneAtATime", "WaitingEndsWithItsContext", "EndedContext", "ReleasesAfterItsFunction", "Leader"},
		failing(t, func() group { return func(string) rollout.Elector { return everybody{} } }))
}

// silent swallows errors, and hands over while the leader is still at work.
type silent struct{ *rollout.LocalElector }

func (e silent) Lead(ctx context.Context, fn func(context.Context) error) error {
	done := make(chan struct{})
	_ = e.LocalElector.Lead(ctx, func(ctx context.Context) error {
		go func() {
			defer close(done)
			defer func() { _ = recover() }()
			_ = fn(ctx)
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
		return nil
	})
	return nil
}

func TestFailing_Silent(t *testing.T) {
	assert.Equal(t, []string{"HandsOver", "EndsWithItsFunction", "WaitingEndsWithItsContext", "EndedContext", "ReleasesAfterItsFunction", "Panic", "Leader"},
		failing(t, func() group {
			e := silent{rollout.NewLocalElector("a")}
			return func(string) rollout.Elector { return e }
		}))
}
