package rule

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Store holds the one document of a rule set, and what it was before.
// Implementations are safe for concurrent use; package ruletest tests them.
type Store interface {
	// Watch yields the current document first, then after every change, conflated
	// to the newest where the reader is slow. Where there is no document, or it
	// was deleted, it yields one that does not exist (see [Document.Exists]). The
	// same revision is never yielded twice in a row.
	//
	// An error is yielded with the zero Document and watching goes on; the reader
	// keeps the last document that it saw. The sequence is for a single use.
	// Leaving the loop or ending ctx releases everything; nothing is yielded after
	// that. Data must not be changed.
	Watch(ctx context.Context) iter.Seq2[Document, error]
	// Put writes d and its place in the history as one, where the revision of the
	// current document is ifRevision; 0 means that there must be none. It returns
	// the new revision, which is higher than ifRevision. It sets Revision, and
	// Time where that is zero. The error is, or wraps, [ErrConflict] where
	// another revision is current, and a [*TooLargeError] where d does not fit;
	// on any error nothing is written, as far as the store can tell. A store takes
	// any Data: what a rule set is, Parse knows.
	Put(ctx context.Context, d Document, ifRevision uint64) (uint64, error)
	// History returns the documents that were written, the newest first, the last
	// 50 of them. A deletion takes nothing out of it.
	History(ctx context.Context) ([]Document, error)
}

// HistoryLength is how many documents a history holds.
const HistoryLength = 50

// Document is a rule set as a store holds it.
type Document struct {
	// Data is what [Parse] reads.
	Data []byte
	// Revision names this state of the document; 0 where there is none. What it
	// counts is the store's own; it differs between any two states.
	Revision uint64
	// Author and Reason say who wrote it and why, for people.
	Author string
	Reason string
	// Time is when it was written.
	Time time.Time
}

// Exists tells whether there is a document. An empty one exists.
func (d Document) Exists() bool { return d.Revision != 0 }

// ErrConflict says that somebody else has written in between: read again, and
// decide again what to write.
var ErrConflict = errors.New("the document is not at the expected revision")

func conflict(current, expected uint64) error {
	return fmt.Errorf("rule: put: %w: it is at %d, not at %d", ErrConflict, current, expected)
}

// TooLargeError says that a document does not fit into its store.
type TooLargeError struct {
	Size  int // in bytes, as it would be stored
	Limit int // of the store, in bytes
}

// Error names both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("rule: put: document of %d bytes, the store takes %d", e.Size, e.Limit)
}

// MaxNoteBytes bounds the Author and the Reason of a document together.
const MaxNoteBytes = 8192

func checkSize(d *Document) error {
	if size := len(d.Data); size > MaxBytes {
		return &TooLargeError{Size: size, Limit: MaxBytes}
	}
	if size := len(d.Author) + len(d.Reason); size > MaxNoteBytes {
		return fmt.Errorf("rule: put: author and reason of %d bytes, at most %d are allowed", size, MaxNoteBytes)
	}
	return nil
}
