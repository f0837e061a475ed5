package consul

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
)

const (
	// ruleWait is how long Consul may hold a query for rules when nothing changes.
	// It bounds how long a change is missed whose answer got lost.
	ruleWait = 5 * time.Second
	// ruleLimit is when such an answer counts as lost. Consul spreads the end of
	// its wait by up to a sixteenth, which leaves 187 ms for the way. The whole, a
	// new connection and an answer included, is to stay under six seconds.
	ruleLimit = 5500 * time.Millisecond
	// ruleRetryMax bounds the delay between tries. Rules are how a release is
	// taken back: they are not to wait for as long as instances may.
	ruleRetryMax = 5 * time.Second
	// noteTimeout bounds the reading of who wrote the rules, which they wait for.
	noteTimeout = time.Second
	// rulePause is the least time between a change and the next query.
	rulePause = time.Millisecond
)

// Watch implements [rule.Store] with blocking queries of 5 s. Where a query gets
// no answer in time its connection is given up and another one asks at once: a
// change is seen after 6 s at the latest, though the network has swallowed its
// announcement.
//
// While Consul cannot be reached, or has no leader, each try yields an error; they
// come with a growing delay, at most 5 s. After errors the document is yielded
// again, changed or not. A document that cannot be unpacked is an error, too. A
// document that is older than the one before, which happens when Consul was
// restored or has lost its data, is read twice, and preceded by an error that says
// so. Closing the registry ends the loop with [ErrClosed].
func (s *RuleStore) Watch(ctx context.Context) iter.Seq2[rule.Document, error] {
	return func(yield func(rule.Document, error) bool) {
		if ctx.Err() != nil {
			return
		}
		if !s.r.begin() {
			yield(rule.Document{}, ErrClosed)
			return
		}
		defer s.r.work.Done()
		closed, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.r.ctx, cancel)()

		logger := s.r.logger(slog.String("key", s.key))
		w := &ruleWatch{
			s:       s,
			retry:   backoff{low: s.r.config.retryMin, high: min(s.r.config.retryMax, ruleRetryMax)},
			unasked: bucket{burst: 20, interval: 200 * time.Millisecond},
			trouble: trouble{logger: logger},
			lost:    trouble{logger: logger},
			back:    trouble{logger: logger},
			unnoted: trouble{logger: logger},
		}
		if w.run(closed, yield) && ctx.Err() == nil {
			yield(rule.Document{}, ErrClosed)
		}
	}
}

// ruleWatch is the state of one watch; see watch for the rules of the index.
type ruleWatch struct {
	s *RuleStore

	ask  uint64 // the index of the next query; 0 is answered at once
	seen uint64 // the index of the last answer that was believed

	last   *api.KVPair
	have   bool
	failed bool // an error was yielded since the last document

	noIndex bool // the missing index was logged
	retry   backoff
	unasked bucket // answers that brought nothing new

	trouble trouble // no answer
	lost    trouble // an answer that did not come in time
	back    trouble // an older document
	unnoted trouble // no note
}

// run watches until ctx ends, then it returns true, or the reader leaves.
func (w *ruleWatch) run(ctx context.Context, yield func(rule.Document, error) bool) (ended bool) {
	for {
		asked, start := w.ask, time.Now()
		p, meta, err := w.s.get(ctx, w.s.key, asked, ruleLimit)
		if ctx.Err() != nil {
			return true
		}
		if err != nil {
			w.ask = 0
			// No connection from before is trusted: their end may be gone, too.
			w.s.r.clients.idleKV()
			err = w.s.errorf(err, "watch")
			if asked > 0 && errors.Is(err, context.DeadlineExceeded) {
				w.lost.failed("consul: a query for rules got no answer in time, asking again through another connection", err)
				continue
			}
			w.trouble.failed("consul: cannot watch rules, the last ones stay", err)
			w.failed = true
			if !yield(rule.Document{}, err) {
				return false
			}
			if !sleep(ctx, w.retry.next()) {
				return true
			}
			continue
		}
		w.trouble.over("consul: watching rules again")
		w.lost.over("consul: queries for rules are answered again")

		if meta.LastIndex < w.seen {
			// Not applied yet: asked again, without an index.
			w.ask, w.seen = 0, 0
			if !sleep(ctx, w.unasked.delay(time.Now())) {
				return true
			}
			continue
		}
		w.ask, w.seen = meta.LastIndex, meta.LastIndex

		changed := !w.have || !samePair(w.last, p)
		if changed || w.failed {
			if !w.news(ctx, p, meta.LastIndex, yield) {
				return false
			}
			if ctx.Err() != nil {
				return true
			}
		}
		if !sleep(ctx, w.pause(asked, meta.LastIndex, changed, time.Since(start) < ruleWait/2)) {
			return true
		}
	}
}

