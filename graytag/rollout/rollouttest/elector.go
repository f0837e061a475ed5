package rollouttest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
)

// within bounds how long a failing test takes, nothing else.
const within = 30 * time.Second

// wrong is how long a candidate is given to lead where it must not.
const wrong = 50 * time.Millisecond

// Elector tests electors. open is called once for each subtest and returns what
// makes the electors of one group: of all that it makes, one leads at a time. The
// ids are for Leader; an elector that several candidates share has the id of the
// first call.
func Elector(t *testing.T, open func(t *testing.T) (elector func(id string) rollout.Elector)) {
	t.Helper()
	for _, c := range electorTests {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

type group = func(id string) rollout.Elector

// reporter is as much of testing.T as the suite uses.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
	Context() context.Context
}

var electorTests = []struct {
	name string
	test func(reporter, group)
}{
	{"OneAtATime", oneAtATime},
	{"HandsOver", handsOver},
	{"EndsWithItsFunction", endsWithItsFunction},
	{"WaitingEndsWithItsContext", waitingEnds},
	{"EndedContext", endedContext},
	{"ReleasesAfterItsFunction", releasesAfter},
	{"Panic", panics},
	{"Leader", leader},
}

func fatalf(t reporter, format string, args ...any) {
	t.Helper()
	t.Errorf(format, args...)
	t.FailNow()
}

// candidate runs Lead in a goroutine of its own.
type candidate struct {
	cancel context.CancelFunc
	led    chan struct{} // closed when fn runs
	done   chan error    // holds what Lead returned
}

// start lets a candidate lead until its context ends.
func start(ctx context.Context, e rollout.Elector) *candidate {
	ctx, cancel := context.WithCancel(ctx)
	c := &candidate{cancel: cancel, led: make(chan struct{}), done: make(chan error, 1)}
	var once sync.Once
	go func() {
		c.done <- e.Lead(ctx, func(ctx context.Context) error {
			once.Do(func() { close(c.led) })
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	return c
}

func await[T any](t reporter, c <-chan T, what string) T {
	t.Helper()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		fatalf(t, "not within %v: %s", within, what)
		var none T
		return none
	}
}

func (c *candidate) end(t reporter) {
	t.Helper()
	c.cancel()
	if err := await(t, c.done, "the end of Lead"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lead returned %v when its context ended: expected the error of the context", err)
	}
}

// oneAtATime lets five candidates lead by turns.
func oneAtATime(t reporter, g group) {
	const candidates, turns = 5, 3
	var leading, most atomic.Int32
	var all sync.WaitGroup
	errs := make(chan error, candidates*turns)
	for n := range candidates {
		e := g(string(rune('a' + n)))
		all.Go(func() {
			for range turns {
				errs <- e.Lead(t.Context(), func(ctx context.Context) error {
					if n := leading.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer leading.Add(-1)
					timer := time.NewTimer(time.Millisecond)
					defer timer.Stop()
					select {
					case <-timer.C:
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
			}
		})
	}
	done := make(chan struct{})
	go func() {
		all.Wait()
		close(done)
	}()
	await(t, done, "all candidates had their turns")
	for range candidates * turns {
		if err := <-errs; err != nil {
			t.Errorf("Lead returned %v where its function returned nil", err)
		}
	}
	if n := most.Load(); n != 1 {
		t.Errorf("%d led at the same time", n)
	}
}

func handsOver(t reporter, g group) {
	first := start(t.Context(), g("a"))
	await(t, first.led, "the first leader")
	second := start(t.Context(), g("b"))
	first.end(t)
	await(t, second.led, "the second leader")
	second.end(t)
}

func endsWithItsFunction(t reporter, g group) {
	e := g("a")
	mine := errors.New("mine")
	if err := e.Lead(t.Context(), func(context.Context) error { return mine }); !errors.Is(err, mine) {
		t.Errorf("Lead returned %v where its function returned %v", err, mine)
	}
	if err := e.Lead(t.Context(), func(context.Context) error { return nil }); err != nil {
		t.Errorf("Lead returned %v where its function returned nil", err)
	}
}

func waitingEnds(t reporter, g group) {
	first := start(t.Context(), g("a"))
	await(t, first.led, "the first leader")
	second := start(t.Context(), g("b"))
	timer := time.NewTimer(wrong)
	defer timer.Stop()
	select {
	case <-second.led:
		t.Errorf("a candidate led beside the leader")
	case <-timer.C:
	}
	second.end(t)
	first.end(t)
}

func endedContext(t reporter, g group) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := g("a").Lead(ctx, func(context.Context) error {
		t.Errorf("a candidate leads whose context has ended")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Lead returned %v: expected the error of the context", err)
	}
}

// releasesAfter: a leader that is still at work when its context ends keeps the
// others out until it has finished.
func releasesAfter(t reporter, g group) {
	ctx, cancel := context.WithCancel(t.Context())
	var finished atomic.Bool
	led, finish, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	e := g("a")
	go func() {
		done <- e.Lead(ctx, func(ctx context.Context) error {
			close(led)
			<-ctx.Done()
			<-finish
			finished.Store(true)
			return nil
		})
	}()
	await(t, led, "the first leader")
	early := make(chan bool, 1)
	second := make(chan error, 1)
	e2 := g("b")
	go func() {
		second <- e2.Lead(t.Context(), func(context.Context) error {
			early <- !finished.Load()
			return nil
		})
	}()
	cancel()
	timer := time.NewTimer(wrong)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-early:
		early <- true
	}
	close(finish)
	if err := await(t, done, "the end of the first Lead"); !errors.Is(err, context.Canceled) {
		t.Errorf("Lead returned %v when its context ended: expected the error of the context", err)
	}
	if err := await(t, second, "the end of the second Lead"); err != nil {
		t.Errorf("the second Lead returned %v", err)
	}
	if <-early {
		t.Errorf("another one led before the first had finished")
	}
}

// panics: a panic of the function goes through, and leadership is given up.
func panics(t reporter, g group) {
	e := g("a")
	func() {
		defer func() {
			if recover() == nil {
				t.Errorf("the panic of the function did not go through")
			}
		}()
		_ = e.Lead(t.Context(), func(context.Context) error { panic("a test") })
	}()
	next := start(t.Context(), g("b"))
	await(t, next.led, "the leader after one that panicked")
	next.end(t)
}

func leader(t reporter, g group) {
	e := g("a")
	who := func() rollout.Leader {
		t.Helper()
		l, err := e.Leader(t.Context())
		if err != nil {
			fatalf(t, "Leader: %v", err)
		}
		return l
	}
	if l := who(); l != (rollout.Leader{}) {
		t.Errorf("Leader returned %+v where nobody leads", l)
	}
	c := start(t.Context(), e)
	await(t, c.led, "a leader")
	if l := who(); l.ID != "a" || l.Host == "" || l.Since.IsZero() {
		t.Errorf("Leader returned %+v: expected id, host and since of the leader", l)
	}
	c.end(t)
	if l := who(); l != (rollout.Leader{}) {
		t.Errorf("Leader returned %+v after the leader has gone", l)
	}
}
