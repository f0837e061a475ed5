package ruletest

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/graytag/rule"
)

// recorder is a reporter that fails nobody.
type recorder struct {
	ctx    context.Context
	mu     sync.Mutex // guards faults: watchers report from their own goroutines
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

// failing returns which tests a store fails.
func failing(t *testing.T, open func() Harness) (names []string) {
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, c := range tests {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := &recorder{ctx: ctx}
			done := make(chan struct{})
			go func() { // FailNow ends this goroutine
				defer close(done)
				h := open()
				h.Within = time.Second
				c.test(newSuite(r, h))
			}()
			<-done
			r.mu.Lock()
			defer r.mu.Unlock()
			if len(r.faults) > 0 {
				mu.Lock()
				defer mu.Unlock()
				names = append(names, c.name)
			}
		})
	}
	all.Wait()
	slices.Sort(names)
	return names
}

// broken is the memory store with one fault built in.
type broken struct {
	*rule.MemoryStore
	put     func(s *rule.MemoryStore, ctx context.Context, d rule.Document, at uint64) (uint64, error)
	watch   func(s *rule.MemoryStore, ctx context.Context) iter.Seq2[rule.Document, error]
	history func(list []rule.Document) []rule.Document
}

func (b *broken) Put(ctx context.Context, d rule.Document, at uint64) (uint64, error) {
	if b.put != nil {
		return b.put(b.MemoryStore, ctx, d, at)
	}
	return b.MemoryStore.Put(ctx, d, at)
}

func (b *broken) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	if b.watch != nil {
		return b.watch(b.MemoryStore, ctx)
	}
	return b.MemoryStore.Watch(ctx)
}

func (b *broken) History(ctx context.Context) ([]rule.Document, error) {
	list, err := b.MemoryStore.History(ctx)
	if b.history != nil {
		list = b.history(list)
	}
	return list, err
}

// each changes what is yielded.
func each(change func(rule.Document) []rule.Document) func(*rule.MemoryStore, context.Context) iter.Seq2[rule.Document, error] {
	return func(s *rule.MemoryStore, ctx context.Context) iter.Seq2[rule.Document, error] {
		return func(yield func(rule.Document, error) bool) {
			for d, err := range s.Watch(ctx) {
				for _, d := range change(d) {
					if !yield(d, err) {
						return
					}
				}
			}
		}
	}
}

// A suite that users run on their own stores is worth what it finds.
func TestSuiteFindsFaults(t *testing.T) {
	type store = rule.MemoryStore
	for name, c := range map[string]struct {
		store broken
		found string // by this test, at least
	}{
		"no check before set": {broken{put: func(s *store, ctx context.Context, d rule.Document, _ uint64) (uint64, error) {
			for now := range s.Watch(context.Background()) {
				return s.Put(ctx, d, now.Revision)
			}
			return 0, nil
		}}, "CheckAndSet"},
		"other error for a conflict": {broken{put: func(s *store, ctx context.Context, d rule.Document, at uint64) (uint64, error) {
			rev, err := s.Put(ctx, d, at)
			if err != nil {
				err = fmt.Errorf("conflict: %v", err)
			}
			return rev, err
		}}, "CheckAndSet"},
		"takes what is too large": {broken{put: func(s *store, ctx context.Context, d rule.Document, at uint64) (uint64, error) {
			return s.Put(ctx, rule.Document{Data: d.Data[:min(len(d.Data), rule.MaxBytes)], Author: d.Author, Reason: d.Reason, Time: d.Time}, at)
		}}, "TooLarge"},
		"ignores its context": {broken{put: func(s *store, _ context.Context, d rule.Document, at uint64) (uint64, error) {
			return s.Put(context.Background(), d, at)
		}}, "PutWithEndedContext"},
		"loses the author": {broken{put: func(s *store, ctx context.Context, d rule.Document, at uint64) (uint64, error) {
			d.Author = ""
			return s.Put(ctx, d, at)
		}}, "History"},
		"sets the time over": {broken{put: func(s *store, ctx context.Context, d rule.Document, at uint64) (uint64, error) {
			d.Time = time.Time{}
			return s.Put(ctx, d, at)
		}}, "PutAndWatch"},
		"yields twice": {broken{watch: each(func(d rule.Document) []rule.Document { return []rule.Document{d, d} })}, "PutAndWatch"},
		"yields no absent document": {broken{watch: each(func(d rule.Document) []rule.Document {
			if !d.Exists() {
				return nil
			}
			return []rule.Document{d}
		})}, "Empty"},
		"takes empty for absent": {broken{watch: each(func(d rule.Document) []rule.Document {
			if len(d.Data) == 0 {
				d = rule.Document{}
			}
			return []rule.Document{d}
		})}, "EmptyDocumentExists"},
		"yields after the end": {broken{watch: func(s *store, ctx context.Context) iter.Seq2[rule.Document, error] {
			return func(yield func(rule.Document, error) bool) {
				var last rule.Document
				for d, err := range s.Watch(ctx) {
					if last = d; !yield(d, err) {
						return
					}
				}
				yield(last, nil)
			}
		}}, "WatchEndsWithItsContext"},
		"watches once":             {broken{watch: oneAtATime()}, "WatchesAreIndependent"},
		"history is not bounded":   {broken{history: func(l []rule.Document) []rule.Document { return append(l, l...) }}, "History"},
		"history in another order": {broken{history: func(l []rule.Document) []rule.Document { slices.Reverse(l); return l }}, "History"},
		"history of conflicts": {broken{history: func(l []rule.Document) []rule.Document {
			return append(l, rule.Document{Data: []byte("conflict")})
		}}, "CheckAndSet"},
		"text alone": {broken{put: func(s *store, ctx context.Context, d rule.Document, at uint64) (uint64, error) {
			d.Data = []byte(string([]rune(string(d.Data))))
			return s.Put(ctx, d, at)
		}}, "AnyBytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Contains(t, failing(t, func() Harness {
				s := c.store
				s.MemoryStore = rule.NewMemoryStore()
				return Harness{Store: &s, Delete: func(context.Context) error { s.Delete(); return nil }, TooLarge: rule.MaxBytes + 1}
			}), c.found)
		})
	}
}

// oneAtATime yields the current document alone.
func oneAtATime() func(*rule.MemoryStore, context.Context) iter.Seq2[rule.Document, error] {
	return func(s *rule.MemoryStore, ctx context.Context) iter.Seq2[rule.Document, error] {
		return func(yield func(rule.Document, error) bool) {
			for d, err := range s.Watch(ctx) {
				if !yield(d, err) {
					return
				}
				break
			}
			<-ctx.Done()
		}
	}
}

func TestSuitePassesWhatIsRight(t *testing.T) {
	assert.Empty(t, failing(t, func() Harness {
		s := rule.NewMemoryStore()
		return Harness{Store: s, Delete: func(context.Context) error { s.Delete(); return nil }, TooLarge: rule.MaxBytes + 1}
	}))
}
