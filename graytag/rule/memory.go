package rule

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"
)

// MemoryStore holds a document in memory: for a program that keeps its rules
// itself, and for tests. It is safe for concurrent use; create one with
// [NewMemoryStore].
type MemoryStore struct {
	// mu guards the fields below, for moments only.
	mu      sync.Mutex
	last    uint64 // the highest revision that was given out
	current Document
	history []Document    // the newest first
	changed chan struct{} // closed and replaced with every change
}

var _ Store = (*MemoryStore)(nil)

// NewMemoryStore returns an empty store.
func NewMemoryStore() *MemoryStore {
	return &MemoryStore{changed: make(chan struct{})}
}

// Watch implements [Store].
func (s *MemoryStore) Watch(ctx context.Context) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		seen, first := uint64(0), true
		for {
			s.mu.Lock()
			current, changed := s.current, s.changed
			s.mu.Unlock()
			if ctx.Err() != nil {
				return
			}
			if first || current.Revision != seen {
				first, seen = false, current.Revision
				if !yield(current, nil) {
					return
				}
				continue // what changed meanwhile comes at once
			}
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}

// Put implements [Store]. It takes documents of up to [MaxBytes].
func (s *MemoryStore) Put(ctx context.Context, d Document, ifRevision uint64) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("rule: put: %w", err)
	}
	if err := checkSize(&d); err != nil {
		return 0, err
	}
	d.Data = slices.Clone(d.Data)
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current.Revision != ifRevision {
		return 0, conflict(s.current.Revision, ifRevision)
	}
	s.last++
	d.Revision = s.last
	s.history = slices.Insert(s.history[:min(len(s.history), HistoryLength-1)], 0, d)
	s.set(d)
	return d.Revision, nil
}

// Delete removes the document: no rules. The history stays.
func (s *MemoryStore) Delete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set(Document{})
}

func (s *MemoryStore) set(d Document) {
	s.current = d
	close(s.changed)
	s.changed = make(chan struct{})
}

// History implements [Store].
func (s *MemoryStore) History(ctx context.Context) ([]Document, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("rule: history: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history), nil
}
