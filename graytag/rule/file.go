package rule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// FileStore holds a document in a file: one that operators edit, that a
// ConfigMap mounts, or that Put writes. It is safe for concurrent use; create
// one with [NewFileStore].
//
// The file is looked at once in a second, its content and not its times, so that
// it may be written in place, replaced by a rename or by a symbolic link, or
// removed and created again: each is followed, and a file that is absent for
// less than 5 s counts as being replaced. A file that can be read but holds
// nothing is an empty document, which no engine takes; a directory or a pipe in
// its place is an error, and the last good rules stay. A content that is not
// Put's is looked at twice, 20 ms apart, for it may be half written.
//
// Put writes beside the file FILE: FILE.history, which holds the revision and
// the last documents, and FILE.lock, which keeps processes on one machine apart
// (on systems with flock; a network file system may not honour it). A store that
// is only watched writes nothing. A document that was not written by Put has no
// author, and a revision made of the last Put's and of the content.
type FileStore struct {
	path     string
	interval time.Duration
	grace    time.Duration

	// writing keeps the Puts of this process apart; it is held while files are
	// written, and never by Watch.
	writing sync.Mutex

	// mu guards changed, for moments only.
	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every Put
}

var _ Store = (*FileStore)(nil)

// FileOption changes how a [FileStore] works.
type FileOption interface{ applyFile(*FileStore) }

type fileOptionFunc func(*FileStore)

func (f fileOptionFunc) applyFile(s *FileStore) { f(s) }

// WithInterval sets how often the file is looked at; the default, and what 0 and
// less mean, is one second. A Put through the same FileStore is seen at once.
func WithInterval(d time.Duration) FileOption {
	return fileOptionFunc(func(s *FileStore) {
		if d > 0 {
			s.interval = d
		}
	})
}

// WithDeletedAfter sets how long the file has to be absent to count as deleted;
// the default, and what 0 and less mean, is 5 seconds.
func WithDeletedAfter(d time.Duration) FileOption {
	return fileOptionFunc(func(s *FileStore) {
		if d > 0 {
			s.grace = d
		}
	})
}

// NewFileStore returns a store for the file at path, which need not be there.
func NewFileStore(path string, opts ...FileOption) *FileStore {
	s := &FileStore{
		path: path, interval: time.Second, grace: 5 * time.Second,
		changed: make(chan struct{}),
	}
	for _, o := range opts {
		if o != nil {
			o.applyFile(s)
		}
	}
	return s
}

// Watch implements [Store]. A file that is absent when Watch starts is no
// document, at once; one that vanishes later, after 5 seconds.
func (s *FileStore) Watch(ctx context.Context) iter.Seq2[Document, error] {
	return func(yield func(Document, error) bool) {
		w := fileWatch{store: s}
		tick := time.NewTicker(s.interval)
		defer tick.Stop()
		for {
			s.mu.Lock()
			changed := s.changed
			s.mu.Unlock()
			d, err, news := w.look(ctx, time.Now())
			if ctx.Err() != nil || news && !yield(d, err) || ctx.Err() != nil {
				return
			}
			var soon <-chan time.Time
			if w.unsettled {
				soon = time.After(settling)
			}
			select {
			case <-ctx.Done():
				return
			case <-soon:
			case <-tick.C:
			case <-changed:
			}
		}
	}
}

// settling is how long a content that nobody Put has to stay as it is before it
// counts: an editor that writes in place cuts the file off first.
const settling = 20 * time.Millisecond

// fileWatch is one sequence of Watch.
type fileWatch struct {
	store   *FileStore
	started bool
	seen    content // was yielded last, nil data where there was none
	absent  time.Time
	failing string // the error that was yielded last

	unsettled bool
	latest    content // what was there at the last look, where unsettled
	since     time.Time
}

// content is what one look finds.
type content struct {
	revision uint64
	data     []byte
	heading  heading
}

func (c *content) is(data []byte, h heading) bool {
	return c.data != nil && c.heading == h && bytes.Equal(c.data, data)
}

