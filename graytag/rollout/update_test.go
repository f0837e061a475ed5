package rollout_test

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// filled is a store that holds a document.
func filled(t testing.TB, doc string) *rule.MemoryStore {
	t.Helper()
	s := rule.NewMemoryStore()
	_, err := s.Put(t.Context(), rule.Document{Data: []byte(doc), Author: "ann", Reason: "new"}, 0)
	require.NoError(t, err)
	return s
}

func read(t testing.TB, s rule.Store) rule.Document {
	t.Helper()
	for d, err := range s.Watch(t.Context()) {
		require.NoError(t, err)
		return d
	}
	return rule.Document{}
}

func TestRunWritesWhoAndWhy(t *testing.T) {
	s := filled(t, lane)
	e, err := rollout.Run(t.Context(), s, "lane", rollout.CommandStart, note(t0))
	require.NoError(t, err)
	d := read(t, s)
	assert.Equal(t, d.Revision, e.Revision)
	assert.Equal(t, "ann", d.Author)
	assert.Equal(t, "plan lane: started: a test", d.Reason)
	assert.Equal(t, t0, d.Time)
	_, err = rollout.Run(t.Context(), s, "lane", rollout.CommandPromote, rollout.Note{Who: "bob"})
	require.NoError(t, err)
	d = read(t, s)
	assert.Equal(t, "plan lane: promoted, stage 1 at 1 %", d.Reason)
	assert.WithinDuration(t, time.Now(), plan(t, string(d.Data)).State.Since, time.Minute, "now where no time is given")
	_, err = rollout.Run(t.Context(), s, "lane", rollout.CommandStart, note(t0))
	assert.ErrorContains(t, err, "a plan that is running cannot start")
	assert.Equal(t, d.Revision, read(t, s).Revision)
}

// faulty is a store whose calls fail as a test wants.
type faulty struct {
	rule.Store
	watch func() error
	put   func(put func() (uint64, error)) (uint64, error)
}

func (f *faulty) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	if f.watch != nil {
		if err := f.watch(); err != nil {
			return func(yield func(rule.Document, error) bool) { yield(rule.Document{}, err) }
		}
	}
	return f.Store.Watch(ctx)
}

func (f *faulty) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	if f.put == nil {
		return f.Store.Put(ctx, d, ifRevision)
	}
	return f.put(func() (uint64, error) { return f.Store.Put(ctx, d, ifRevision) })
}

var errDown = errors.New("the store is down")

// times fails the first n calls.
func times(n int, err error) func() error {
	return func() error {
		if n--; n >= 0 {
			return err
		}
		return nil
	}
}

func TestOnlyRollbackAndStopOutlastAStoreThatFails(t *testing.T) {
	started := after(t, lane, rollout.CommandStart)
	stores := map[string]func() *faulty{
		"reads fail": func() *faulty { return &faulty{Store: filled(t, started), watch: times(3, errDown)} },
		"writes fail": func() *faulty {
			failing := times(3, errDown)
			return &faulty{Store: filled(t, started), put: func(put func() (uint64, error)) (uint64, error) {
				if err := failing(); err != nil {
					return 0, err
				}
				return put()
			}}
		},
	}
	for what, open := range stores {
		s := open()
		_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandPause, note(t0))
		assert.ErrorIs(t, err, errDown, what)

		s = open()
		e, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRollback, note(t0))
		require.NoError(t, err, what)
		assert.Equal(t, rollout.KindRolledBack, e.Kind, what)
		assert.Equal(t, "off", rules(t, string(read(t, s).Data))["order"], what)

		s = open()
		e, err = rollout.Stop(t.Context(), s, note(t0))
		require.NoError(t, err, what)
		assert.Equal(t, rollout.KindStopped, e.Kind, what)
		assert.True(t, set(t, string(read(t, s).Data)).Stop, what)
	}
}

func TestRollbackEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	s := &faulty{Store: filled(t, lane), watch: func() error {
		if calls++; calls == 4 {
			cancel()
		}
		return errDown
	}}
	_, err := rollout.Run(ctx, s, "lane", rollout.CommandRollback, note(t0))
	assert.ErrorIs(t, err, context.Canceled)
	assert.ErrorIs(t, err, errDown, "and says what the last attempt met")
	_, err = rollout.Run(t.Context(), s.Store, "nobody", rollout.CommandRollback, note(t0))
	var none *rollout.NoPlanError
	assert.ErrorAs(t, err, &none, "what no attempt can change ends it at once")
}

