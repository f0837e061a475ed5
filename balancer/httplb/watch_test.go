package httplb_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry"
)

// counted counts the watches of a Discovery.
type counted struct {
	registry.Discovery
	started, open atomic.Int32
}

func (c *counted) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		c.started.Add(1)
		c.open.Add(1)
		defer c.open.Add(-1)
		c.Discovery.Watch(ctx, service)(yield)
	}
}

// scripted yields what is sent to it.
type scripted struct {
	answers chan answer
}

type answer struct {
	set []registry.Instance
	err error
}

func (s scripted) Watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case a, ok := <-s.answers:
				if !ok || !yield(a.set, a.err) {
					return
				}
			}
		}
	}
}

func TestC3_UnavailableAtOnceThenFoundWhenItRegisters(t *testing.T) {
	c := newCluster(t)
	lb := c.balancer()
	ctx, cancel := context.WithTimeout(tagged("version=v2"), 200*time.Millisecond)
	defer cancel()
	_, err := get(ctx, lb, "http://inventory/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	assert.Equal(t, "inventory", unavailable.Service)
	assert.Equal(t, "v2", unavailable.Wanted)
	assert.Empty(t, unavailable.Have)
	require.NoError(t, ctx.Err())

	c.up("inventory", "g1", "v2")
	require.Eventually(t, func() bool {
		id, err := get(tagged("version=v2"), lb, "http://inventory/")
		return err == nil && id == "g1"
	}, 5*time.Second, time.Millisecond)
}

func TestTheFirstRequestWaitsForTheFirstAnswer(t *testing.T) {
	c := newCluster(t)
	disc := scripted{answers: make(chan answer)}
	lb := newBalancer(t, disc)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := get(ctx, lb, "http://inventory/")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `"inventory"`)
	client := &http.Client{Transport: lb, Timeout: 10 * time.Millisecond}
	_, err = client.Get("http://inventory/")
	var timeout interface{ Timeout() bool }
	require.ErrorAs(t, err, &timeout)
	assert.True(t, timeout.Timeout())

	got := make(chan error, 10)
	for range cap(got) {
		go func() {
			_, err := get(context.Background(), lb, "http://inventory/")
			got <- err
		}()
	}
	address := ""
	{
		r := c.up("inventory", "s1", "")
		defer func() { _ = r.Deregister(context.Background()) }()
		for set := range c.reg.Watch(context.Background(), "inventory") {
			address = set[0].Address
			break
		}
	}
	disc.answers <- answer{set: []registry.Instance{instance("inventory", "s1", "", address)}}
	for range cap(got) {
		require.NoError(t, <-got)
	}
}

func TestADiscoveryThatFailsIsTheCause(t *testing.T) {
	c := newCluster(t)
	disc := scripted{answers: make(chan answer)}
	lb := newBalancer(t, disc)
	down := errors.New("consul: connection refused")
	go func() { disc.answers <- answer{err: down} }()
	_, err := get(context.Background(), lb, "http://inventory/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	require.ErrorIs(t, err, down)
	assert.ErrorContains(t, err, "consul")

	c.up("inventory", "s1", "")
	var set []registry.Instance
	for s := range c.reg.Watch(context.Background(), "inventory") {
		set = s
		break
	}
	disc.answers <- answer{set: set}
	require.Eventually(t, func() bool { _, err := get(context.Background(), lb, "http://inventory/"); return err == nil }, 5*time.Second, time.Millisecond)
	disc.answers <- answer{err: down}
	disc.answers <- answer{err: down}
	id, err := get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err, "the last good set serves")
	assert.Equal(t, "s1", id)

	disc.answers <- answer{set: []registry.Instance{}}
	require.Eventually(t, func() bool {
		_, err := get(context.Background(), lb, "http://inventory/")
		return errors.As(err, &unavailable) && !errors.Is(err, down)
	}, 5*time.Second, time.Millisecond, "a true empty answer is applied")
}

