package ruletest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Harness is a store to be tested, and what the suite has to know of it.
type Harness struct {
	// Store is empty. It may be closed by a t.Cleanup of whoever opened it.
	Store rule.Store
	// Delete removes the document, as an operator would: with the means of the
	// store, not through rule.Store. The history stays.
	Delete func(ctx context.Context) error
	// TooLarge is a number of bytes that the store has to refuse, also after
	// compression.
	TooLarge int
	// Within is how long a change may take to be seen, a deletion included; 0 is
	// 15 seconds. It bounds how long a failing test takes, nothing else.
	Within time.Duration
}

// Run tests a store. open is called once for each subtest.
func Run(t *testing.T, open func(t *testing.T) Harness) {
	t.Helper()
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			h := open(t)
			if h.Store == nil || h.Delete == nil || h.TooLarge <= 0 {
				t.Fatal("ruletest: Store, Delete and TooLarge are required")
			}
			c.test(newSuite(t, h))
		})
	}
}

var tests = []struct {
	name string
	test func(*suite)
}{
	{"Empty", (*suite).empty},
	{"PutAndWatch", (*suite).putAndWatch},
	{"CheckAndSet", (*suite).checkAndSet},
	{"EmptyDocumentExists", (*suite).emptyDocumentExists},
	{"DeleteAndCreateAgain", (*suite).deleteAndCreateAgain},
	{"EqualContentIsANewRevision", (*suite).equalContent},
	{"AnyBytes", (*suite).anyBytes},
	{"PutKeepsNothingOfTheCaller", (*suite).aliasing},
	{"TooLarge", (*suite).tooLarge},
	{"History", (*suite).history},
	{"ConcurrentPuts", (*suite).concurrentPuts},
	{"WatchEndsWithItsContext", (*suite).watchEnds},
	{"WatchesAreIndependent", (*suite).watches},
	{"PutWithEndedContext", (*suite).endedContext},
	{"EngineFollows", (*suite).engineFollows},
}

// reporter is as much of testing.T as the suite uses.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	FailNow()
	Context() context.Context
}

type suite struct {
	reporter
	Harness
}

func newSuite(r reporter, h Harness) *suite {
	if h.Within <= 0 {
		h.Within = 15 * time.Second
	}
	return &suite{r, h}
}

func (s *suite) Fatalf(format string, args ...any) {
	s.Helper()
	s.Errorf(format, args...)
	s.FailNow()
}

func (s *suite) put(data string, ifRevision uint64) uint64 {
	s.Helper()
	rev, err := s.Store.Put(s.Context(), rule.Document{Data: []byte(data), Author: "suite", Reason: "a test"}, ifRevision)
	if err != nil {
		s.Fatalf("Put at revision %d: %v", ifRevision, err)
	}
	if rev <= ifRevision {
		s.Fatalf("Put at revision %d returned %d: a new revision is higher", ifRevision, rev)
	}
	return rev
}

func (s *suite) remove() {
	s.Helper()
	if err := s.Delete(s.Context()); err != nil {
		s.Fatalf("Delete: %v", err)
	}
}

// current returns what a new Watch yields first.
func (s *suite) current() rule.Document {
	s.Helper()
	w := s.watch()
	defer w.end()
	return w.next("the current document")
}

// watcher reads a Watch in a goroutine of its own.
type watcher struct {
	s      *suite
	cancel context.CancelFunc
	docs   chan rule.Document
	done   chan struct{}
	last   uint64 // revision
	some   bool   // has yielded
}

func (s *suite) watch() *watcher {
	ctx, cancel := context.WithCancel(s.Context())
	w := &watcher{s: s, cancel: cancel, docs: make(chan rule.Document), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for d, err := range s.Store.Watch(ctx) {
			if err != nil {
				s.Errorf("Watch yielded an error: %v", err)
				continue
			}
			select {
			case w.docs <- d:
			case <-ctx.Done():
			}
		}
	}()
	return w
}