// A store may write and fail to say so.
func TestAWriteWhoseAnswerIsLostCountsOnce(t *testing.T) {
	lose := times(1, errDown)
	s := &faulty{Store: filled(t, after(t, lane, rollout.CommandStart)), put: func(put func() (uint64, error)) (uint64, error) {
		revision, err := put()
		if lost := lose(); err == nil && lost != nil {
			return 0, lost
		}
		return revision, err
	}}
	e, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRollback, note(t0))
	require.NoError(t, err)
	require.NotNil(t, e, "it was this call that rolled back")
	assert.Equal(t, read(t, s).Revision, e.Revision)
	list, err := s.History(t.Context())
	require.NoError(t, err)
	assert.Len(t, list, 2)
}

func TestUpdateGivesUpInTheEnd(t *testing.T) {
	s := &faulty{Store: filled(t, lane), put: func(func() (uint64, error)) (uint64, error) { return 0, rule.ErrConflict }}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	decided := 0
	_, err := rollout.Update(ctx, s, func(data []byte) ([]byte, *rollout.Event, error) {
		decided++
		if decided == 5 {
			s.put = nil
		}
		return rollout.Change(data, "lane", rollout.CommandStart, note(t0))
	})
	require.NoError(t, err)
	assert.Equal(t, 5, decided, "it decides anew each time")

	s.put = func(func() (uint64, error)) (uint64, error) { return 0, rule.ErrConflict }
	_, err = rollout.Run(ctx, s, "lane", rollout.CommandPause, note(t0))
	assert.ErrorIs(t, err, rule.ErrConflict)
	assert.NoError(t, ctx.Err(), "it has ended by itself")

	s.put = func(func() (uint64, error)) (uint64, error) { return 0, &rule.TooLargeError{Size: 2, Limit: 1} }
	_, err = rollout.Run(ctx, s, "lane", rollout.CommandRollback, note(t0))
	var large *rule.TooLargeError
	assert.ErrorAs(t, err, &large)
}

func TestStopAndUnstop(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	s := filled(t, doc)
	for range 2 {
		_, err := rollout.Stop(t.Context(), s, note(t0))
		require.NoError(t, err)
	}
	d := read(t, s)
	assert.Equal(t, "stopped: a test", d.Reason)
	e, err := rollout.Stop(t.Context(), s, note(t0))
	require.NoError(t, err)
	assert.Nil(t, e, "it is on")
	engine, err := rule.NewEngine(set(t, string(d.Data)))
	require.NoError(t, err)
	assert.True(t, engine.Status().Stopped)

	e, err = rollout.Unstop(t.Context(), s, note(t0.Add(time.Hour)))
	require.NoError(t, err)
	assert.Equal(t, rollout.KindUnstopped, e.Kind)
	assert.Equal(t, rules(t, doc), rules(t, string(read(t, s).Data)))

	empty := rule.NewMemoryStore()
	_, err = rollout.Stop(t.Context(), empty, note(t0))
	require.NoError(t, err)
	assert.True(t, set(t, string(read(t, empty).Data)).Stop, "a document that comes later finds it on")
}

func TestHistory(t *testing.T) {
	s := filled(t, lane)
	for i, c := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote, rollout.CommandRollback} {
		_, err := rollout.Run(t.Context(), s, "lane", c, note(t0.Add(time.Duration(i)*time.Hour)))
		require.NoError(t, err)
	}
	list, err := rollout.History(t.Context(), s)
	require.NoError(t, err)
	require.Len(t, list, 4)
	assert.True(t, list[0].Current)
	assert.Equal(t, "plan lane: rolled_back: a test", list[0].Reason)
	assert.Equal(t, t0.Add(2*time.Hour), list[0].Time)
	assert.Contains(t, list[0].Changes, rollout.Difference{Path: "rules[order].enabled", After: "false"})
	assert.Contains(t, list[1].Changes, rollout.Difference{Path: "rules[order].percent", Before: "0", After: "1"})
	assert.Contains(t, list[1].Changes, rollout.Difference{Path: "rules[inventory].percent", Before: "0", After: "1"})
	assert.Contains(t, list[1].Changes, rollout.Difference{Path: "plans.lane.state.phase", Before: `"internal"`, After: `"running"`})
	assert.True(t, list[3].First)
	assert.Equal(t, []rollout.Difference{}, list[3].Changes)
	assert.Equal(t, "ann", list[3].Author)
}