func TestADiscoveryThatEndsItsWatchIsAskedAgain(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	var calls atomic.Int32
	disc := watchFunc(func(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
		if calls.Add(1) == 1 {
			return func(func([]registry.Instance, error) bool) {}
		}
		return c.reg.Watch(ctx, service)
	})
	lb := newBalancer(t, disc)
	require.Eventually(t, func() bool { _, err := get(context.Background(), lb, "http://inventory/"); return err == nil }, 5*time.Second, 10*time.Millisecond)
	assert.EqualValues(t, 2, calls.Load())
}

type watchFunc func(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error]

func (f watchFunc) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return f(ctx, service)
}

func TestB3_VersionChanges(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	r := c.up("inventory", "g1", "v2")
	lb := c.balancer()
	route := func(tag string) string {
		id, err := get(tagged(tag), lb, "http://inventory/")
		require.NoError(t, err)
		return id
	}
	require.Equal(t, "g1", route("version=v2"))
	require.NoError(t, r.Update(context.Background(), map[string]string{"version": "v3"}))
	require.Eventually(t, func() bool { return route("version=v3") == "g1" }, time.Second, time.Millisecond)
	for range 20 {
		assert.Equal(t, "s1", route("version=v2"))
	}
	require.NoError(t, r.Update(context.Background(), nil))
	require.Eventually(t, func() bool { return route("") == "g1" }, time.Second, time.Millisecond)
}

func TestB6_UntaggedNeverReachesGray(t *testing.T) {
	c := newCluster(t)
	s1 := c.up("order", "s1", "")
	c.up("order", "g1", "v2.1.0")
	c.up("order", "b1", "v3.0.0")
	lb := c.balancer()
	for range 1000 {
		id, err := get(tagged(""), lb, "http://order/")
		require.NoError(t, err)
		require.Equal(t, "s1", id)
	}
	for range 1000 {
		id, err := get(tagged("version=v9"), lb, "http://order/")
		require.NoError(t, err)
		require.Equal(t, "s1", id)
	}
	require.NoError(t, s1.Deregister(context.Background()))
	require.Eventually(t, func() bool { _, err := get(tagged(""), lb, "http://order/"); return err != nil }, time.Second, time.Millisecond)
	for range 100 {
		_, err := get(tagged(""), lb, "http://order/")
		var unavailable *subset.UnavailableError
		require.ErrorAs(t, err, &unavailable)
		assert.Equal(t, map[string]int{"v2.1.0": 1, "v3.0.0": 1}, unavailable.Have)
	}
	assert.Zero(t, c.hit("g1")+c.hit("b1"))
}

func TestC9_WarningAndMaintenance(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	c.up("inventory", "g1", "v2")
	ctx := tagged("version=v2")
	for status, want := range map[registry.Status][2]string{
		registry.StatusPassing:     {"g1", "g1"},
		registry.StatusWarning:     {"s1", "g1"},
		registry.StatusCritical:    {"s1", "s1"},
		registry.StatusMaintenance: {"s1", "s1"},
	} {
		require.NoError(t, c.reg.SetStatus("g1", status))
		var seen decisions
		for i, opts := range [][]httplb.Option{{seen.option()}, {httplb.WithWarning()}} {
			id, err := get(ctx, c.balancer(opts...), "http://inventory/")
			require.NoError(t, err)
			assert.Equal(t, want[i], id, "%v, %d", status, i)
		}
		if status != registry.StatusPassing {
			assert.Equal(t, subset.Unhealthy, seen.last(t).Reason, "registered, so not missing")
		}
	}
}

