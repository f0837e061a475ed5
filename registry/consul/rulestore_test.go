package consul_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/graytag/rule/ruletest"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry/consul"
)

const rulesKey = "graylane/rules"

// setOf returns a rule set that sends everyone to a version.
func setOf(version string) string {
	return fmt.Sprintf(`{"rules":[{"id":"all","tag":"version=%s"}]}`, version)
}

func ruleStore(t *testing.T, r *consul.Registry, key string) *consul.RuleStore {
	t.Helper()
	s, err := r.RuleStore(key)
	require.NoError(t, err)
	return s
}

// put writes a document that must be accepted.
func put(t *testing.T, s rule.Store, data string, ifRevision uint64) uint64 {
	t.Helper()
	rev, err := s.Put(t.Context(), rule.Document{Data: []byte(data), Author: "ann", Reason: "a test"}, ifRevision)
	require.NoError(t, err)
	require.Greater(t, rev, ifRevision)
	return rev
}

// editKV writes a key as an operator does, who knows nothing of graylane.
func editKV(t *testing.T, a *consultest.Agent, key string, value []byte) {
	t.Helper()
	_, err := a.Client().KV().Put(&api.KVPair{Key: key, Value: value}, nil)
	require.NoError(t, err)
}

// docEvent is one thing that a watch yielded.
type docEvent struct {
	d   rule.Document
	err error
	at  time.Time
}

// docReader collects what a watch yields.
type docReader struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	events []docEvent
}

func watchRules(t *testing.T, s rule.Store) *docReader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &docReader{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for d, err := range s.Watch(ctx) {
			r.mu.Lock()
			r.events = append(r.events, docEvent{d, err, time.Now()})
			r.mu.Unlock()
		}
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *docReader) stop() {
	r.cancel()
	<-r.done
}

func (r *docReader) all() []docEvent {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]docEvent(nil), r.events...)
}

func (r *docReader) docs() (docs []rule.Document) {
	for _, e := range r.all() {
		if e.err == nil {
			docs = append(docs, e.d)
		}
	}
	return docs
}

func (r *docReader) errs() (errs []error) {
	for _, e := range r.all() {
		if e.err != nil {
			errs = append(errs, e.err)
		}
	}
	return errs
}

// until waits for an event that satisfies ok, among those from the n-th on.
func (r *docReader) until(n int, ok func(docEvent) bool) (found docEvent) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		for _, e := range r.all()[n:] {
			if ok(e) {
				found = e
				return true
			}
		}
		return false
	}, patience, 2*time.Millisecond, "yielded so far: %v", r)
	return found
}

func (r *docReader) String() string {
	var b strings.Builder
	for _, e := range r.all() {
		fmt.Fprintf(&b, "\nrevision %d, %d bytes, by %q, error %v", e.d.Revision, len(e.d.Data), e.d.Author, e.err)
	}
	return b.String()
}

// untilData waits for a document with this content.
func (r *docReader) untilData(data string) rule.Document {
	r.t.Helper()
	return r.until(0, func(e docEvent) bool { return e.err == nil && e.d.Exists() && string(e.d.Data) == data }).d
}

func (r *docReader) untilRevision(revision uint64) rule.Document {
	r.t.Helper()
	return r.until(0, func(e docEvent) bool { return e.err == nil && e.d.Revision == revision }).d
}

func rulesConformance(t *testing.T, agent *consultest.Agent, rulesKey string) {
	n := 0
	ruletest.Run(t, func(t *testing.T) ruletest.Harness {
		n++
		key := fmt.Sprintf("%s/%d/rules", rulesKey, n)
		return ruletest.Harness{
			Store: ruleStore(t, open(t, agent.Config()), key),
			Delete: func(ctx context.Context) error {
				_, err := agent.Client().KV().Delete(key, (&api.WriteOptions{}).WithContext(ctx))
				return err
			},
			TooLarge: 512 << 10,
		}
	})
}

// TestRuleStore_OnAgent runs what leaves the agent alone, each on a key of its own.
func TestRuleStore_OnAgent(t *testing.T) {
	agent := consultest.Start(t)
	for _, c := range []struct {
		name string
		test func(t *testing.T, agent *consultest.Agent, rulesKey string)
	}{
		{"Conformance", rulesConformance},
		{"AwkwardKey", rulesAwkwardKey},
		{"O6_RollbackWinsEveryRace", rulesRollbackRaces},
		{"EditedByHand", rulesEditedByHand},
		{"HistoryIsBounded", rulesHistoryIsBounded},
		{"ClockOfAnotherWriterIsAhead", rulesClockOfAnotherWriterIsAhead},
		{"RacingWriters", rulesRacingWriters},
		{"SizeLimit", rulesSizeLimit},
		{"LargeConflict", rulesLargeConflict},
		{"CompressedByHand", rulesCompressedByHand},
		{"BadInput", rulesBadInput},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, agent, "graylane/"+c.name) })
	}
}

