package registry

import (
	"context"
	"iter"
	"sync"
)

// Share returns a Discovery that watches d once per service, however many
// readers watch that service at the same time. The upstream watch begins with
// the first reader and ends with the last one, before that reader's loop
// returns.
//
// A reader that joins gets the last good set at once, and the last error
// instead where there was no good set yet. A reader that is slow does not hold
// up the others: it misses what came in between and goes on with the newest set.
// A watch of d that ends by itself ends the loops of its readers, after they
// have seen its last set.
//
// Sharing what is shared already returns d itself. d must not be nil.
func Share(d Discovery) Discovery {
	if s, ok := d.(*shared); ok {
		return s
	}
	return &shared{upstream: d, feeds: make(map[string]*feed)}
}

type shared struct {
	upstream Discovery

	// mu guards feeds and the reader count of each feed: a feed that a reader
	// finds here must not end before the reader is counted. It is never held
	// while the upstream or a reader runs. Lock order: mu before feed.mu.
	mu    sync.Mutex
	feeds map[string]*feed
}

var _ Discovery = (*shared)(nil)

// feed is the one upstream watch of a service and what it brought.
type feed struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the upstream watch has ended

	readers int // guarded by shared.mu

	// mu guards what follows; it is held for moments only, never while a reader
	// or the upstream runs.
	mu      sync.Mutex
	state   feedState
	changed chan struct{} // closed and replaced with every change of state
}

// feedState is what the upstream said. The counters number its answers, so that a
// reader knows what it has not seen and whether the error came after the set.
type feedState struct {
	set    []Instance
	setN   uint64 // 0: no set yet
	err    error
	errN   uint64 // 0: no error yet
	closed bool
}

// Watch implements [Discovery].
func (s *shared) Watch(ctx context.Context, service string) iter.Seq2[[]Instance, error] {
	return func(yield func([]Instance, error) bool) {
		if ctx.Err() != nil {
			return
		}
		f := s.join(service)
		defer s.leave(service, f)

		st, changed := f.load()
		var (
			last       []Instance
			have       bool
			setN, errN uint64
		)
		if st.setN > 0 {
			errN = st.errN // an error from before this reader's time says nothing about the set
		}
		for {
			if st.setN > setN {
				setN = st.setN
				// The upstream never repeats itself, but A, B, A conflated to A does.
				if !have || !EqualSnapshots(last, st.set) {
					last, have = st.set, true
					if !yield(st.set, nil) || ctx.Err() != nil {
						return
					}
				}
			}
			if st.errN > errN {
				errN = st.errN
				if st.errN > st.setN { // else something good came after it
					if !yield(nil, st.err) || ctx.Err() != nil {
						return
					}
				}
			}
			if st.closed {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			// Both may be ready: nothing is yielded once ctx has ended.
			if ctx.Err() != nil {
				return
			}
			st, changed = f.load()
		}
	}
}

// join counts a reader in and starts the upstream watch for the first one.
func (s *shared) join(service string) *feed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.feeds[service]; ok {
		f.readers++
		return f
	}
	// The watch outlives the reader that started it, so nothing of that reader's
	// context may end it or hang on to it.
	ctx, cancel := context.WithCancel(context.Background())
	f := &feed{
		cancel:  cancel,
		done:    make(chan struct{}),
		readers: 1,
		changed: make(chan struct{}),
	}
	s.feeds[service] = f
	go s.run(ctx, service, f)
	return f
}

// leave counts a reader out; the last one ends the upstream watch and waits for
// its end.
func (s *shared) leave(service string, f *feed) {
	s.mu.Lock()
	f.readers--
	last := f.readers == 0
	if last && s.feeds[service] == f {
		delete(s.feeds, service)
	}
	s.mu.Unlock()
	if last {
		f.cancel()
		<-f.done
	}
}

// run is the goroutine of a feed: it ends when the last reader cancels ctx, or
// when the upstream ends by itself.
func (s *shared) run(ctx context.Context, service string, f *feed) {
	defer close(f.done)
	defer func() {
		// A reader that comes later begins anew.
		s.mu.Lock()
		if s.feeds[service] == f {
			delete(s.feeds, service)
		}
		s.mu.Unlock()
		f.update(func(st *feedState) { st.closed = true })
	}()
	for set, err := range s.upstream.Watch(ctx, service) {
		f.update(func(st *feedState) {
			n := max(st.setN, st.errN) + 1
			if err != nil {
				st.err, st.errN = err, n
			} else {
				st.set, st.setN = set, n
			}
		})
	}
}

// load returns the state and a channel that is closed when it has changed.
func (f *feed) load() (feedState, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.changed
}

// update changes the state and wakes the readers.
func (f *feed) update(change func(*feedState)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
	close(f.changed)
	f.changed = make(chan struct{})
}
