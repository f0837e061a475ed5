package rollouttest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// Journal is a store that notes what was written through it.
type Journal struct {
	rule.Store
	mu     sync.Mutex // guards writes
	writes []Write
}

// Write is a Put that succeeded.
type Write struct {
	Before, Revision uint64
	Document         rule.Document
}

// Put implements [rule.Store].
func (j *Journal) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	revision, err := j.Store.Put(ctx, d, ifRevision)
	if err == nil {
		j.mu.Lock()
		j.writes = append(j.writes, Write{ifRevision, revision, d})
		j.mu.Unlock()
	}
	return revision, err
}

// Check fails t unless each write since the last Check was made of the one before, and
// changed nothing but what its author may change: the controller and ann the plan and
// its rules, bob the count in meta. begin is the first document, and events are what
// the authors of the plan were told of what they wrote.
func (j *Journal) Check(t testing.TB, begin rule.Document, events []rollout.Event) (writes int) {
	t.Helper()
	j.mu.Lock()
	list := j.writes
	j.writes = nil
	j.mu.Unlock()
	byRevision := map[uint64]rollout.Event{}
	for _, e := range events {
		byRevision[e.Revision] = e
	}
	before := begin
	for _, w := range list {
		if w.Before != before.Revision {
			t.Errorf("revision %d was made of %d, and replaced %d", w.Revision, w.Before, before.Revision)
		}
		was, is := read(t, before.Data), read(t, w.Document.Data)
		switch w.Document.Author {
		case "bob":
			if count(t, w.Document.Data) != count(t, before.Data)+1 || !samePlan(was, is) {
				t.Errorf("revision %d of bob changed %v", w.Revision, rollout.Diff(before.Data, w.Document.Data))
			}
		default:
			e, told := byRevision[w.Revision]
			if !told {
				t.Errorf("revision %d of %s: nobody was told of it", w.Revision, w.Document.Author)
			}
			delete(byRevision, w.Revision)
			if count(t, w.Document.Data) != count(t, before.Data) || e.From.Phase != was.State.Phase || !e.From.Since.Equal(was.State.Since) || e.To.Phase != is.State.Phase {
				t.Errorf("revision %d of %s, %s from %s: changed %v", w.Revision, w.Document.Author, e.Kind, e.From.Phase, rollout.Diff(before.Data, w.Document.Data))
			}
		}
		before = w.Document
		before.Revision = w.Revision
	}
	if len(byRevision) > 0 {
		t.Errorf("of %d events nothing was written", len(byRevision))
	}
	now := current(t, j.Store)
	if now.Revision != before.Revision || !bytes.Equal(now.Data, before.Data) {
		t.Errorf("the store is at %d, the last write was %d", now.Revision, before.Revision)
	}
	return len(list)
}

func samePlan(a, b *rollout.Plan) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

// count is what bob counts.
func count(t testing.TB, data []byte) int {
	set, err := rule.Parse(data)
	if err != nil {
		t.Error(err)
		return 0
	}
	n := 0
	if err := json.Unmarshal(set.Meta["count"], &n); err != nil {
		t.Error(err)
	}
	return n
}

// Counting is [Lane] with the count.
var Counting = Lane[:len(Lane)-2] + ",\n  \"meta\": {\"count\": 0}\n}"

// Count adds one to the count, as somebody does who edits the document and cares
// about what others write meanwhile.
func Count(ctx context.Context, s rule.Store) error {
	_, err := rollout.Update(ctx, s, func(data []byte) ([]byte, *rollout.Event, error) {
		set, err := rule.Parse(data)
		if err != nil {
			return nil, nil, err
		}
		n := 0
		if err := json.Unmarshal(set.Meta["count"], &n); err != nil {
			return nil, nil, err
		}
		from, to := fmt.Appendf(nil, `"count": %d`, n), fmt.Appendf(nil, `"count": %d`, n+1)
		return bytes.Replace(data, from, to, 1), &rollout.Event{Who: "bob"}, nil
	})
	return err
}

// LostUpdates lets a controller, the one that leads after it, and two operators write
// at once, n times, each time in an order that rng draws, and fails t where a write is
// lost. It returns how many were made.
func LostUpdates(t testing.TB, store rule.Store, rng *rand.Rand, n int) (writes int) {
	t.Helper()
	ctx := t.Context()
	j := &Journal{Store: store}
	start := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	for range n {
		data := []byte(Counting)
		for _, c := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote} {
			var err error
			if data, _, err = rollout.Change(data, "lane", c, rollout.Note{Who: "ann", At: start}); err != nil {
				t.Fatal(err)
			}
		}
		begin := rule.Document{Data: data}
		var err error
		if begin.Revision, err = store.Put(ctx, begin, current(t, store).Revision); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex // guards events
		var events []rollout.Event
		told := func(e *rollout.Event, err error) {
			bad := (*rollout.CommandError)(nil)
			if err != nil && !errors.As(err, &bad) {
				t.Error(err)
			}
			if e != nil {
				mu.Lock()
				events = append(events, *e)
				mu.Unlock()
			}
		}
		// What the leader has read when it loses leadership may be old when it writes.
		verdicts := []rollout.Verdict{rollout.VerdictPass, rollout.VerdictPass, rollout.VerdictFail}
		controller := func(who string, verdict rollout.Verdict, after time.Duration) func(rule.Store) {
			return func(s rule.Store) {
				p := read(t, current(t, s).Data)
				now := start.Add(after)
				r := rollout.Report{Verdict: verdict, Time: now, Stage: p.State.Stage, Entered: p.State.Entered, Targets: p.Targets}
				told(rollout.Evaluate(ctx, s, "lane", &r, rollout.Note{Who: who, At: now}))
			}
		}
		command := rollout.Commands()[rng.IntN(len(rollout.Commands()))]
		actors := []func(rule.Store){
			controller("gw-1", verdicts[rng.IntN(len(verdicts))], time.Hour),
			controller("gw-2", verdicts[rng.IntN(len(verdicts))], time.Hour+time.Second),
			func(s rule.Store) {
				told(rollout.Run(ctx, s, "lane", command, rollout.Note{Who: "ann", At: start.Add(time.Hour + time.Minute)}))
			},
			func(s rule.Store) {
				if err := Count(ctx, s); err != nil {
					t.Error(err)
				}
			},
		}
		Interleave(j, rng, actors...)
		writes += j.Check(t, begin, events)
		if now := count(t, current(t, store).Data); now != 1 {
			t.Errorf("bob's count is %d", now)
		}
		if t.Failed() {
			return writes
		}
	}
	return writes
}