func TestRestoreOfARevision(t *testing.T) {
	s := filled(t, lane)
	var revisions []uint64
	for _, c := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote, rollout.CommandRollback} {
		e, err := rollout.Run(t.Context(), s, "lane", c, note(t0))
		require.NoError(t, err)
		revisions = append(revisions, e.Revision)
	}
	later := t0.Add(48 * time.Hour)
	_, err := rollout.Restore(t.Context(), s, revisions[1], revisions[1], note(later))
	assert.ErrorIs(t, err, rule.ErrConflict, "whoever restores has not seen the rollback")
	e, err := rollout.Restore(t.Context(), s, revisions[1], revisions[2], note(later))
	require.NoError(t, err)
	d := read(t, s)
	assert.Equal(t, e.Revision, d.Revision)
	assert.Equal(t, "1", rules(t, string(d.Data))["order"])
	p := plan(t, string(d.Data))
	assert.Equal(t, rollout.Running, p.State.Phase)
	assert.Equal(t, later, p.State.Since, "the hold starts anew: two days have not been watched")
	assert.Equal(t, later, p.State.Entered)

	_, err = rollout.Stop(t.Context(), s, note(later))
	require.NoError(t, err)
	e, err = rollout.Restore(t.Context(), s, revisions[0], read(t, s).Revision, note(later))
	require.NoError(t, err)
	assert.True(t, set(t, string(read(t, s).Data)).Stop, "the kill switch stays on")
	_, err = rollout.Restore(t.Context(), s, 999, e.Revision, note(later))
	assert.ErrorContains(t, err, "revision 999 is not among the last")

	bad, err := s.Put(t.Context(), rule.Document{Data: []byte("nonsense")}, e.Revision)
	require.NoError(t, err)
	_, err = rollout.Restore(t.Context(), s, bad, bad, note(later))
	assert.ErrorContains(t, err, "not JSON")
	list, err := rollout.History(t.Context(), s)
	require.NoError(t, err)
	assert.NotEmpty(t, list[0].Err)
	assert.Equal(t, []rollout.Difference{{Before: list[0].Changes[0].Before, After: "nonsense"}}, list[0].Changes)
	_, err = rollout.Restore(t.Context(), s, revisions[0], bad, note(later))
	assert.NoError(t, err, "a faulty document is replaced")
}

func TestDiff(t *testing.T) {
	assert.Empty(t, rollout.Diff([]byte(lane), []byte(lane)))
	assert.Empty(t, rollout.Diff([]byte(`{"a":1, "b":[]}`), []byte(`{"b":[],"a":1}`)))
	assert.Equal(t, []rollout.Difference{
		{Path: "default", After: `"version=stable"`},
		{Path: "rules[a].match[0].values", Before: `["x"]`, After: `["y"]`},
		{Path: "rules[a].percent", Before: "5", After: "6"},
		{Path: "rules[b]", Before: `{"id":"b"}`},
		{Path: "rules[c]", After: `{"id":"c","x":"<&>"}`},
		{Path: "stop", Before: "true"},
	}, rollout.Diff(
		[]byte(`{"rules":[{"id":"b"},{"id":"a","percent":5,"match":[{"values":["x"]}]}],"stop":true}`),
		[]byte(`{"rules":[{"id":"a","percent":6,"match":[{"values":["y"]}]},{"id":"c","x":"<&>"}],"default":"version=stable"}`)))

	var many, more strings.Builder
	for range 300 {
		many.WriteString(`"aaaa",`)
	}
	more.WriteString(many.String())
	more.WriteString(`"new",`)
	d := rollout.Diff([]byte(`{"values":[`+many.String()+`"z"]}`), []byte(`{"values":[`+more.String()+`"z"]}`))
	assert.Equal(t, []rollout.Difference{{Path: "values", After: `1: ["new"]`}}, d)

	var wide strings.Builder
	for i := range 1000 {
		wide.WriteString(`"` + strings.Repeat("k", i+1) + `":1,`)
	}
	d = rollout.Diff([]byte(`{"z":{"a":1}}`), []byte(`{"z":{`+wide.String()+`"a":2}}`))
	assert.Len(t, d, rollout.MaxDifferences)

	deep := func(v string) []byte {
		return []byte(strings.Repeat(`{"`+strings.Repeat("k", 100)+`":`, 3000) + v + strings.Repeat("}", 3000))
	}
	d = rollout.Diff(deep("1"), deep("2"))
	require.Len(t, d, 1, "what lies deep differs as a whole")
	assert.Less(t, len(d[0].Path), 5000)
	d = rollout.Diff([]byte(`{"`+strings.Repeat("k", 1000)+`":1}`), []byte(`{}`))
	assert.Less(t, len(d[0].Path), 200)
	assert.Equal(t, []rollout.Difference{{Before: `{} {}`, After: `{}`}}, rollout.Diff([]byte(`{} {}`), []byte(`{}`)), "no JSON")
}

