package registrytest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorder is a reporter that fails nobody.
type recorder struct {
	mu     sync.Mutex
	faults []string
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

func (r *recorder) FailNow() { runtime.Goexit() }

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.faults) > 0
}

// failing returns which of the tests, or of all where none is named, a registry
// fails.
func failing(open func() Registry, only ...string) []string {
	c := newConfig([]Option{WithTimeout(200 * time.Millisecond), nil})
	var names []string
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, test := range tests {
		if len(only) > 0 && !slices.Contains(only, test.name) {
			continue
		}
		wg.Go(func() {
			rec := &recorder{}
			done := make(chan struct{})
			go func() { // FailNow ends this goroutine
				defer close(done)
				s := newSuite(rec, open(), c)
				defer s.cleanUp()
				test.run(s)
			}()
			<-done
			if rec.Failed() {
				mu.Lock()
				defer mu.Unlock()
				names = append(names, test.name)
			}
		})
	}
	wg.Wait()
	slices.Sort(names)
	return names
}

// broken is the memory registry with one fault built in.
type broken struct {
	*memory.Registry
	register   func(context.Context, registry.Instance) (registry.Registration, error)
	wrap       func(registry.Registration) registry.Registration
	watch      func(context.Context, string) iter.Seq2[[]registry.Instance, error]
	transform  func([]registry.Instance) []registry.Instance
	repeat     bool
	skipFirst  bool
	ignoresCtx bool
}

func (b *broken) Register(ctx context.Context, i registry.Instance) (registry.Registration, error) {
	if b.register != nil {
		return b.register(ctx, i)
	}
	g, err := b.Registry.Register(ctx, i)
	if err == nil && b.wrap != nil {
		g = b.wrap(g)
	}
	return g, err
}

func (b *broken) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	if b.watch != nil {
		return b.watch(ctx, service)
	}
	return func(yield func([]registry.Instance, error) bool) {
		first := true
		for set, err := range b.Registry.Watch(ctx, service) {
			if b.transform != nil {
				set = b.transform(set)
			}
			if first && b.skipFirst {
				first = false
				continue
			}
			first = false
			if !yield(set, err) || (b.repeat && !yield(set, err)) {
				return
			}
		}
		if b.ignoresCtx {
			yield(nil, errors.New("late"))
		}
	}
}

// merging updates only the keys that are given.
type merging struct {
	registry.Registration
	have map[string]string
}

func (m *merging) Update(ctx context.Context, metadata map[string]string) error {
	for k, v := range metadata {
		m.have[k] = v
	}
	return m.Registration.Update(ctx, m.have)
}

// once refuses a second Deregister.
type once struct {
	registry.Registration
	done bool
}

func (o *once) Deregister(ctx context.Context) error {
	if o.done {
		return errors.New("unknown instance")
	}
	o.done = true
	return o.Registration.Deregister(ctx)
}

// forgiving ignores the errors of Update.
type forgiving struct{ registry.Registration }

func (f forgiving) Update(ctx context.Context, m map[string]string) error {
	_ = f.Registration.Update(ctx, m)
	return nil
}

// staying never removes.
type staying struct{ registry.Registration }

func (staying) Deregister(context.Context) error { return nil }

// queue yields every set there ever was, however slow the reader is.
type queue struct {
	inner registry.Discovery

	mu      sync.Mutex
	sets    [][]registry.Instance
	changed chan struct{}
}

func (q *queue) note(service string) {
	for set := range q.inner.Watch(context.Background(), service) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.sets = append(q.sets, set)
		close(q.changed)
		q.changed = make(chan struct{})
		return
	}
}

func (q *queue) watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		for n := 0; ctx.Err() == nil; {
			q.mu.Lock()
			sets, changed := q.sets, q.changed
			q.mu.Unlock()
			if n < len(sets) {
				n++
				if !yield(sets[n-1], nil) {
					return
				}
				continue
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}
}

type queued struct {
	registry.Registration
	q       *queue
	service string
}

func (g queued) Update(ctx context.Context, m map[string]string) error {
	err := g.Registration.Update(ctx, m)
	g.q.note(g.service)
	return err
}

func TestSound(t *testing.T) {
	assert.Empty(t, failing(func() Registry { return memory.New() }))
}

