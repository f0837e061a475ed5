package rollout

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Revision is one entry of the history of a rule set.
type Revision struct {
	Revision uint64    `json:"revision"`
	Author   string    `json:"author,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Time     time.Time `json:"time,omitzero"`
	// Current tells that it is the one in force.
	Current bool `json:"current,omitempty"`
	// Changes are what it changed of the revision before it. The oldest one of the
	// history has none to be compared with, and First is true.
	Changes []Difference `json:"changes"`
	First   bool         `json:"first,omitempty"`
	// Err says why Data is no rule set; "" where it is one.
	Err string `json:"error,omitempty"`
	// Data is the document.
	Data []byte `json:"-"`
}

// History returns the last 50 revisions of the rule set, the newest first, each
// with who wrote it, when, why, and what it changed.
func History(ctx context.Context, store rule.Store) ([]Revision, error) {
	now, err := current(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("rollout: history: %w", err)
	}
	docs, err := store.History(ctx)
	if err != nil {
		return nil, fmt.Errorf("rollout: history: %w", err)
	}
	list := make([]Revision, 0, len(docs))
	for i, d := range docs {
		r := Revision{
			Revision: d.Revision, Author: d.Author, Reason: d.Reason, Time: d.Time, Data: d.Data,
			Current: d.Revision == now.Revision, First: i == len(docs)-1,
			Changes: []Difference{}, // a list for JSON, and not null
		}
		if _, err := rule.Parse(d.Data); err != nil {
			r.Err = err.Error()
		}
		if !r.First {
			r.Changes = append(r.Changes, Diff(docs[i+1].Data, d.Data)...)
		}
		list = append(list, r)
	}
	return list, nil
}

// Restore puts a revision of the history in force again, where the document is
// still at ifRevision, the one that the operator saw; else the error wraps
// [rule.ErrConflict], for a restored document undoes whatever came in between, a
// rollback included. A kill switch that is on, be it in the last good document that
// engines keep to while the present one is faulty, stays on, and the holds of the
// plans start anew.
func Restore(ctx context.Context, store rule.Store, revision, ifRevision uint64, n Note) (*Event, error) {
	n = n.now().cut()
	docs, err := store.History(ctx)
	if err != nil {
		return nil, fmt.Errorf("rollout: restore: %w", err)
	}
	i := slices.IndexFunc(docs, func(d rule.Document) bool { return d.Revision == revision })
	if i < 0 {
		return nil, fmt.Errorf("rollout: restore: revision %d is not among the last %d", revision, len(docs))
	}
	now, err := current(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("rollout: restore: %w", err)
	}
	present, err := lastGood(ctx, store, now.Data)
	if err != nil {
		return nil, fmt.Errorf("rollout: restore: %w", err)
	}
	data, err := revived(docs[i].Data, present, n.At)
	if err != nil {
		return nil, fmt.Errorf("rollout: restore: revision %d: %w", revision, err)
	}
	e := &Event{Kind: KindRevision, Time: n.At, Who: n.Who, Why: shorten(fmt.Sprintf("revision %d: %s", revision, n.Why), MaxWhyBytes)}
	e.Revision, err = store.Put(ctx, rule.Document{Data: data, Author: e.Who, Reason: e.reason(), Time: e.Time}, ifRevision)
	if err != nil {
		return nil, fmt.Errorf("rollout: restore: %w", err)
	}
	return e, nil
}

// revived is an old document as it comes back in place of the present one.
func revived(old, present []byte, now time.Time) ([]byte, error) {
	d, err := readDocument(old)
	if err != nil {
		return nil, err
	}
	if set, err := rule.Parse(present); err == nil && set.Stop && !d.set.Stop {
		d.splice.set(d.root, "stop", []byte("true"))
	}
	if err := d.renew(now); err != nil {
		return nil, err
	}
	return d.bytes()
}
