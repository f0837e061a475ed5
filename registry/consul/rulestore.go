package consul

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
)

// RuleStore is one key of Consul KV as a [rule.Store]. It is safe for concurrent
// use. Create one with [Registry.RuleStore].
//
// The key holds the document as it is, JSON that operators read and edit with
// Consul's own means; from 64 KiB on it holds it compressed with gzip. What was
// written by Put is also under KEY.history/TIME/: the document, and a note of who
// wrote it, when and why. Where the key was written by other means, the document
// has no author and no time; it comes first in the history, and the next Put keeps
// it there.
//
// The revision is the ModifyIndex of the key. Every read is answered by a leader
// that has made sure that it is one (consistent mode): it is never stale.
type RuleStore struct {
	r   *Registry
	key string
}

var _ rule.Store = (*RuleStore)(nil)

// maxRuleKeyLen bounds a key, in bytes, so that it fits into a URL with the name of
// the history.
const maxRuleKeyLen = 512

// RuleStore returns the store for the document at key, such as "graylane/rules".
// The key need not be there. It makes no request.
//
// A key has at most 512 bytes of UTF-8 without control characters, in segments
// between slashes that are not empty, "." or "..". The store works until the
// registry is closed.
func (r *Registry) RuleStore(key string) (*RuleStore, error) {
	if reason := checkKey(key); reason != "" {
		return nil, fmt.Errorf("consul: rule store: key %q: %s", shorten(key, 64), reason)
	}
	return &RuleStore{r: r, key: key}, nil
}

// checkKey says what is wrong with a key. Consul would answer for another key, or
// redirect, where a path is not in its shortest form.
func checkKey(key string) string {
	switch {
	case key == "":
		return "expected one that is not empty"
	case len(key) > maxRuleKeyLen:
		return fmt.Sprintf("has %d bytes, expected at most %d", len(key), maxRuleKeyLen)
	case !utf8.ValidString(key):
		return "expected UTF-8"
	case strings.ContainsFunc(key, unicode.IsControl):
		return "expected no control characters"
	}
	for s := range strings.SplitSeq(key, "/") {
		if s == "" || s == "." || s == ".." {
			return fmt.Sprintf("has a segment %q, expected something like \"graylane/rules\"", s)
		}
	}
	return ""
}

func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "…"
}

// probeTimeout bounds a read whose connection may be dead. A leader answers
// within milliseconds.
const probeTimeout = 3 * time.Second

// begin lets one call go on until the registry is closed, and bounds it.
func (s *RuleStore) begin(ctx context.Context) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if !s.r.begin() {
		return nil, nil, ErrClosed
	}
	ctx, cancel := withLimit(ctx)
	stop := context.AfterFunc(s.r.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
		s.r.work.Done()
	}, nil
}

// get asks for a key once; nil is a key that is not there. With an index it waits
// for a change.
func (s *RuleStore) get(ctx context.Context, key string, index uint64, limit time.Duration) (*api.KVPair, *api.QueryMeta, error) {
	return s.r.getKV(ctx, key, index, ruleWait, limit)
}

// getKV asks for a key once, in consistent mode; nil is a key that is not there.
// With an index Consul holds the query for up to wait while nothing changes.
func (r *Registry) getKV(ctx context.Context, key string, index uint64, wait, limit time.Duration) (*api.KVPair, *api.QueryMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q := &api.QueryOptions{RequireConsistent: true}
	if index > 0 {
		q.WaitIndex, q.WaitTime = index, wait
	}
	p, meta, err := r.clients.kv.KV().Get(key, q.WithContext(ctx))
	if err != nil {
		return nil, nil, err
	}
	if meta == nil {
		meta = &api.QueryMeta{}
	}
	if p == nil && meta.LastIndex == 0 {
		return nil, nil, errNotConsul
	}
	return p, meta, nil
}

// errNotConsul is a 404 that Consul has not written: whoever has lost the way to it
// must not make everything stable.
var errNotConsul = errors.New("not found, without X-Consul-Index: this is no answer of Consul")

func (s *RuleStore) read(ctx context.Context, key string) (*api.KVPair, error) {
	return s.r.readKV(ctx, key)
}

// readKV asks for a key, and once more through a new connection where the one from
// before is dead.
func (r *Registry) readKV(ctx context.Context, key string) (*api.KVPair, error) {
	p, _, err := r.getKV(ctx, key, 0, 0, probeTimeout)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		r.clients.idleKV()
		p, _, err = r.getKV(ctx, key, 0, 0, askTimeout)
	}
	return p, err
}

func (s *RuleStore) errorf(err error, op string) error {
	return s.r.errorf(err, "%s rules %q", op, s.key)
}

func revisionOf(p *api.KVPair) uint64 {
	if p == nil {
		return 0
	}
	return p.ModifyIndex
}