// Each fault is found by the test that is about it.
func TestFaultsAreFound(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(*broken)
		found string
	}{
		"not sorted": {func(b *broken) {
			b.transform = func(set []registry.Instance) []registry.Instance {
				set = slices.Clone(set)
				slices.Reverse(set)
				return set
			}
		}, "Watch/sorted_by_ID"},
		"only passing": {func(b *broken) {
			b.transform = func(set []registry.Instance) []registry.Instance {
				return slices.DeleteFunc(slices.Clone(set), func(i registry.Instance) bool { return i.Status != registry.StatusPassing })
			}
		}, "Register/keeps_status"},
		"a set twice":       {func(b *broken) { b.repeat = true }, "Watch/no_equal_content_twice"},
		"no first set":      {func(b *broken) { b.skipFirst = true }, "Watch/empty_set_first"},
		"yields at the end": {func(b *broken) { b.ignoresCtx = true }, "Watch/context_ends"},
		"merging updates": {func(b *broken) {
			b.wrap = func(g registry.Registration) registry.Registration {
				return &merging{g, map[string]string{}}
			}
		}, "Update/replaces_as_a_whole"},
		"second deregistration fails": {func(b *broken) {
			b.wrap = func(g registry.Registration) registry.Registration { return &once{Registration: g} }
		}, "Deregister/removes"},
		"update never fails": {func(b *broken) {
			b.wrap = func(g registry.Registration) registry.Registration { return forgiving{g} }
		}, "Update/error_keeps_metadata"},
		"never removes": {func(b *broken) {
			b.wrap = func(g registry.Registration) registry.Registration { return staying{g} }
		}, "Deregister/removes"},
		"takes anything": {func(b *broken) {
			b.register = func(ctx context.Context, i registry.Instance) (registry.Registration, error) {
				if g, err := b.Registry.Register(ctx, i); err == nil {
					return g, nil
				}
				return staying{}, nil
			}
		}, "Register/refuses_invalid"},
		"loses metadata": {func(b *broken) {
			b.register = func(ctx context.Context, i registry.Instance) (registry.Registration, error) {
				i.Metadata = nil
				return b.Registry.Register(ctx, i)
			}
		}, "Register/makes_known"},
		"ignores the service": {func(b *broken) {
			b.watch = func(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
				return b.Registry.Watch(ctx, "everything")
			}
			b.register = func(ctx context.Context, i registry.Instance) (registry.Registration, error) {
				i.Service = "everything"
				return b.Registry.Register(ctx, i)
			}
		}, "Watch/only_its_service"},
		"queues every change": {func(b *broken) {
			q := &queue{inner: b.Registry, changed: make(chan struct{})}
			b.watch = q.watch
			b.register = func(ctx context.Context, i registry.Instance) (registry.Registration, error) {
				g, err := b.Registry.Register(ctx, i)
				q.note(i.Service)
				return queued{g, q, i.Service}, err
			}
		}, "Watch/conflated_for_slow_readers"},
		"changes a snapshot": {func(b *broken) {
			b.watch = func(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
				return func(yield func([]registry.Instance, error) bool) {
					same := make([]registry.Instance, 0, 10)
					for set := range b.Registry.Watch(ctx, service) {
						same = append(same[:0], set...)
						if !yield(same, nil) {
							return
						}
					}
				}
			}
		}, "Watch/snapshots_stay"},
		"no order of registrations": {func(b *broken) {
			b.transform = func(set []registry.Instance) []registry.Instance {
				set = slices.Clone(set)
				for n := range set {
					set[n].Seq = 7
				}
				return set
			}
		}, "Register/same_address_newest_by_Seq"},
	} {
		t.Run(name, func(t *testing.T) {
			found := failing(func() Registry {
				b := &broken{Registry: memory.New()}
				test.spoil(b)
				return b
			}, test.found)
			assert.Equal(t, []string{test.found}, found)
		})
	}
}

// Run itself, with its options.
func TestRun(t *testing.T) {
	ran := 0
	Run(t, func(*testing.T) Registry { ran++; return memory.New() }, WithPassingOnly(), WithTimeout(-1))
	assert.Equal(t, len(tests)-1, ran)
}