func (w *watcher) next(what string) rule.Document {
	w.s.Helper()
	select {
	case d := <-w.docs:
		if w.some && d.Revision == w.last {
			w.s.Fatalf("Watch yielded revision %d twice in a row", d.Revision)
		}
		w.some, w.last = true, d.Revision
		return d
	case <-time.After(w.s.Within):
		w.s.Fatalf("Watch did not yield %s within %v", what, w.s.Within)
		return rule.Document{}
	}
}

// until reads on to a revision.
func (w *watcher) until(revision uint64) rule.Document {
	w.s.Helper()
	for {
		if d := w.next(fmt.Sprintf("revision %d", revision)); d.Revision == revision {
			return d
		}
	}
}

// end ends the watch, which must end at once.
func (w *watcher) end() {
	w.s.Helper()
	w.cancel()
	select {
	case <-w.done:
	case <-time.After(w.s.Within):
		w.s.Errorf("Watch did not end with its context")
	}
}

func (s *suite) empty() {
	d := s.current()
	if d.Exists() || len(d.Data) != 0 {
		s.Errorf("an empty store yields a document that does not exist first, not %+v", d)
	}
	list, err := s.Store.History(s.Context())
	if err != nil || len(list) != 0 {
		s.Errorf("History of an empty store: %v, %v", list, err)
	}
}

func (s *suite) putAndWatch() {
	w := s.watch()
	defer w.end()
	if d := w.next("the empty store"); d.Exists() {
		s.Fatalf("first came %+v", d)
	}
	at, before := uint64(0), time.Now().Add(-time.Minute)
	for i := range 5 {
		data := fmt.Sprintf(`{"meta":{"n":%d}}`, i)
		at = s.put(data, at)
		d := w.until(at)
		if string(d.Data) != data || d.Author != "suite" || d.Reason != "a test" {
			s.Errorf("Watch yielded %+v for %s", d, data)
		}
		if d.Time.Before(before) || d.Time.After(time.Now().Add(time.Minute)) {
			s.Errorf("Put has to set the time, it is %v", d.Time)
		}
		if d := s.current(); d.Revision != at || string(d.Data) != data {
			s.Errorf("a new Watch yields %+v first, revision %d is current", d, at)
		}
	}
	when := time.Date(2026, 12, 1, 8, 30, 0, 0, time.UTC)
	at, err := s.Store.Put(s.Context(), rule.Document{Data: []byte("{}"), Time: when}, at)
	if err != nil {
		s.Fatalf("Put: %v", err)
	}
	if d := w.until(at); !d.Time.Equal(when) {
		s.Errorf("Put replaced the time %v by %v", when, d.Time)
	}
}

func (s *suite) conflict(ifRevision uint64) {
	s.Helper()
	before := s.current()
	_, err := s.Store.Put(s.Context(), rule.Document{Data: []byte("conflict")}, ifRevision)
	if !errors.Is(err, rule.ErrConflict) {
		s.Errorf("Put at revision %d, where %d is current: error %v, want ErrConflict", ifRevision, before.Revision, err)
	}
	if d := s.current(); d.Revision != before.Revision || !bytes.Equal(d.Data, before.Data) {
		s.Errorf("a Put that failed wrote %+v", d)
	}
	list, err := s.Store.History(s.Context())
	if err != nil {
		s.Fatalf("History: %v", err)
	}
	for _, d := range list {
		if string(d.Data) == "conflict" {
			s.Errorf("a Put that failed is in the history")
		}
	}
}

func (s *suite) checkAndSet() {
	s.conflict(1)
	first := s.put("one", 0)
	s.conflict(0)
	s.conflict(first + 1)
	second := s.put("two", first)
	s.conflict(first)
	s.put("three", second)
	s.conflict(second)
}

func (s *suite) emptyDocumentExists() {
	w := s.watch()
	defer w.end()
	at := s.put("", s.put("{}", 0))
	d := w.until(at)
	if !d.Exists() || len(d.Data) != 0 {
		s.Errorf("an empty document exists; got %+v", d)
	}
	s.conflict(0)
}

