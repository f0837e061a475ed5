package rule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
)

func write(t testing.TB, path, data string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(data), 0o644))
}

type event struct {
	doc rule.Document
	err error
}

// events reads a Watch for the rest of the test.
func events(t testing.TB, s rule.Store) <-chan event {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, done := make(chan event, 1000), make(chan struct{})
	go func() {
		defer close(done)
		for d, err := range s.Watch(ctx) {
			c <- event{d, err}
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func next(t testing.TB, c <-chan event) event {
	t.Helper()
	select {
	case e := <-c:
		return e
	case <-time.After(10 * time.Second):
		require.Fail(t, "nothing was yielded")
		return event{}
	}
}

const quick = 2 * time.Millisecond

// Whatever way a file is replaced, it is followed, and never counts as gone.
func TestFileIsReplaced(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "rules.json")
	doc := func(i int) string { return fmt.Sprintf(`{"meta":{"n":%d}}`, i) }
	ways := map[string]func(t *testing.T, data string){
		"rename": func(t *testing.T, data string) {
			write(t, path+".new", data)
			require.NoError(t, os.Rename(path+".new", path))
		},
		"rename of a file with an old time": func(t *testing.T, data string) {
			write(t, path+".new", data)
			old := time.Unix(1, 0)
			require.NoError(t, os.Chtimes(path+".new", old, old))
			require.NoError(t, os.Rename(path+".new", path))
		},
		"in place": func(t *testing.T, data string) {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString(data) // as long as the one before
			require.NoError(t, err)
			require.NoError(t, f.Close())
		},
		"removed and created again": func(t *testing.T, data string) {
			require.NoError(t, os.Remove(path))
			looked := time.NewTimer(20 * quick)
			<-looked.C // it is missed, surely
			write(t, path+".new", data)
			require.NoError(t, os.Rename(path+".new", path))
		},
	}
	write(t, path, doc(10))
	c := events(t, rule.NewFileStore(path, rule.WithInterval(quick)))
	assert.Equal(t, doc(10), string(next(t, c).doc.Data))
	i := 10
	for name, replace := range ways {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				i++
				replace(t, doc(i))
				e := next(t, c)
				require.NoError(t, e.err)
				assert.True(t, e.doc.Exists())
				assert.Equal(t, doc(i), string(e.doc.Data))
			}
		})
	}
	assert.Empty(t, c)
}

// The way a ConfigMap is mounted: the file is a link through a link to a
// directory that is swapped.
func TestFileInAConfigMap(t *testing.T) {
	dir := t.TempDir()
	project := func(n int) {
		data := filepath.Join(dir, fmt.Sprintf("..data_%d", n))
		require.NoError(t, os.Mkdir(data, 0o755))
		write(t, filepath.Join(data, "rules.json"), fmt.Sprintf(`{"meta":{"n":%d}}`, n))
		require.NoError(t, os.Symlink(filepath.Base(data), filepath.Join(dir, "..tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
		if n > 0 {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..data_%d", n-1))))
		}
	}
	project(0)
	path := filepath.Join(dir, "rules.json")
	require.NoError(t, os.Symlink(filepath.Join("..data", "rules.json"), path))
	c := events(t, rule.NewFileStore(path, rule.WithInterval(quick)))
	for n := range 5 {
		if n > 0 {
			project(n)
		}
		e := next(t, c)
		require.NoError(t, e.err)
		assert.Equal(t, fmt.Sprintf(`{"meta":{"n":%d}}`, n), string(e.doc.Data))
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, entries, 3, "a store that is only watched writes nothing")
}

func TestFileAbsentForLongIsDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "rules.json")
	s := rule.NewFileStore(path, rule.WithInterval(quick), rule.WithDeletedAfter(50*time.Millisecond), rule.WithInterval(0), rule.WithDeletedAfter(-1), nil)
	c := events(t, s)
	first := next(t, c)
	require.NoError(t, first.err)
	assert.False(t, first.doc.Exists(), "absent at the start: no document, at once")
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	write(t, path, "{}")
	created := next(t, c).doc
	assert.True(t, created.Exists())
	require.NoError(t, os.RemoveAll(filepath.Dir(path)))
	assert.False(t, next(t, c).doc.Exists())
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	write(t, path, "{}")
	assert.Equal(t, created.Revision, next(t, c).doc.Revision, "where nobody Put, the content makes the revision")
}

func TestFileThatCannotBeRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.json")
	write(t, path, `{"rules":[{"id":"r","tag":"version=v2"}]}`)
	var log logBuffer
	e, err := rule.NewEngine(nil, rule.WithLogger(log.logger()))
	require.NoError(t, err)
	follow(t, e, rule.NewFileStore(path, rule.WithInterval(quick)))
	gray := func() bool { return !e.Decide(nil).Tag.IsZero() }
	require.Eventually(t, gray, 5*time.Second, time.Millisecond)

	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o755))
	require.Eventually(t, func() bool { return e.Status().Err != nil }, 5*time.Second, time.Millisecond)
	assert.True(t, gray(), "the last good set stays")
	assert.ErrorContains(t, e.Status().Err, path)
	require.NoError(t, os.Remove(path))
	write(t, path, strings.Repeat(" ", rule.MaxBytes+1))
	require.Eventually(t, func() bool { return log.count("cannot be read") == 2 }, 5*time.Second, time.Millisecond)
	assert.True(t, gray())
	require.NoError(t, os.Remove(path))
	write(t, path, `{"rules":[{"id":"r","tag":"version=v2"}]}`)
	require.Eventually(t, func() bool { return e.Status().Err == nil }, 5*time.Second, time.Millisecond)
	assert.True(t, gray())
	assert.Equal(t, 2, log.count("cannot be read"), "one line for each error, not for each look")
	assert.Equal(t, 1, log.count("can be read again"))
}

