package registry_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
	"github.com/graylane/graylane/registry/registrytest"
)

const patience = 10 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a Discovery that yields what the test says, and counts its watches.
type upstream struct {
	mu      sync.Mutex
	open    map[string]int
	started map[string]int
	feeds   map[string]chan yielded
}

type yielded struct {
	set []registry.Instance
	err error
	end bool
	// taken is closed when the loop around the watch asks for the next one.
	taken chan struct{}
}

func newUpstream() *upstream {
	return &upstream{open: map[string]int{}, started: map[string]int{}, feeds: map[string]chan yielded{}}
}

func (u *upstream) feed(service string) chan yielded {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.feeds[service] == nil {
		u.feeds[service] = make(chan yielded)
	}
	return u.feeds[service]
}

func (u *upstream) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		feed := u.feed(service)
		u.mu.Lock()
		u.open[service]++
		u.started[service]++
		u.mu.Unlock()
		defer func() {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.open[service]--
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case y := <-feed:
				if y.end {
					close(y.taken)
					return
				}
				if !yield(y.set, y.err) {
					return
				}
				close(y.taken)
			}
		}
	}
}

// send makes the upstream yield and returns when that has happened.
func (u *upstream) send(service string, y yielded) {
	y.taken = make(chan struct{})
	u.feed(service) <- y
	<-y.taken
}

func (u *upstream) counts(service string) (open, started int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.open[service], u.started[service]
}

func set(version string) []registry.Instance {
	return []registry.Instance{{ID: "a", Service: "s", Address: "h:1", Metadata: map[string]string{"version": version}}}
}

// pull starts a watch whose turns the test takes one by one.
func pull(t *testing.T, d registry.Discovery, service string) (next func() ([]registry.Instance, error, bool), stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	next, stopPull := iter.Pull2(d.Watch(ctx, service))
	stop = sync.OnceFunc(func() {
		stopPull()
		cancel()
	})
	t.Cleanup(stop)
	return next, stop
}

// begin starts a reader in the background and returns when the upstream is watched.
func begin(t *testing.T, u *upstream, d registry.Discovery, service string) (events func() []string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var mu sync.Mutex
	var got []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for s, err := range d.Watch(ctx, service) {
			mu.Lock()
			got = append(got, show(s, err))
			mu.Unlock()
		}
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { open, _ := u.counts(service); return open == 1 }, patience, time.Millisecond)
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), got...)
	}, stop
}

func show(s []registry.Instance, err error) string {
	if err != nil {
		return fmt.Sprint("error ", err)
	}
	if len(s) == 0 {
		return "empty"
	}
	return s[0].Metadata["version"]
}

func TestShare_Conformance(t *testing.T) {
	registrytest.Run(t, func(*testing.T) registrytest.Registry {
		m := memory.New()
		return struct {
			registry.Registrar
			registry.Discovery
		}{m, registry.Share(m)}
	})
}

func TestShare_OneUpstreamWatchPerService(t *testing.T) {
	u := newUpstream()
	d := registry.Share(u)
	assert.Equal(t, d, registry.Share(d), "sharing twice is sharing once")

	_, stop := begin(t, u, d, "s")
	_, stopOther := begin(t, u, d, "other")
	u.send("s", yielded{set: set("v1")})
	stops := []func(){stop}
	for range 20 {
		next, stop := pull(t, d, "s")
		got, err, ok := next()
		require.True(t, ok)
		assert.Equal(t, "v1", show(got, err), "who joins gets the last good set at once")
		stops = append(stops, stop)
	}
	open, started := u.counts("s")
	assert.Equal(t, []int{1, 1}, []int{open, started})

	// It ends with its last reader, whichever that is, and not before.
	for _, stop := range stops[:len(stops)-1] {
		stop()
		open, _ := u.counts("s")
		require.Equal(t, 1, open)
	}
	stops[len(stops)-1]()
	open, _ = u.counts("s")
	assert.Equal(t, 0, open)
	open, _ = u.counts("other")
	assert.Equal(t, 1, open)
	stopOther()

	// A later reader begins anew, and gets nothing from before.
	events, _ := begin(t, u, d, "s")
	_, started = u.counts("s")
	assert.Equal(t, 2, started)
	u.send("s", yielded{set: set("v2")})
	require.Eventually(t, func() bool { return len(events()) == 1 }, patience, time.Millisecond)
	assert.Equal(t, []string{"v2"}, events())
}