func TestRuleStore_Keys(t *testing.T) {
	r := open(t, &api.Config{Address: "127.0.0.1:1"})
	for _, key := range []string{
		"", "/", "/rules", "rules/", "a//b", "a/./b", "../rules", "a\nb", "a\x7fb", "\xff", strings.Repeat("a", 513),
	} {
		s, err := r.RuleStore(key)
		require.Error(t, err, "%q", key)
		assert.Nil(t, s)
		assert.Less(t, len(err.Error()), 300)
	}
	for _, key := range []string{"rules", "graylane/rules", "灰度/规则 a?b#c%d", "...", strings.Repeat("a", 512)} {
		_, err := r.RuleStore(key)
		require.NoError(t, err, "%q", key)
	}
}

// A key with everything that a URL reserves is the same one to all operations.
func rulesAwkwardKey(t *testing.T, agent *consultest.Agent, rulesKey string) {
	key := rulesKey + "/规则 a?b#c%d&e+f"
	s := ruleStore(t, open(t, agent.Config()), key)
	w := watchRules(t, s)
	at := put(t, s, setOf("v1"), 0)
	put(t, s, setOf("v2"), at)
	assert.Equal(t, "ann", w.untilData(setOf("v2")).Author)
	p, _, err := agent.Client().KV().Get(key, nil)
	require.NoError(t, err)
	require.NotNil(t, p)
	assert.Equal(t, setOf("v2"), string(p.Value))
	list, err := s.History(t.Context())
	require.NoError(t, err)
	assert.Len(t, list, 2)
}

// R7: the key deleted, created again, written empty; by hand, as operators do.
func TestR7_DeletedCreatedEmptied(t *testing.T) {
	agent := consultest.Start(t)
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	e, err := rule.NewEngine(nil)
	require.NoError(t, err)
	follow(t, e, s)
	version := func() string { return e.Decide(nil).Tag.Get("version") }
	eventually := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, patience, time.Millisecond, "%s: %+v", what, e.Status())
	}

	put(t, s, setOf("v2"), 0)
	eventually("written", func() bool { return version() == "v2" })

	deleted := time.Now()
	_, err = agent.Client().KV().Delete(rulesKey, nil)
	require.NoError(t, err)
	eventually("deleted", func() bool { return version() == "" && e.Status().Revision == 0 })
	t.Logf("rules off %v after the deletion", time.Since(deleted))
	assert.NoError(t, e.Status().Err)

	editKV(t, agent, rulesKey, []byte(setOf("v3")))
	eventually("created again", func() bool { return version() == "v3" })
	good := e.Status().Revision

	editKV(t, agent, rulesKey, nil)
	eventually("written empty", func() bool { return e.Status().Err != nil })
	assert.Equal(t, "v3", version(), "the last good set stays")
	assert.Equal(t, good, e.Status().Revision)
	assert.Greater(t, e.Status().ErrRevision, good)

	editKV(t, agent, rulesKey, []byte(setOf("v4")))
	eventually("good again", func() bool { return version() == "v4" && e.Status().Err == nil })
}

// follow lets an engine follow a store until the test ends.
func follow(t *testing.T, e *rule.Engine, s rule.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Follow(ctx, s) }()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
}