// look looks at the file once and tells whether there is something to yield.
func (w *fileWatch) look(ctx context.Context, now time.Time) (_ Document, _ error, news bool) {
	data, h, err := w.store.read(ctx)
	same := w.unsettled && w.latest.is(data, h)
	w.unsettled = false
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if w.absent.IsZero() {
			w.absent = now
		}
		if w.started && now.Sub(w.absent) < w.store.grace {
			return Document{}, nil, false // it is being replaced, perhaps
		}
		news = !w.started || w.seen.revision != 0 || w.failing != ""
		*w = fileWatch{store: w.store, started: true, absent: w.absent}
		return Document{}, nil, news
	case err != nil:
		w.absent = time.Time{} // there is something
		news = w.failing != err.Error()
		w.failing = err.Error()
		return Document{}, err, news
	}
	w.absent = time.Time{}
	if w.seen.is(data, h) && w.failing == "" {
		return Document{}, nil, false
	}
	d, byPut := h.document(data)
	if !byPut && !bytes.Equal(w.seen.data, data) {
		if !same {
			w.latest, w.since = content{data: data, heading: h}, now
		}
		if w.unsettled = now.Sub(w.since) < settling; w.unsettled {
			return Document{}, nil, false
		}
	}
	w.latest = content{}
	news = d.Revision != w.seen.revision || w.failing != ""
	w.started, w.seen, w.failing = true, content{d.Revision, data, h}, ""
	return d, nil, news
}

// read reads the file and what its history says of it, such that both belong
// together though somebody writes them meanwhile.
func (s *FileStore) read(ctx context.Context) ([]byte, heading, error) {
	for range 10 {
		before := s.readHeading()
		data, err := readFile(s.path)
		if err != nil {
			return nil, heading{}, err
		}
		if after := s.readHeading(); before == after {
			return data, after, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, heading{}, err
		}
	}
	return nil, heading{}, errUnsteady
}

// readFile reads a document.
func readFile(path string) ([]byte, error) {
	// To open a pipe waits for a writer, which nothing ends.
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("rule: file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("rule: file: %s is no regular file but %s", path, info.Mode())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("rule: file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("rule: file: %w", err)
	}
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("rule: file: %s holds more than %d bytes", path, MaxBytes)
	}
	return data, nil
}

// Put implements [Store]. It takes documents of up to [MaxBytes]. The file is
// replaced by a rename, after all has reached the disk; where it is a symbolic
// link, the file that the link points to is. Its mode stays, a new file has
// 0644.
func (s *FileStore) Put(ctx context.Context, d Document, ifRevision uint64) (uint64, error) {
	if err := checkSize(&d); err != nil {
		return 0, err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	unlock, err := lockFile(ctx, s.path+".lock")
	if err != nil {
		return 0, fmt.Errorf("rule: put: %w", err)
	}
	defer unlock()
	c, err := s.load(ctx)
	if err != nil {
		return 0, fmt.Errorf("rule: put: %w", err)
	}
	if current := c.revision(); current != ifRevision {
		return 0, conflict(current, ifRevision)
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("rule: put: %w", err)
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	revision, err := s.write(&c, d)
	if err != nil {
		return 0, fmt.Errorf("rule: put: %w", err)
	}
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	return revision, nil
}

// History implements [Store]. The document that is in the file now comes first,
// also where nobody has Put it.
func (s *FileStore) History(ctx context.Context) ([]Document, error) {
	c, err := s.load(ctx)
	if err != nil {
		return nil, fmt.Errorf("rule: history: %w", err)
	}
	list := make([]Document, 0, len(c.entries))
	for i := range c.entries {
		d, err := c.entries[i].document()
		if err != nil {
			return nil, fmt.Errorf("rule: history: %w", err)
		}
		list = append(list, d)
	}
	return list, nil
}

// writeFile replaces a file by a rename, such that after a crash it holds what
// it held before or all of what was written.
func writeFile(path string, mode os.FileMode, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}
