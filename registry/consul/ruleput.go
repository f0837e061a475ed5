package consul

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
)

const (
	// maxTxnBytes is what Consul takes as a transaction by default, as JSON with
	// the values in base64 (limits.txn_max_req_len).
	maxTxnBytes = 512 << 10
	// maxTxnOps is how many operations Consul takes in one.
	maxTxnOps = 64
)

// Put implements [rule.Store]: one transaction writes the document, its place in
// the history, and takes out what the history has no room for. A ctx without a
// deadline is given 10 s.
//
// Consul takes 512 KiB as one transaction, with the values in base64: documents
// fit that have no more than some 390,000 bytes, after gzip where they are 64 KiB
// or more. That is 100,000 numbers of seven digits, in order, and 10,000 rules.
// Others are a [*rule.TooLargeError], and nothing is written; where the servers are
// configured for more, say so with [WithMaxTransaction]. Where the transaction has
// no room for the second copy that goes into the history, that one is written
// before it, and is nothing until the transaction tells of it.
//
// Where the answer is lost, Put looks whether the document was written; only
// where it cannot be told either, an error may be wrong about that.
func (s *RuleStore) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	revision, err := s.put(ctx, d, ifRevision)
	var large *rule.TooLargeError
	switch {
	case err == nil:
		return revision, nil
	case errors.As(err, &large):
		return 0, large
	}
	return 0, s.errorf(err, "put")
}

func (s *RuleStore) put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	if size := len(d.Data); size > rule.MaxBytes {
		return 0, &rule.TooLargeError{Size: size, Limit: rule.MaxBytes}
	}
	if size := len(d.Author) + len(d.Reason); size > rule.MaxNoteBytes {
		return 0, fmt.Errorf("author and reason of %d bytes, at most %d are allowed", size, rule.MaxNoteBytes)
	}
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	value, err := encodeValue(d.Data)
	if err != nil {
		return 0, err
	}
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer end()

	current, err := s.read(ctx, s.key)
	if err != nil {
		return 0, err
	}
	if now := revisionOf(current); now != ifRevision {
		return 0, conflict(now, ifRevision)
	}
	old, err := s.index(ctx)
	if err != nil {
		return 0, err
	}
	w := &write{s: s, ifRevision: ifRevision, limit: s.r.config.maxTxn}
	if current != nil {
		by, err := s.byPut(ctx, current)
		if err != nil {
			return 0, err
		}
		if !by {
			w.keep(current, nextStamp(old.newest))
		}
	}
	w.add(value, newNote(&d), nextStamp(max(old.newest, w.at)))
	w.outdated = old.outdated(len(w.docs), maxTxnOps-1-2*len(w.docs))
	revision, err := w.run(ctx)
	if l := (*limitError)(nil); errors.As(err, &l) && l.limit < w.limit {
		w.limit = l.limit // the servers take less than they are said to
		revision, err = w.run(ctx)
	}
	return revision, err
}

// byPut tells whether what the key holds was written by Put.
func (s *RuleStore) byPut(ctx context.Context, current *api.KVPair) (bool, error) {
	at := stamp(current.Flags)
	if !at.valid() {
		return false, nil
	}
	n, err := s.read(ctx, s.noteKey(at))
	return noteOf(current, n), err
}

// write is one Put under way.
type write struct {
	s          *RuleStore
	ifRevision uint64
	limit      int     // of a transaction, in bytes
	docs       []entry // the last one is the document, before it the one that it replaces, where the history lacks it
	at         stamp   // of the last one
	outdated   []stamp // what leaves the history
}

// entry is a document on its way into the history.
type entry struct {
	at    stamp
	value []byte
	note  note
	index uint64 // of its content, where that was written ahead
}

func (w *write) add(value []byte, n note, at stamp) {
	w.docs = append(w.docs, entry{at: at, value: value, note: n})
	w.at = at
}

// keep puts the document that is replaced into the history, where it can be kept.
func (w *write) keep(current *api.KVPair, at stamp) {
	data, err := decodeValue(current.Value)
	if err != nil {
		return // nobody could use it
	}
	value, err := encodeValue(data)
	if err != nil {
		return
	}
	e := entry{at: at, value: value}
	if bodyLen([]*api.TxnOp{w.s.content(&e)}) > w.limit {
		w.s.r.logger(slog.String("key", w.s.key)).
			Warn("consul: rules that were written by other means are too large for the history", slog.Uint64("revision", current.ModifyIndex))
		return
	}
	n := newNote(&rule.Document{})
	n.Revision = current.ModifyIndex
	w.add(value, n, at)
}