func (s *suite) deleteAndCreateAgain() {
	w := s.watch()
	defer w.end()
	first := s.put("one", 0)
	w.until(first)
	s.remove()
	if d := w.until(0); len(d.Data) != 0 {
		s.Errorf("a deleted document has no content; got %+v", d)
	}
	s.conflict(first)
	second := s.put("one", 0)
	if second == first {
		s.Errorf("a document that is created again needs a new revision, %d was used", second)
	}
	w.until(second)
	list, err := s.Store.History(s.Context())
	if err != nil || len(list) != 2 {
		s.Errorf("a deletion takes nothing out of the history; it holds %d documents, error %v", len(list), err)
	}
}

func (s *suite) equalContent() {
	w := s.watch()
	defer w.end()
	first := s.put("same", 0)
	w.until(first)
	second := s.put("same", first)
	w.until(second)
	s.conflict(first)
}

func (s *suite) anyBytes() {
	data := make([]byte, 2048)
	for i := range data {
		data[i] = byte(i)
	}
	at := s.put(string(data), 0)
	if d := s.current(); d.Revision != at || !bytes.Equal(d.Data, data) {
		s.Errorf("the document came back changed")
	}
	notes := "张三 <a@b>; \"x\"\n=,"
	at, err := s.Store.Put(s.Context(), rule.Document{Data: []byte("{}"), Author: notes, Reason: notes}, at)
	if err != nil {
		s.Fatalf("Put: %v", err)
	}
	if d := s.current(); d.Revision != at || d.Author != notes || d.Reason != notes {
		s.Errorf("author %q and reason %q came back changed", d.Author, d.Reason)
	}
}

func (s *suite) aliasing() {
	data := []byte("mine")
	at, err := s.Store.Put(s.Context(), rule.Document{Data: data}, 0)
	if err != nil {
		s.Fatalf("Put: %v", err)
	}
	copy(data, "????")
	if d := s.current(); d.Revision != at || string(d.Data) != "mine" {
		s.Errorf("the store holds %q: it keeps the slice of its caller", d.Data)
	}
}

func (s *suite) tooLarge() {
	first := s.put("small", 0)
	data := make([]byte, s.Harness.TooLarge)
	var seed [32]byte
	_, _ = rand.NewChaCha8(seed).Read(data) // does not compress
	_, err := s.Store.Put(s.Context(), rule.Document{Data: data}, first)
	var large *rule.TooLargeError
	if !errors.As(err, &large) {
		s.Fatalf("Put of %d bytes: error %v, want a *TooLargeError", len(data), err)
	}
	if large.Limit <= 0 || large.Size <= large.Limit {
		s.Errorf("the error says nothing: %+v", large)
	}
	if d := s.current(); d.Revision != first || string(d.Data) != "small" {
		s.Errorf("a document that is too large was written")
	}
	if list, err := s.Store.History(s.Context()); err != nil || len(list) != 1 {
		s.Errorf("a document that is too large is in the history: %d documents, error %v", len(list), err)
	}
}

func (s *suite) history() {
	const n = rule.HistoryLength + 5
	at := uint64(0)
	var revisions []uint64
	for i := range n {
		var err error
		at, err = s.Store.Put(s.Context(), rule.Document{Data: fmt.Appendf(nil, "document %d", i), Author: fmt.Sprintf("author %d", i), Reason: fmt.Sprintf("reason %d", i)}, at)
		if err != nil {
			s.Fatalf("Put %d: %v", i, err)
		}
		revisions = append(revisions, at)
	}
	list, err := s.Store.History(s.Context())
	if err != nil {
		s.Fatalf("History: %v", err)
	}
	if len(list) != rule.HistoryLength {
		s.Fatalf("History holds %d documents, want %d", len(list), rule.HistoryLength)
	}
	for i, d := range list {
		k := n - 1 - i
		if d.Revision != revisions[k] || string(d.Data) != fmt.Sprintf("document %d", k) ||
			d.Author != fmt.Sprintf("author %d", k) || d.Reason != fmt.Sprintf("reason %d", k) || d.Time.IsZero() {
			s.Errorf("History[%d] is %+v, want what Put %d wrote at revision %d", i, d, k, revisions[k])
		}
	}
}

