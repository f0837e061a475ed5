package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// document is the rule set with its plan: one percentage for both services. The
// analysis looks at order, which is what the gateways see; its numbers are as small as
// the holds are short. Latencies are not compared: this machine may have other things
// to do.
const document = `{
  "rules": [
    {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["99"]}], "tag": "version=v2"},
    {"id": "order", "services": ["order"], "percent": 0, "salt": "december", "tag": "version=v2"},
    {"id": "inventory", "services": ["inventory"], "percent": 0, "salt": "december", "tag": "version=v2"}
  ],
  "plans": {
    "december": {
      "rules": ["order", "inventory"],
      "internal": {"rules": ["testers"]},
      "stages": [{"percent": 10, "hold": "2s"}, {"percent": 20, "hold": "2s"}, {"percent": 30, "hold": "2s"}, {"percent": 100}],
      "analysis": {
        "window": "2s", "every": "200ms", "services": ["order"],
        "errors": {"minRequests": 20}, "latency": {"off": true}
      },
      "onBreach": "rollback"
    }
  }
}`

const plan = "december"

// timeline prints what happens, each line with the seconds since the beginning.
type timeline struct {
	out   io.Writer
	begun time.Time

	mu     sync.Mutex // guards out and what follows
	counts map[rollout.Kind]int
	alerts int // that the webhook got, of a breach
	events chan rollout.Event
}

func (t *timeline) printf(at time.Time, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "%6.2fs  %s\n", at.Sub(t.begun).Seconds(), fmt.Sprintf(format, args...))
}

// Alert implements rollout.Alerter.
func (t *timeline) Alert(ctx context.Context, e rollout.Event) error {
	t.printf(e.Time, "%-12s %s: %s", e.Who, e.Text(), e.Why)
	t.mu.Lock()
	t.counts[e.Kind]++
	t.mu.Unlock()
	select {
	case t.events <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until waits for an event of a kind, at a stage.
func (t *timeline) until(ctx context.Context, kind rollout.Kind, stage int) (rollout.Event, error) {
	for {
		select {
		case e := <-t.events:
			if e.Kind == kind && e.To.Stage == stage {
				return e, nil
			}
			if e.Breach() {
				return e, fmt.Errorf("rollout: %s: %s", e.Text(), e.Why)
			}
		case <-ctx.Done():
			return rollout.Event{}, fmt.Errorf("rollout: waiting for %s, stage %d: %w", kind, stage, ctx.Err())
		}
	}
}

// receiver is the server behind the webhook, such as that of a chat or of a pager. It
// fails at first, as they do.
func (t *timeline) receiver() *httptest.Server {
	refused := false
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var alert struct {
			Text   string
			Breach bool
		}
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&alert); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !alert.Breach {
			return // somebody knows that already
		}
		t.mu.Lock()
		first := !refused
		refused = true
		t.mu.Unlock()
		if first {
			t.printf(time.Now(), "%-12s 503, the first time", "webhook")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		t.printf(time.Now(), "%-12s got the alert: %s", "webhook", alert.Text)
		t.mu.Lock()
		t.alerts++
		t.mu.Unlock()
	}))
}

// timedStore notes when what was written.
type timedStore struct {
	rule.Store
	mu      sync.Mutex // guards written
	written map[uint64]time.Time
}

func (s *timedStore) Put(ctx context.Context, d rule.Document, ifRevision uint64) (uint64, error) {
	revision, err := s.Store.Put(ctx, d, ifRevision)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written[revision] = time.Now()
	return revision, err
}

func (s *timedStore) at(revision uint64) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written[revision]
}

func story(ctx context.Context, out io.Writer, b backend) error {
	store := &timedStore{Store: b.rules, written: map[uint64]time.Time{}}
	b.rules = store
	s := &shop{reg: b.registry}
	defer s.close()
	if err := s.open(ctx); err != nil {
		return err
	}
	if _, err := store.Put(ctx, rule.Document{Data: []byte(document), Author: "ann", Reason: "the release of December"}, 0); err != nil {
		return err
	}

	t := &timeline{out: out, begun: time.Now(), counts: map[rollout.Kind]int{}, events: make(chan rollout.Event, 100)}
	hook := t.receiver()
	defer hook.Close()
	webhook, err := rollout.NewWebhook(hook.URL, rollout.WithBearer("a secret"))
	if err != nil {
		return err
	}
	var gateways []*entrance
	var urls []string
	for _, name := range []string{"gateway-1", "gateway-2"} {
		e, err := enter(ctx, b, name, t, webhook)
		if err != nil {
			return err
		}
		defer e.close()
		gateways, urls = append(gateways, e), append(urls, e.url)
	}
	u := newUsers(urls...)
	defer u.stop()
	u.start(ctx)

	// What an operator does: testers, and then the others.
	ann := gateways[0].controller
	if _, err := ann.Do(ctx, plan, rollout.CommandStart, rollout.Note{Who: "ann", Why: "testers first"}); err != nil {
		return err
	}
	if _, err := ann.Do(ctx, plan, rollout.CommandPromote, rollout.Note{Who: "ann", Why: "testers are content"}); err != nil {
		return err
	}
	// What the controller does.
	if _, err := t.until(ctx, rollout.KindAdvanced, 3); err != nil {
		return err
	}
	s.broken.Store(true)
	t.printf(time.Now(), "%-12s fails every other call from now on", "inventory v2")
	back, err := t.until(ctx, rollout.KindRolledBack, 3)
	if err != nil {
		return err
	}
	return ending(ctx, t, store, u, gateways, back)
}

// ending holds what came of it to what has to.
func ending(ctx context.Context, t *timeline, store *timedStore, u *users, gateways []*entrance, back rollout.Event) error {
	for _, g := range gateways {
		for g.engine.Status().Revision < back.Revision {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Millisecond):
			}
		}
	}
	gray, failed := u.visit(ctx)
	u.stop()
	for _, g := range gateways {
		if err := g.controller.Flush(ctx); err != nil {
			return err
		}
	}
	written := store.at(back.Revision)
	u.mu.Lock()
	defer u.mu.Unlock()
	t.printf(time.Now(), "%-12s all %d have ordered again at each gateway: %d gray, %d failed", "users", numbers, gray, failed)
	fmt.Fprintf(t.out, "\nfirst failed gray request to rollback write: %s\n", written.Sub(u.firstBad).Round(time.Millisecond))
	fmt.Fprintf(t.out, "rollback write to last gray request sent:    %s\n", max(u.lastGray.Sub(written), 0).Round(100*time.Microsecond))
	fmt.Fprintf(t.out, "%d orders\n\n", u.orders)
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.out, "advanced=%d rolled_back=%d alerts=%d gray_after=%d failed_after=%d\n",
		t.counts[rollout.KindAdvanced]+t.counts[rollout.KindPromoted], t.counts[rollout.KindRolledBack], t.alerts, gray, failed)
	switch {
	case u.stray != nil:
		return u.stray
	case gray > 0 || failed > 0 || t.alerts != 1:
		return errors.New("rollout: the release has not ended as it has to")
	}
	return nil
}
