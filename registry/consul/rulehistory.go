package consul

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
)

// The history of KEY is KEY.history/STAMP/note and KEY.history/STAMP/document,
// for each document that Put wrote. The note is written in one transaction with
// KEY, whose flags are the stamp then: equal indexes of both say that they belong
// together. A document without a note was never written: it is what a Put left
// that failed, and the next one takes it away.

const (
	historySuffix = ".history/"
	noteName      = "note"
	documentName  = "document"
)

func (s *RuleStore) historyPrefix() string { return s.key + historySuffix }

func (s *RuleStore) entryPrefix(at stamp) string { return s.historyPrefix() + at.String() + "/" }

func (s *RuleStore) noteKey(at stamp) string { return s.entryPrefix(at) + noteName }

func (s *RuleStore) documentKey(at stamp) string { return s.entryPrefix(at) + documentName }

// split takes a key of the history apart; ok is false for what is not ours.
func (s *RuleStore) split(key string) (at stamp, name string, ok bool) {
	key, ok = strings.CutPrefix(key, s.historyPrefix())
	if !ok {
		return 0, "", false
	}
	at0, name, _ := strings.Cut(key, "/")
	at, ok = parseStamp(at0)
	return at, name, ok && (name == noteName || name == documentName)
}

// noteOf tells whether n is the note of what the key holds, rather than of what it
// held before it was written by other means, which may keep the flags.
func noteOf(p, n *api.KVPair) bool {
	return p != nil && n != nil && p.ModifyIndex == n.ModifyIndex
}

// errHistoryFiltered keeps a part of the history from looking like the whole.
var errHistoryFiltered = errors.New("it was filtered by ACLs: the token lacks key:read for all of it")

// History implements [rule.Store]. A document that was written by other means than
// Put comes first while the key holds it; of those that such a document replaced,
// the ones by other means are not known.
func (s *RuleStore) History(ctx context.Context) ([]rule.Document, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, s.errorf(err, "read the history of")
	}
	defer end()
	// In this order: what replaces the current document meanwhile is in the list.
	current, err := s.read(ctx, s.key)
	if err != nil {
		return nil, s.errorf(err, "read the history of")
	}
	q := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	pairs, meta, err := s.r.clients.kv.KV().List(s.historyPrefix(), q)
	if err == nil && meta != nil && meta.ResultsFilteredByACLs {
		err = errHistoryFiltered
	}
	if err != nil {
		return nil, s.errorf(err, "read the history of")
	}

	notes := make(map[stamp]*api.KVPair)
	contents := make(map[stamp]*api.KVPair)
	for _, p := range pairs {
		if p == nil {
			continue
		}
		switch at, name, ok := s.split(p.Key); {
		case !ok:
		case name == noteName:
			notes[at] = p
		default:
			contents[at] = p
		}
	}
	stamps := make([]stamp, 0, len(notes))
	for at := range notes {
		if contents[at] != nil {
			stamps = append(stamps, at)
		}
	}
	slices.SortFunc(stamps, func(a, b stamp) int { return cmp.Compare(b, a) })

	list := make([]rule.Document, 0, len(stamps)+1)
	known := current == nil
	for _, at := range stamps {
		data, err := decodeValue(contents[at].Value)
		if err != nil {
			continue // somebody has written into it
		}
		n := decodeNote(notes[at].Value)
		d := rule.Document{Data: data, Revision: cmp.Or(n.Revision, notes[at].ModifyIndex), Author: n.Author, Reason: n.Reason, Time: n.Time}
		known = known || d.Revision == current.ModifyIndex
		list = append(list, d)
	}
	if !known {
		if data, err := decodeValue(current.Value); err == nil {
			list = slices.Insert(list, 0, rule.Document{Data: data, Revision: current.ModifyIndex})
		}
	}
	return list[:min(len(list), rule.HistoryLength)], nil
}

// index is what the history holds, without its contents.
type index struct {
	newest stamp // of all, 0 where there is none
	notes  []stamp
	stray  []stamp // without a note
}

// index reads which documents the history holds, the newest first.
func (s *RuleStore) index(ctx context.Context) (index, error) {
	q := (&api.QueryOptions{RequireConsistent: true}).WithContext(ctx)
	keys, _, err := s.r.clients.kv.KV().Keys(s.historyPrefix(), "", q)
	if err != nil {
		return index{}, err
	}
	noted := make(map[stamp]bool)
	for _, key := range keys {
		if at, name, ok := s.split(key); ok {
			noted[at] = noted[at] || name == noteName
		}
	}
	var x index
	for at, ok := range noted {
		x.newest = max(x.newest, at)
		if ok {
			x.notes = append(x.notes, at)
		} else {
			x.stray = append(x.stray, at)
		}
	}
	slices.SortFunc(x.notes, func(a, b stamp) int { return cmp.Compare(b, a) })
	slices.Sort(x.stray)
	return x, nil
}

// outdated returns what has to go when n documents are added: the oldest that the
// history has no room for, and what failed Puts have left. What exceeds limit is
// left to the next Put.
func (x *index) outdated(n, limit int) []stamp {
	keep := min(max(rule.HistoryLength-n, 0), len(x.notes))
	old := append(slices.Clone(x.notes[keep:]), x.stray...)
	return old[:min(len(old), limit)]
}