func TestShare_Errors(t *testing.T) {
	u := newUpstream()
	d := registry.Share(u)
	events, _ := begin(t, u, d, "s")
	seen := func(n int) { // else the next one may come instead of it
		t.Helper()
		require.Eventually(t, func() bool { return len(events()) == n }, patience, time.Millisecond)
	}
	u.send("s", yielded{err: errors.New("one")})
	seen(1)

	// No set yet: who joins gets the last error.
	next, _ := pull(t, d, "s")
	got, err, _ := next()
	assert.Nil(t, got)
	assert.EqualError(t, err, "one")

	u.send("s", yielded{set: set("v1")})
	seen(2)
	got, err, _ = next()
	assert.Equal(t, "v1", show(got, err))
	u.send("s", yielded{err: errors.New("two")})
	seen(3)
	got, err, _ = next()
	assert.Nil(t, got)
	assert.EqualError(t, err, "two")

	// There is a set: who joins gets that, and not the error from before its time.
	late, _ := pull(t, d, "s")
	got, err, _ = late()
	assert.Equal(t, "v1", show(got, err))
	u.send("s", yielded{err: errors.New("three")})
	_, err, _ = late()
	assert.EqualError(t, err, "three")

	seen(4)
	assert.Equal(t, []string{"error one", "v1", "error two", "error three"}, events())
}

func TestShare_SlowReaders(t *testing.T) {
	u := newUpstream()
	d := registry.Share(u)
	begin(t, u, d, "s")
	u.send("s", yielded{set: set("v1")})
	next, _ := pull(t, d, "s") // reads nothing while the test does not ask
	got, err, _ := next()
	require.Equal(t, "v1", show(got, err))

	// The upstream is not held up, and the reader goes on with the newest.
	for n := 2; n <= 50; n++ {
		u.send("s", yielded{set: set(fmt.Sprint("v", n))})
	}
	got, err, _ = next()
	assert.Equal(t, "v50", show(got, err))

	// An error that something good came after is over.
	u.send("s", yielded{err: errors.New("over")})
	u.send("s", yielded{set: set("v51")})
	got, err, _ = next()
	assert.Equal(t, "v51", show(got, err))

	// A set and a newer error: both.
	u.send("s", yielded{set: set("v52")})
	u.send("s", yielded{err: errors.New("new")})
	got, err, _ = next()
	assert.Equal(t, "v52", show(got, err))
	_, err, _ = next()
	assert.EqualError(t, err, "new")

	// There and back while nobody looked is no change.
	u.send("s", yielded{set: set("v53")})
	u.send("s", yielded{set: set("v52")})
	u.send("s", yielded{err: errors.New("mark")})
	_, err, _ = next()
	assert.EqualError(t, err, "mark")
}

// An upstream watch that ends by itself ends the loops, after its last set.
func TestShare_UpstreamEnds(t *testing.T) {
	u := newUpstream()
	d := registry.Share(u)
	begin(t, u, d, "s")
	u.send("s", yielded{set: set("v1")})
	next, _ := pull(t, d, "s")
	_, _, ok := next()
	require.True(t, ok)
	u.send("s", yielded{set: set("v2")})
	u.send("s", yielded{end: true})
	require.Eventually(t, func() bool { open, _ := u.counts("s"); return open == 0 }, patience, time.Millisecond)
	got, err, ok := next()
	require.True(t, ok)
	assert.Equal(t, "v2", show(got, err))
	_, _, ok = next()
	assert.False(t, ok)

	// Who comes once it is over begins anew.
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		for range d.Watch(ctx, "s") {
			continue
		}
		_, started := u.counts("s")
		return started > 1
	}, patience, 5*time.Millisecond)
}

// Readers that come and go at any moment leave nothing behind: goleak looks.
func TestShare_ComeAndGo(t *testing.T) {
	m := memory.New()
	_, err := m.Register(context.Background(), registry.Instance{ID: "a", Service: "s", Address: "h:1"})
	require.NoError(t, err)
	d := registry.Share(m)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				for got, err := range d.Watch(context.Background(), "s") {
					if err != nil || len(got) != 1 {
						t.Errorf("%v, %v", got, err)
					}
					break
				}
			}
		})
	}
	wg.Wait()
}
