package rule_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

const twoRules = `{"carry":["channel"],"default":"version=d","rules":[
	{"id":"a","match":[{"attr":"uid","op":"equals","values":["1"]}],"tag":"version=a"},
	{"id":"b","percent":100,"tag":"version=b"}]}`

// following returns an engine that follows a store which a test writes.
func following(t *testing.T, doc string) (*rule.Engine, func(doc string) uint64) {
	t.Helper()
	store := rule.NewMemoryStore()
	e, err := rule.NewEngine(nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Follow(ctx, store)
	}()
	t.Cleanup(func() { cancel(); <-done })
	var at uint64
	write := func(doc string) uint64 {
		var err error
		at, err = store.Put(t.Context(), rule.Document{Data: []byte(doc)}, at)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return e.Status().Revision == at }, 10*time.Second, time.Millisecond)
		return at
	}
	write(doc)
	return e, write
}

func version(e *rule.Engine, uid string) string { return e.Decide(user(uid)).Tag.Get("version") }

func TestSuspend(t *testing.T) {
	e := engine(t, twoRules)
	require.Equal(t, "a", version(e, "1"))
	s := e.Suspend("a", "nobody")
	assert.Equal(t, "b", version(e, "1"), "the other rule is in force")
	x := e.Explain(user("1"))
	assert.Equal(t, rule.VerdictDisabled, x.Rules[0].Verdict)
	assert.Equal(t, "b", x.Decision.Tag.Get("version"))
	both := e.Suspend("b")
	assert.Equal(t, "d", version(e, "1"), "and the default")
	st := e.Status()
	assert.Equal(t, []string{"a", "b", "nobody"}, st.Suspended)
	assert.Zero(t, st.Rules)
	assert.False(t, st.Stopped)
	both.End()
	both.End()
	assert.True(t, both.Ended())
	assert.False(t, s.Ended())
	assert.Equal(t, "b", version(e, "1"))
	require.NoError(t, e.Load(parse(t, twoRules)))
	assert.Equal(t, "b", version(e, "1"), "a set from code changes nothing about it")
	s.End()
	assert.Equal(t, "a", version(e, "1"))
	assert.Empty(t, e.Status().Suspended)
	assert.Equal(t, 2, e.Status().Rules)
}

func TestSuspendAll(t *testing.T) {
	e, write := following(t, twoRules)
	s := e.SuspendAll()
	assert.True(t, e.Decide(user("1")).Tag.IsZero())
	assert.True(t, e.Status().Stopped)
	assert.True(t, e.Status().SuspendedAll)
	write(twoRules + " ")
	assert.True(t, e.Decide(user("1")).Stopped)
	s.Until(1000)
	write(`{"stop":true}`)
	assert.True(t, s.Ended(), "the document says the same")
	write(twoRules)
	assert.Equal(t, "a", version(e, "1"))
}

// A document from before the rollback does not undo it; the rollback ends it, and so
// does what comes after that.
func TestSuspensionEndsWithTheRevision(t *testing.T) {
	const off = `{"rules":[{"id":"a","enabled":false,"tag":"version=a"},{"id":"b","percent":0,"tag":"version=b"}]}`
	t.Run("the one", func(t *testing.T) {
		e, write := following(t, twoRules)
		s := e.Suspend("a", "b")
		write(twoRules + " ")
		assert.Equal(t, "d", version(e, "1"), "a document from before")
		s.Until(4)
		write(twoRules + "  ")
		assert.Equal(t, "d", version(e, "1"), "another one")
		assert.False(t, s.Ended())
		write(twoRules) // revision 4
		assert.True(t, s.Ended())
		assert.Equal(t, "a", version(e, "1"))
	})
	t.Run("a later one", func(t *testing.T) {
		e, write := following(t, twoRules)
		s := e.Suspend("a")
		write(twoRules + " ")
		write(twoRules + "  ")
		s.Until(2)
		assert.True(t, s.Ended(), "is in force already")
		assert.Equal(t, "a", version(e, "1"))
	})
	t.Run("no rule in force", func(t *testing.T) {
		e, write := following(t, twoRules)
		s := e.Suspend("a", "b")
		write(off)
		assert.False(t, s.Ended(), "nobody has said what it waits for")
		write(twoRules)
		assert.Equal(t, "d", version(e, "1"))
		s.Until(1000) // of a store that has begun anew since
		assert.False(t, s.Ended())
		write(off)
		assert.True(t, s.Ended())
	})
}

func TestSuspendNotifies(t *testing.T) {
	var seen []string
	e, err := rule.NewEngine(parse(t, twoRules), rule.WithNotify(func(s rule.Status) { seen = append(seen, fmt.Sprint(s.Suspended, s.SuspendedAll)) }))
	require.NoError(t, err)
	s := e.Suspend("a")
	s.Until(1)
	s.End()
	s.End()
	e.SuspendAll().End()
	assert.Equal(t, []string{"[] false", "[a] false", "[] false", "[] true", "[] false"}, seen)
}

// Every decision is made with the rule or without it, and none after Suspend has
// returned is made with it.
func TestSuspendUnderReaders(t *testing.T) {
	e := engine(t, twoRules)
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
				if v := version(e, "1"); v != "a" && v != "b" {
					t.Errorf("version %q", v)
					return
				}
			}
		})
	}
	for range 200 {
		s := e.Suspend("a")
		assert.Equal(t, "b", version(e, "1"))
		s.End()
		assert.Equal(t, "a", version(e, "1"))
	}
	close(stop)
	wg.Wait()
}