// What is in force is the last good document, so that is what has to be rolled back.
func TestRollbackOverAFaultyDocument(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	open := func() *rule.MemoryStore {
		s := filled(t, doc)
		_, err := s.Put(t.Context(), rule.Document{Data: []byte(`{"rulez": []}`), Author: "bob"}, 1)
		require.NoError(t, err)
		return s
	}
	s := open()
	_, err := rollout.Run(t.Context(), s, "lane", rollout.CommandPause, note(t0))
	require.ErrorContains(t, err, "rulez")
	e, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRollback, note(t0))
	require.NoError(t, err)
	assert.Equal(t, rollout.KindRolledBack, e.Kind)
	assert.Equal(t, "off", rules(t, string(read(t, s).Data))["order"])

	s, now := open(), t0.Add(25*time.Hour)
	_, err = rollout.Evaluate(t.Context(), s, "lane", report(plan(t, doc), pass, now), note(now))
	require.ErrorContains(t, err, "rulez")
	e, err = rollout.Evaluate(t.Context(), s, "lane", report(plan(t, doc), fail, now), note(now))
	require.NoError(t, err)
	assert.True(t, e.Breach())
	assert.Equal(t, "off", rules(t, string(read(t, s).Data))["order"])

	s = open()
	s.Delete()
	_, err = rollout.Run(t.Context(), s, "lane", rollout.CommandRollback, note(t0))
	assert.Error(t, err, "without a document everything is stable")
	assert.False(t, read(t, s).Exists())
}

// It is the last good document that is in force, and a kill switch in it is on.
func TestStopOverAFaultyDocument(t *testing.T) {
	doc := after(t, lane, rollout.CommandStart, rollout.CommandPromote)
	s := filled(t, doc)
	_, err := s.Put(t.Context(), rule.Document{Data: []byte(`{"rulez": []}`), Author: "bob"}, 1)
	require.NoError(t, err)
	stopped, err := rollout.Stop(t.Context(), s, note(t0))
	require.NoError(t, err)
	assert.True(t, set(t, string(read(t, s).Data)).Stop)

	faulty, err := s.Put(t.Context(), rule.Document{Data: []byte("nonsense")}, stopped.Revision)
	require.NoError(t, err)
	e, err := rollout.Stop(t.Context(), s, note(t0))
	require.NoError(t, err)
	assert.Nil(t, e, "in what is in force it is on")
	_, err = rollout.Restore(t.Context(), s, 1, faulty, note(t0))
	require.NoError(t, err)
	assert.True(t, set(t, string(read(t, s).Data)).Stop, "a restored revision does not switch it off")

	_, err = rollout.Unstop(t.Context(), s, note(t0))
	require.NoError(t, err)
	assert.Equal(t, rules(t, doc), rules(t, string(read(t, s).Data)), "nothing is lost")

	broken := &noHistory{filled(t, "nonsense")}
	_, err = rollout.Stop(t.Context(), broken, note(t0))
	require.NoError(t, err, "it waits for no history")
	assert.True(t, set(t, string(read(t, broken).Data)).Stop)
}

type noHistory struct{ rule.Store }

func (noHistory) History(context.Context) ([]rule.Document, error) { return nil, errDown }

// The write whose answer was lost may come through after the next one has begun.
func TestAWriteThatComesLateCountsOnce(t *testing.T) {
	n, late := 0, func() {}
	s := &faulty{Store: filled(t, after(t, lane, rollout.CommandStart))}
	s.put = func(put func() (uint64, error)) (uint64, error) {
		switch n++; n {
		case 1:
			late = func() { _, _ = put() }
			return 0, errDown
		case 2:
			late()
		}
		return put()
	}
	e, err := rollout.Run(t.Context(), s, "lane", rollout.CommandRollback, note(t0))
	require.NoError(t, err)
	require.NotNil(t, e, "it was this call that rolled back: somebody has to be told")
	assert.Equal(t, read(t, s).Revision, e.Revision)
}