// news yields what the key holds. It returns false when the reader leaves.
func (w *ruleWatch) news(ctx context.Context, p *api.KVPair, index uint64, yield func(rule.Document, error) bool) bool {
	before := revisionOf(w.last)
	w.last, w.have = p, true
	if now := revisionOf(p); now < before && (p != nil || index < before) {
		err := w.s.errorf(fmt.Errorf("the document went back from revision %d to %d: Consul was restored, or has lost data", before, now), "watch")
		w.back.failed("consul: the rules went back to an older document", err)
		if !yield(rule.Document{}, err) {
			return false
		}
		if ctx.Err() != nil {
			return true
		}
	} else {
		w.back.over("consul: the rules are newer again")
	}
	w.failed = false
	if p == nil {
		return yield(rule.Document{}, nil)
	}
	data, err := decodeValue(p.Value)
	if err != nil {
		return yield(rule.Document{}, w.s.errorf(fmt.Errorf("the document of revision %d: %w", p.ModifyIndex, err), "watch"))
	}
	n := w.note(ctx, p)
	if ctx.Err() != nil {
		return true
	}
	return yield(rule.Document{Data: data, Revision: p.ModifyIndex, Author: n.Author, Reason: n.Reason, Time: n.Time}, nil)
}

// note returns who wrote what the key holds; the zero note where that was not Put,
// or cannot be told: rules do not wait for long to know their author.
func (w *ruleWatch) note(ctx context.Context, p *api.KVPair) note {
	if !stamp(p.Flags).valid() {
		return note{}
	}
	n, _, err := w.s.get(ctx, w.s.noteKey(stamp(p.Flags)), 0, noteTimeout)
	if err != nil {
		if ctx.Err() == nil {
			w.unnoted.failed("consul: cannot read who wrote the rules, they are in force all the same", w.s.errorf(err, "read the author of"))
		}
		return note{}
	}
	w.unnoted.over("consul: reading who wrote the rules again")
	if !noteOf(p, n) {
		return note{}
	}
	return decodeNote(n.Value)
}

// pause returns how long to wait before the next query, so that no server's
// answers make a busy loop.
func (w *ruleWatch) pause(asked, index uint64, changed, early bool) time.Duration {
	switch {
	case index == 0:
		if !w.noIndex {
			w.noIndex = true
			w.trouble.logger.Warn("consul: answer without X-Consul-Index, polling instead of waiting for changes")
		}
		return w.retry.next()
	case index == asked && early && !changed:
		// It did not wait: because it never does, or because Consul was restored,
		// and would then wait for an index that is far away.
		w.ask = 0
		return w.retry.next()
	}
	if changed || asked > 0 {
		w.retry.reset() // but not for an answer that had nothing to wait for
	}
	if changed {
		return rulePause
	}
	return w.unasked.delay(time.Now())
}

// samePair tells whether two answers say the same. After Consul has lost its data
// the same index may name another document.
func samePair(a, b *api.KVPair) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.ModifyIndex == b.ModifyIndex && a.CreateIndex == b.CreateIndex && bytes.Equal(a.Value, b.Value)
}