// Absence that an error interrupts begins anew: only a file that is absent all
// the time is deleted.
func TestFileIsAbsentAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.json")
	write(t, path, "{}")
	const after = 300 * time.Millisecond
	c := events(t, rule.NewFileStore(path, rule.WithInterval(quick), rule.WithDeletedAfter(after)))
	require.True(t, next(t, c).doc.Exists())
	require.NoError(t, os.Remove(path))
	looked := time.NewTimer(20 * quick)
	<-looked.C // it is missed, surely
	require.NoError(t, os.Mkdir(path, 0o755))
	require.Error(t, next(t, c).err)
	looked.Reset(after)
	<-looked.C
	gone := time.Now()
	require.NoError(t, os.Remove(path))
	e := next(t, c)
	require.NoError(t, e.err)
	assert.False(t, e.doc.Exists())
	assert.GreaterOrEqual(t, time.Since(gone), after, "it counts from when it was absent again")
}

func TestFileEditedBesideThePuts(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "rules.json")
	s := rule.NewFileStore(path)
	write(t, path, "edited first")
	require.NoError(t, os.Chmod(path, 0o600))
	edited := current(t, s)
	_, err := s.Put(ctx, rule.Document{Data: []byte("x")}, 0)
	require.ErrorIs(t, err, rule.ErrConflict)

	first, err := s.Put(ctx, rule.Document{Data: []byte("put first"), Author: "ann"}, edited)
	require.NoError(t, err)
	assert.Greater(t, first, edited)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "the mode stays")

	write(t, path, "edited again")
	again := current(t, s)
	assert.Greater(t, again, first)
	_, err = s.Put(ctx, rule.Document{Data: []byte("x")}, first)
	require.ErrorIs(t, err, rule.ErrConflict, "an edit is a revision of its own")
	write(t, path, "edited thrice")
	assert.NotEqual(t, again, current(t, s))

	// What somebody else wrote with an old copy is an edit, too.
	write(t, path, "put first")
	assert.Equal(t, first, current(t, s), "the same content, and nothing Put since")
	write(t, path, "edited again")

	second, err := s.Put(ctx, rule.Document{Data: []byte("put second"), Author: "bob", Reason: "why not"}, current(t, s))
	require.NoError(t, err)
	write(t, path, "put first")
	restored := current(t, s)
	assert.Greater(t, restored, second, "an old content is no old revision")

	list, err := rule.NewFileStore(path).History(ctx)
	require.NoError(t, err)
	var texts []string
	for _, d := range list {
		texts = append(texts, string(d.Data)+"/"+d.Author+"/"+d.Reason)
		assert.False(t, d.Time.IsZero())
	}
	assert.Equal(t, []string{"put first//", "put second/bob/why not", "edited again//", "put first/ann/", "edited first//"}, texts)
	assert.Equal(t, restored, list[0].Revision)
}