func TestOfTwoInstancesWithOneAddressTheNewestCounts(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	address := closedPort(t)
	listenAt(t, address, c.serve("g"))
	c.register(instance("inventory", "z-old", "v2", address))
	c.register(instance("inventory", "a-new", "v3", address))
	var seen decisions
	lb := c.balancer(seen.option())
	id, err := get(tagged("version=v3"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "g", id)
	assert.Equal(t, "a-new", seen.last(t).Instance.ID)
	id, err = get(tagged("version=v2"), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "s1", id)
}

func TestOneWatchPerServiceAndItsEnd(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	disc := &counted{Discovery: c.reg}
	lb := newBalancer(t, disc, httplb.WithIdleTimeout(50*time.Millisecond))
	assert.Zero(t, disc.started.Load(), "nothing before the first request")
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			_, err := get(context.Background(), lb, "http://inventory/")
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.EqualValues(t, 1, disc.started.Load())
	require.Eventually(t, func() bool { return disc.open.Load() == 0 }, 5*time.Second, time.Millisecond, "idle")
	_, err := get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err)
	require.NoError(t, lb.Close())
	assert.Zero(t, disc.open.Load(), "Close waits for the end of the watches")
	_, err = get(context.Background(), lb, "http://inventory/")
	require.ErrorIs(t, err, httplb.ErrClosed)
	require.NoError(t, lb.Close())
}

func TestWatchesAreBounded(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	disc := &counted{Discovery: c.reg}
	lb := newBalancer(t, disc)
	_, err := get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err)
	for i := range 2000 {
		_, err := get(context.Background(), lb, fmt.Sprintf("http://host%d/", i))
		require.Error(t, err)
	}
	require.Eventually(t, func() bool { return disc.open.Load() <= 1+64 }, 5*time.Second, time.Millisecond)
	before := disc.started.Load()
	_, err = get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, before, disc.started.Load(), "a service with instances outlives names that nobody registered")
}

// Services that nothing was heard of yet do not give way to each other: their
// requests would ask anew, and push the next out.
func TestManyServicesMayStartAtOnce(t *testing.T) {
	c := newCluster(t)
	for i := range 300 {
		c.register(instance(fmt.Sprint("service", i), fmt.Sprint("s", i), "", "127.0.0.1:1"))
	}
	answer := make(chan struct{})
	disc := &counted{Discovery: watchFunc(func(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
		return func(yield func([]registry.Instance, error) bool) {
			select {
			case <-answer:
			case <-ctx.Done():
				return
			}
			c.reg.Watch(ctx, service)(yield)
		}
	})}
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	lb := newBalancer(t, disc, httplb.WithBase(base))
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			_, err := get(context.Background(), lb, fmt.Sprintf("http://service%d/", i))
			assert.NoError(t, err)
		})
	}
	require.Eventually(t, func() bool { return disc.started.Load() == 300 }, 5*time.Second, time.Millisecond)
	close(answer)
	wg.Wait()
	assert.EqualValues(t, 300, disc.started.Load(), "each is watched once")
	assert.EqualValues(t, 300, disc.open.Load())
}

func TestCloseLetsWaitersGo(t *testing.T) {
	lb, err := httplb.New(scripted{answers: make(chan answer)}, httplb.WithLogger(quiet))
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() {
		_, err := get(context.Background(), lb, "http://inventory/")
		got <- err
	}()
	require.NoError(t, lb.Close())
	require.ErrorIs(t, <-got, httplb.ErrClosed)
}

func TestChangesUnderLoadFailNoRequest(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	c.up("inventory", "g1", "v2")
	g2 := c.up("inventory", "g2", "v2")
	flaky := c.down("inventory", "g3", "v2")
	lb := c.balancer(httplb.WithCoolOff(time.Millisecond, time.Millisecond))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				id, err := get(tagged("version=v2"), lb, "http://inventory/")
				assert.NoError(t, err)
				assert.NotEqual(t, "s1", id)
			}
		})
	}
	for i := range 100 {
		version := "v2"
		if i%2 == 0 {
			version = "v3"
		}
		assert.NoError(t, g2.Update(context.Background(), map[string]string{"version": version}))
		c.register(instance("inventory", "g3", "v2", flaky))
	}
	close(stop)
	wg.Wait()
}