// concurrentPuts counts up in many goroutines: every Put that succeeds has seen
// the one before it.
func (s *suite) concurrentPuts() {
	const writers, each = 4, 5
	s.put("0", 0)
	var all sync.WaitGroup
	for range writers {
		all.Add(1)
		go func() {
			defer all.Done()
			for done := 0; done < each; {
				var d rule.Document
				for got, err := range s.Store.Watch(s.Context()) {
					if err != nil {
						s.Errorf("Watch: %v", err)
						return
					}
					d = got
					break
				}
				var n int
				if _, err := fmt.Sscan(string(d.Data), &n); err != nil {
					s.Errorf("the document is %q", d.Data)
					return
				}
				_, err := s.Store.Put(s.Context(), rule.Document{Data: fmt.Append(nil, n+1)}, d.Revision)
				switch {
				case err == nil:
					done++
				case !errors.Is(err, rule.ErrConflict):
					s.Errorf("Put: %v", err)
					return
				}
			}
		}()
	}
	all.Wait()
	if d := s.current(); string(d.Data) != fmt.Sprint(writers*each) {
		s.Errorf("%d Puts succeeded, the document says %s: updates were lost", writers*each, d.Data)
	}
}

func (s *suite) watchEnds() {
	at := s.put("one", 0)
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	ended := false
	for d, err := range s.Store.Watch(ctx) {
		if ended {
			s.Fatalf("Watch yielded %+v, %v after its context had ended", d, err)
		}
		cancel()
		ended = true
		s.put("two", at) // must not be seen
	}
	if !ended {
		s.Fatalf("Watch yielded nothing")
	}
	for d, err := range s.Store.Watch(ctx) {
		s.Fatalf("Watch with an ended context yielded %+v, %v", d, err)
	}
}

func (s *suite) watches() {
	a, b := s.watch(), s.watch()
	defer b.end()
	a.next("the empty store")
	at := s.put("one", 0)
	a.until(at)
	a.end()
	// b has read nothing so far: it may have missed some, not the newest.
	at = s.put("two", at)
	b.until(at)
}

func (s *suite) endedContext() {
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	if _, err := s.Store.Put(ctx, rule.Document{Data: []byte("{}")}, 0); err == nil {
		s.Errorf("Put with an ended context has to fail")
	}
	if d := s.current(); d.Exists() {
		s.Errorf("Put with an ended context wrote %+v", d)
	}
}

func (s *suite) engineFollows() {
	e, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		s.Fatalf("NewEngine: %v", err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- e.Follow(ctx, s.Store) }()
	defer func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			s.Errorf("Follow returned %v", err)
		}
	}()
	eventually := func(what, tag string, ok func(rule.Status) bool) {
		s.Helper()
		deadline := time.After(s.Within)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !ok(e.Status()) || e.Decide(nil).Tag.String() != tag {
			select {
			case <-tick.C:
			case <-deadline:
				s.Fatalf("%s: status %+v, tag %q, want %q", what, e.Status(), e.Decide(nil).Tag, tag)
			}
		}
	}
	good := s.put(`{"rules":[{"id":"r","tag":"version=v2"}]}`, 0)
	eventually("a good document", "version=v2", func(st rule.Status) bool { return st.Revision == good && st.Err == nil })
	bad := s.put(`{"rules":[{"id":"r"}]}`, good)
	eventually("a bad document", "version=v2", func(st rule.Status) bool { return st.ErrRevision == bad && st.Err != nil })
	s.remove()
	eventually("no document", "", func(st rule.Status) bool { return st.Revision == 0 && st.Err == nil })
	again := s.put(`{"rules":[{"id":"r","tag":"version=v3"}]}`, 0)
	eventually("created again", "version=v3", func(st rule.Status) bool { return st.Revision == again })
}