// Put writes the history, the file, and the history again. Whatever of it a
// crash leaves, it is clear what is in force.
func TestFilePutBreaksOff(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "rules.json")
	s := rule.NewFileStore(path)
	read := func(path string) string {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(data)
	}
	first := put(t, s, "first", 0)
	second := put(t, s, "second", first)
	history := read(path + ".history")
	third := put(t, s, "third", second)
	after := read(path + ".history")
	pending := strings.Replace(after, `}}`, `},"pending":true}`, 1)
	require.NotEqual(t, after, pending)

	contents := func() (list []string) {
		all, err := s.History(ctx)
		require.NoError(t, err)
		for _, d := range all {
			list = append(list, string(d.Data))
		}
		return list
	}
	write(t, path+".history", pending)
	write(t, path, "second")
	assert.Equal(t, second, current(t, s), "before the file was replaced: not in force")
	assert.Equal(t, []string{"second", "first"}, contents())
	_, err := s.Put(ctx, rule.Document{}, third)
	require.ErrorIs(t, err, rule.ErrConflict)

	write(t, path, "third")
	assert.Equal(t, third, current(t, s), "after the file was replaced: in force")
	assert.Equal(t, []string{"third", "second", "first"}, contents())

	write(t, path, "second")
	fourth := put(t, s, "fourth", second)
	assert.Greater(t, fourth, third, "a revision is never used twice")
	assert.Equal(t, []string{"fourth", "second", "first"}, contents())

	// A history that was lost or damaged stops no reader.
	write(t, path+".history", "damaged")
	assert.NotZero(t, current(t, s))
	_, err = s.Put(ctx, rule.Document{}, current(t, s))
	assert.ErrorContains(t, err, path+".history")
	_, err = s.History(ctx)
	assert.ErrorContains(t, err, path+".history")
	write(t, path+".history", history[:len(history)/2])
	_, err = s.History(ctx)
	assert.Error(t, err)
}

func TestFilePutThroughALink(t *testing.T) {
	dir := t.TempDir()
	target, path := filepath.Join(dir, "target.json"), filepath.Join(dir, "rules.json")
	write(t, target, "old")
	require.NoError(t, os.Symlink(target, path))
	s := rule.NewFileStore(path)
	put(t, s, "new", current(t, s))
	data, err := os.ReadFile(target)
	require.NoError(t, err)
	assert.Equal(t, "new", string(data))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&os.ModeSymlink, "the link stays a link")
}

func TestFilePutIntoNowhere(t *testing.T) {
	s := rule.NewFileStore(filepath.Join(t.TempDir(), "none", "rules.json"))
	_, err := s.Put(context.Background(), rule.Document{Data: []byte("{}")}, 0)
	require.Error(t, err)
	assert.True(t, errors.Is(err, os.ErrNotExist), err)
	list, err := s.History(context.Background())
	require.NoError(t, err)
	assert.Empty(t, list)
}

// A Put through one store is seen at once by who watches the same store.
func TestFilePutWakesWatchers(t *testing.T) {
	s := rule.NewFileStore(filepath.Join(t.TempDir(), "rules.json"), rule.WithInterval(time.Hour))
	c := events(t, s)
	assert.False(t, next(t, c).doc.Exists())
	rev := put(t, s, "{}", 0)
	assert.Equal(t, rev, next(t, c).doc.Revision)
}

func TestNotesAreBounded(t *testing.T) {
	for name, s := range map[string]rule.Store{
		"memory": rule.NewMemoryStore(),
		"file":   rule.NewFileStore(filepath.Join(t.TempDir(), "rules.json")),
	} {
		_, err := s.Put(context.Background(), rule.Document{Reason: strings.Repeat("x", rule.MaxNoteBytes+1)}, 0)
		assert.Error(t, err, name)
		assert.Zero(t, current(t, s), name)
	}
}