// What an operator writes has no author, and comes first in the history; the Put
// that replaces it keeps it there.
func rulesEditedByHand(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	w := watchRules(t, s)
	first := put(t, s, setOf("v1"), 0)
	assert.Equal(t, "ann", w.untilRevision(first).Author)

	kv := agent.Client().KV()
	p, _, err := kv.Get(rulesKey, nil)
	require.NoError(t, err)
	assert.Equal(t, setOf("v1"), string(p.Value), "plain JSON")
	// Consul's UI sends the flags back as they were, its CLI sends none.
	p.Value = []byte(setOf("v2"))
	ok, _, err := kv.CAS(p, nil)
	require.NoError(t, err)
	require.True(t, ok)
	byUI := w.untilData(setOf("v2"))
	assert.Empty(t, byUI.Author)
	assert.Empty(t, byUI.Reason)
	assert.True(t, byUI.Time.IsZero())
	assert.Equal(t, []string{"v2 ", "v1 ann"}, historyOf(t, s))

	editKV(t, agent, rulesKey, []byte(setOf("v3")))
	byCLI := w.untilData(setOf("v3"))
	assert.Empty(t, byCLI.Author)
	assert.Equal(t, []string{"v3 ", "v1 ann"}, historyOf(t, s))

	last := put(t, s, setOf("v4"), byCLI.Revision)
	assert.Equal(t, "ann", w.untilRevision(last).Author)
	assert.Equal(t, []string{"v4 ann", "v3 ", "v1 ann"}, historyOf(t, s))
	list, err := s.History(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []uint64{last, byCLI.Revision, first}, []uint64{list[0].Revision, list[1].Revision, list[2].Revision})

	// An older document is put again.
	put(t, s, string(list[2].Data), last)
	assert.Equal(t, []string{"v1 ann", "v4 ann", "v3 ", "v1 ann"}, historyOf(t, s))

	// A deletion takes nothing out, and keys of others are left alone.
	editKV(t, agent, rulesKey+".history/README", []byte("mine"))
	_, err = kv.Delete(rulesKey, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"v1 ann", "v4 ann", "v3 ", "v1 ann"}, historyOf(t, s))
	put(t, s, setOf("v5"), 0)
	assert.Equal(t, []string{"v5 ann", "v1 ann", "v4 ann", "v3 ", "v1 ann"}, historyOf(t, s))
	p, _, err = kv.Get(rulesKey+".history/README", nil)
	require.NoError(t, err)
	assert.NotNil(t, p)
}

// historyOf returns version and author of each document in the history.
func historyOf(t *testing.T, s rule.Store) (list []string) {
	t.Helper()
	docs, err := s.History(t.Context())
	require.NoError(t, err)
	for _, d := range docs {
		set, err := rule.Parse(d.Data)
		require.NoError(t, err)
		list = append(list, strings.TrimPrefix(set.Rules[0].Tag, "version=")+" "+d.Author)
	}
	return list
}

// The history keeps 50, in as many keys, however they came about.
func rulesHistoryIsBounded(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	at := uint64(0)
	for i := range rule.HistoryLength + 3 {
		at = put(t, s, fmt.Sprint(i), at)
	}
	// Two documents come in with one Put, and a stray is what a crash left.
	editKV(t, agent, rulesKey, []byte("by hand"))
	editKV(t, agent, rulesKey+".history/20200101T000000.000000000Z/document", []byte("stray"))
	p, _, err := agent.Client().KV().Get(rulesKey, nil)
	require.NoError(t, err)
	put(t, s, "last", p.ModifyIndex)

	list, err := s.History(t.Context())
	require.NoError(t, err)
	require.Len(t, list, rule.HistoryLength)
	var got []string
	for _, d := range list {
		got = append(got, string(d.Data))
	}
	want := []string{"last", "by hand"}
	for i := rule.HistoryLength + 2; len(want) < rule.HistoryLength; i-- {
		want = append(want, fmt.Sprint(i))
	}
	assert.Equal(t, want, got)
	keys, _, err := agent.Client().KV().Keys(rulesKey+".history/", "", nil)
	require.NoError(t, err)
	assert.Len(t, keys, 2*rule.HistoryLength)
}

// A writer whose clock is ahead does not push others' documents out of the order.
func rulesClockOfAnotherWriterIsAhead(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	for _, name := range []string{"note", "document"} {
		editKV(t, agent, rulesKey+".history/20990101T000000.000000000Z/"+name, []byte("{}"))
	}
	at := uint64(0)
	for i := range 5 {
		at = put(t, s, fmt.Sprint(i), at)
	}
	list, err := s.History(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 6)
	for i, d := range list[:5] {
		assert.Equal(t, fmt.Sprint(4-i), string(d.Data))
	}
}

