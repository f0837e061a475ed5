package rule

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// The history of a file is a file beside it: one line of JSON that says what
// the last Put wrote, and one line for each document, the newest first.
//
// Two files cannot be written as one, so the order counts. Put writes the
// history with the new document in it, marked as pending; then it replaces the
// file; then it takes the mark off. A pending document is taken for written
// where the file holds it, and for never written where it does not. So a crash
// at any moment leaves a history that tells what was in force.

// heading is the first line. It is comparable: two that are equal say the same.
type heading struct {
	// Written and Before are what the last Put wrote, and the one before it.
	Written stamp `json:"written"`
	Before  stamp `json:"before"`
	Pending bool  `json:"pending,omitempty"`
}

// stamp is a document that Put wrote, without its content.
type stamp struct {
	Count  uint64 `json:"count"` // of Puts so far
	Sum    string `json:"sum"`   // of the content
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
	Time   string `json:"time,omitempty"`
}

// editBits is the room between two revisions that Put gives: documents that
// come about otherwise get a revision in it, made of their content.
const editBits = 24

func (s *stamp) revision() uint64 { return s.Count << editBits }

// latest returns what was written last, given what the file holds.
func (h *heading) latest(sum string) *stamp {
	if h.Pending && sum != h.Written.Sum {
		return &h.Before
	}
	return &h.Written
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// document returns what is known of the content of the file, and whether it is
// what Put wrote last.
func (h *heading) document(data []byte) (_ Document, byPut bool) {
	sum := sumOf(data)
	s := h.latest(sum)
	if s.Count > 0 && s.Sum == sum {
		at, _ := time.Parse(time.RFC3339Nano, s.Time)
		return Document{Data: data, Revision: s.revision(), Author: s.Author, Reason: s.Reason, Time: at}, true
	}
	var edit uint64
	_, _ = fmt.Sscanf(sum[:editBits/4], "%x", &edit)
	return Document{Data: data, Revision: s.revision() + 1 + edit%(1<<editBits-1)}, false
}

// entry is a line of the history.
type entry struct {
	Revision uint64    `json:"revision"`
	Author   string    `json:"author,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Time     time.Time `json:"time,omitzero"`
	Gzip     []byte    `json:"gzip"` // of the content
}

func newEntry(d *Document) (entry, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(d.Data); err != nil {
		return entry{}, err
	}
	if err := w.Close(); err != nil {
		return entry{}, err
	}
	return entry{Revision: d.Revision, Author: d.Author, Reason: d.Reason, Time: d.Time, Gzip: b.Bytes()}, nil
}

func (e *entry) document() (Document, error) {
	d := Document{Revision: e.Revision, Author: e.Author, Reason: e.Reason, Time: e.Time}
	r, err := gzip.NewReader(bytes.NewReader(e.Gzip))
	if err == nil {
		d.Data, err = io.ReadAll(io.LimitReader(r, MaxBytes))
	}
	if err != nil {
		return Document{}, fmt.Errorf("revision %d: %w", e.Revision, err)
	}
	return d, nil
}

func (s *FileStore) historyPath() string { return s.path + ".history" }

// readHeading reads the first line of the history; zero where there is none
// that can be read: rules are followed without it.
func (s *FileStore) readHeading() (h heading) {
	f, err := os.Open(s.historyPath())
	if err != nil {
		return heading{}
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 1<<20)).ReadBytes('\n')
	if err != nil || json.Unmarshal(line, &h) != nil {
		return heading{}
	}
	return h
}

// contents is what a FileStore holds.
type contents struct {
	heading heading
	entries []entry // the newest first; what the file holds is the first where it exists
	sum     string  // of what the file holds
	exists  bool
}

// revision is that of the current document, 0 where there is none.
func (c *contents) revision() uint64 {
	if !c.exists {
		return 0
	}
	return c.entries[0].Revision
}

// load reads everything, puts it right where a Put broke off, and adds what
// the file holds where nobody Put it.
func (s *FileStore) load(ctx context.Context) (c contents, err error) {
	var data []byte
	for range 10 {
		if c.heading, c.entries, err = s.readHistory(); err != nil {
			return c, err
		}
		var h heading
		data, h, err = s.read(ctx)
		if c.exists = err == nil; !c.exists && !errors.Is(err, fs.ErrNotExist) {
			return c, err
		}
		if !c.exists || h == c.heading {
			err = nil
			break
		}
		err = errUnsteady // written in between; a reader holds no lock
	}
	if err != nil {
		return c, err
	}
	h := &c.heading
	if c.exists {
		c.sum = sumOf(data)
	}
	if h.latest(c.sum) != &h.Written && len(c.entries) > 0 && c.entries[0].Revision == h.Written.revision() {
		c.entries = c.entries[1:] // was never in force
	}
	if !c.exists {
		return c, nil
	}
	d, _ := h.document(data)
	if len(c.entries) == 0 || c.entries[0].Revision != d.Revision {
		if info, err := os.Stat(s.path); err == nil {
			d.Time = info.ModTime()
		}
		e, err := newEntry(&d)
		if err != nil {
			return c, err
		}
		c.entries = slices.Insert(c.entries, 0, e)
	}
	c.entries = c.entries[:min(len(c.entries), HistoryLength)]
	return c, nil
}

var errUnsteady = errors.New("rule: file: it changes faster than it can be read")

func (s *FileStore) readHistory() (h heading, entries []entry, err error) {
	f, err := os.Open(s.historyPath())
	if errors.Is(err, fs.ErrNotExist) {
		return h, nil, nil
	}
	if err != nil {
		return h, nil, err
	}
	defer f.Close()
	dec := json.NewDecoder(f)
	if err := dec.Decode(&h); err != nil {
		return h, nil, fmt.Errorf("%s: %w", s.historyPath(), err)
	}
	for len(entries) < HistoryLength {
		var e entry
		err := dec.Decode(&e)
		if err == io.EOF {
			break
		}
		if err != nil {
			return h, nil, fmt.Errorf("%s: %w", s.historyPath(), err)
		}
		entries = append(entries, e)
	}
	return h, entries, nil
}

// write makes d the current document, after c.
func (s *FileStore) write(c *contents, d Document) (uint64, error) {
	next := heading{
		Written: stamp{
			Count: c.heading.Written.Count + 1, Sum: sumOf(d.Data),
			Author: d.Author, Reason: d.Reason, Time: d.Time.Format(time.RFC3339Nano),
		},
		Before:  *c.heading.latest(c.sum),
		Pending: true,
	}
	d.Revision = next.Written.revision()
	e, err := newEntry(&d)
	if err != nil {
		return 0, err
	}
	entries := slices.Insert(c.entries, 0, e)
	entries = entries[:min(len(entries), HistoryLength)]

	target, err := filepath.EvalSymlinks(s.path)
	if err != nil {
		target = s.path
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(target); err == nil {
		mode = info.Mode().Perm()
	}
	if err := s.writeHistory(next, entries, mode); err != nil {
		return 0, err
	}
	if err := writeFile(target, mode, d.Data); err != nil {
		return 0, err
	}
	next.Pending = false
	// From here on d is in force, whether or not the mark comes off.
	_ = s.writeHistory(next, entries, mode)
	return d.Revision, nil
}

func (s *FileStore) writeHistory(h heading, entries []entry, mode os.FileMode) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(h); err != nil {
		return err
	}
	for i := range entries {
		if err := enc.Encode(&entries[i]); err != nil {
			return err
		}
	}
	return writeFile(s.historyPath(), mode, b.Bytes())
}