// run writes: all in one transaction, or the contents of the history ahead of it
// where it has no room for them.
func (w *write) run(ctx context.Context) (uint64, error) {
	if bodyLen(w.ops()) <= w.limit {
		return w.commit(ctx)
	}
	if err := w.shrink(); err != nil {
		return 0, err
	}
	for i := range w.docs {
		if err := w.writeAhead(ctx, &w.docs[i]); err != nil {
			w.clean(ctx)
			return 0, err
		}
	}
	revision, err := w.commit(ctx)
	if err != nil && !errors.Is(err, errUnknown) {
		w.clean(ctx)
	}
	return revision, err
}

// shrink makes the transaction fit that is left when all contents are written
// ahead: what is outdated can wait for another Put.
func (w *write) shrink() error {
	for {
		body := bodyLen(w.opsAhead())
		if body <= w.limit {
			return nil
		}
		if n := len(w.outdated); n > 0 {
			w.outdated = w.outdated[:n/2]
			continue
		}
		return w.tooLarge(body, w.limit)
	}
}

// tooLarge says that the transaction has body bytes where limit are allowed.
func (w *write) tooLarge(body, limit int) error {
	size := len(w.last().value)
	room := base64.StdEncoding.EncodedLen(size) - (body - limit)
	return &rule.TooLargeError{Size: size, Limit: max(room/4*3, 0)}
}

func (w *write) last() *entry { return &w.docs[len(w.docs)-1] }

// ops returns the transaction.
func (w *write) ops() []*api.TxnOp {
	last := w.last()
	ops := []*api.TxnOp{w.s.op(api.KVTxnOp{Verb: api.KVCAS, Key: w.s.key, Value: last.value, Flags: uint64(last.at), Index: w.ifRevision})}
	for i := range w.docs {
		e := &w.docs[i]
		ops = append(ops, w.s.content(e), w.s.op(api.KVTxnOp{Verb: api.KVCAS, Key: w.s.noteKey(e.at), Value: e.note.encode()}))
	}
	for _, at := range w.outdated {
		ops = append(ops, w.s.op(api.KVTxnOp{Verb: api.KVDeleteTree, Key: w.s.entryPrefix(at)}))
	}
	return ops
}

// opsAhead returns the transaction as it will be when all contents are written
// ahead, or a little larger.
func (w *write) opsAhead() []*api.TxnOp {
	ahead := *w
	ahead.docs = append([]entry(nil), w.docs...)
	for i := range ahead.docs {
		ahead.docs[i].index = math.MaxUint64
	}
	return ahead.ops()
}

// content returns the operation that creates the content of e, or makes sure that
// it is still there.
func (s *RuleStore) content(e *entry) *api.TxnOp {
	if e.index > 0 {
		return s.op(api.KVTxnOp{Verb: api.KVCheckIndex, Key: s.documentKey(e.at), Index: e.index})
	}
	return s.op(api.KVTxnOp{Verb: api.KVCAS, Key: s.documentKey(e.at), Value: e.value})
}

func (s *RuleStore) op(kv api.KVTxnOp) *api.TxnOp {
	kv.Namespace, kv.Partition = s.r.clients.ns, s.r.clients.part
	return &api.TxnOp{KV: &kv}
}

// bodyLen returns the size of a transaction as Consul measures it.
func bodyLen(ops []*api.TxnOp) int {
	var b bytes.Buffer
	_ = json.NewEncoder(&b).Encode(ops) // as the client does; nothing in ops can fail
	return b.Len()
}

// writeAhead writes the content of e, which is not in the history until the
// transaction adds a note to it.
func (w *write) writeAhead(ctx context.Context, e *entry) error {
	results, err := w.s.txn(ctx, []*api.TxnOp{w.s.content(e)})
	if err != nil {
		return w.refused(ctx, err)
	}
	if e.index = indexIn(results, w.s.documentKey(e.at)); e.index == 0 {
		return errNoRead
	}
	return nil
}

// clean takes back what was written ahead. What it cannot reach, the next Put
// takes away.
func (w *write) clean(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	q := (&api.WriteOptions{}).WithContext(ctx)
	for i := range w.docs {
		if w.docs[i].index > 0 {
			_, _ = w.s.r.clients.kv.KV().DeleteTree(w.s.entryPrefix(w.docs[i].at), q)
			w.docs[i].index = 0
		}
	}
}