// Two writers read, add their line, and write where nobody was faster: no line is
// lost, and what Put returned is the truth.
func rulesRacingWriters(t *testing.T, agent *consultest.Agent, rulesKey string) {
	const each = 100
	var wg sync.WaitGroup
	var conflicts [2]int
	for i := range 2 {
		s := ruleStore(t, open(t, agent.Config()), rulesKey)
		wg.Go(func() {
			for n := range each {
				for !addLine(t, s, fmt.Sprintf("%d-%d\n", i, n)) {
					conflicts[i]++
				}
			}
		})
	}
	wg.Wait()
	p, _, err := agent.Client().KV().Get(rulesKey, nil)
	require.NoError(t, err)
	lines := strings.Fields(string(p.Value))
	seen := map[string]bool{}
	for _, l := range lines {
		seen[l] = true
	}
	assert.Len(t, lines, 2*each, "every Put that succeeded is there once")
	assert.Len(t, seen, 2*each)
	t.Logf("%d updates by 2 writers, %d and %d conflicts, 0 lost", len(lines), conflicts[0], conflicts[1])
}

// addLine adds a line to the document; false is a conflict.
func addLine(t *testing.T, s *consul.RuleStore, line string) bool {
	ctx := context.Background()
	for d, err := range s.Watch(ctx) {
		if err != nil {
			continue
		}
		_, err := s.Put(ctx, rule.Document{Data: append(bytes.Clone(d.Data), line...)}, d.Revision)
		if err != nil && !errors.Is(err, rule.ErrConflict) {
			t.Errorf("Put: %v", err)
			return true
		}
		return err == nil
	}
	return true
}

// An operator may compress a document himself; one that cannot be unpacked is an
// error, and the rules before it stay.
func rulesCompressedByHand(t *testing.T, agent *consultest.Agent, rulesKey string) {
	s := ruleStore(t, open(t, agent.Config()), rulesKey)
	w := watchRules(t, s)
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(setOf("v1")))
	require.NoError(t, z.Close())
	editKV(t, agent, rulesKey, b.Bytes())
	good := w.untilData(setOf("v1"))

	editKV(t, agent, rulesKey, b.Bytes()[:b.Len()-4])
	err := w.until(0, func(e docEvent) bool { return e.err != nil }).err
	assert.ErrorContains(t, err, rulesKey)
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	// A bomb is not unpacked whole.
	bomb := bytes.Buffer{}
	z, err = gzip.NewWriterLevel(&bomb, gzip.BestCompression)
	require.NoError(t, err)
	_, _ = z.Write(make([]byte, rule.MaxBytes+1))
	require.NoError(t, z.Close())
	editKV(t, agent, rulesKey, bomb.Bytes())
	w.until(0, func(e docEvent) bool { return e.err != nil && strings.Contains(e.err.Error(), "holds more than") })

	p, _, err := agent.Client().KV().Get(rulesKey, nil)
	require.NoError(t, err)
	put(t, s, setOf("v2"), p.ModifyIndex) // over what nobody can use
	w.untilData(setOf("v2"))
	docs := w.docs()
	assert.Equal(t, good.Revision, docs[len(docs)-2].Revision, "nothing in between")

	// What looks compressed comes back as it went in.
	p, _, err = agent.Client().KV().Get(rulesKey, nil)
	require.NoError(t, err)
	put(t, s, "\x1f\x8b and so on", p.ModifyIndex)
	w.untilData("\x1f\x8b and so on")
}

func rulesBadInput(t *testing.T, agent *consultest.Agent, rulesKey string) {
	r := open(t, agent.Config())
	s := ruleStore(t, r, rulesKey)
	_, err := s.Put(t.Context(), rule.Document{Data: []byte("{}"), Reason: strings.Repeat("a", rule.MaxNoteBytes+1)}, 0)
	require.ErrorContains(t, err, "author and reason")
	_, err = s.Put(t.Context(), rule.Document{Data: make([]byte, rule.MaxBytes+1)}, 0)
	var large *rule.TooLargeError
	require.ErrorAs(t, err, &large)
	_, err = s.Put(t.Context(), rule.Document{Data: []byte("{}"), Time: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}, 0)
	require.NoError(t, err, "a time that JSON cannot hold is left out")

	list, err := s.History(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.True(t, list[0].Time.IsZero())

	w := watchRules(t, s)
	w.until(0, func(e docEvent) bool { return e.d.Exists() })
	require.NoError(t, r.Close())
	<-w.done
	last := w.all()
	assert.ErrorIs(t, last[len(last)-1].err, consul.ErrClosed)
	_, err = s.Put(t.Context(), rule.Document{}, 1)
	assert.ErrorIs(t, err, consul.ErrClosed)
	_, err = s.History(t.Context())
	assert.ErrorIs(t, err, consul.ErrClosed)
	for _, err := range s.Watch(t.Context()) {
		assert.ErrorIs(t, err, consul.ErrClosed)
	}
}
