package consul

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
)

const (
	// askTimeout bounds a query that does not block. Consul itself holds one back
	// for up to 7 s where there is no leader (performance.rpc_hold_timeout).
	askTimeout = 10 * time.Second
	// holdSlack is what a blocking query may take on top of what Consul holds it.
	holdSlack = 5 * time.Second
	// perInstance is the pause per instance after an answer that brought a change:
	// about what reading it costs. A burst of changes of a large service is taken
	// in together, at half a core at most.
	perInstance = 20 * time.Microsecond
)

// source is discovery for one reader per service; [registry.Share] is on top.
type source struct{ r *Registry }

// answer is what Consul said about a service.
type answer struct {
	set      []registry.Instance
	index    uint64
	filtered bool
	skipped  int
}

// errFiltered is an empty answer that may be empty only because the token may not
// see the instances.
var errFiltered = errors.New("the empty answer was filtered by ACLs: the token lacks service:read or node:read")

// errNoService keeps a watch from asking for all of an unknown path.
var errNoService = &registry.InvalidError{Field: "Service", Reason: "expected a name that is not empty"}

// Watch implements [registry.Discovery].
func (s source) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		if !s.r.begin() {
			yield(nil, ErrClosed)
			return
		}
		defer s.r.work.Done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.r.ctx, cancel)()

		if service == "" {
			if yield(nil, s.r.errorf(errNoService, "watch %q", service)) {
				<-ctx.Done()
			}
			return
		}
		w := &watch{
			r:       s.r,
			service: service,
			retry:   backoff{low: s.r.config.retryMin, high: s.r.config.retryMax},
			unasked: bucket{burst: 20, interval: 200 * time.Millisecond},
			trouble: trouble{logger: s.r.logger(slog.String("service", service)), limit: s.r.watchLog},
			outage:  outage{grace: s.r.config.grace},
		}
		w.run(ctx, yield)
	}
}

// watch is the state of one watch. Consul's rules for blocking queries are at
// https://developer.hashicorp.com/consul/api-docs/features/blocking.
type watch struct {
	r       *Registry
	service string

	// ask is the index of the next query; 0 asks without one, and is answered at
	// once. It is 0 again after every failure: the agent may come back with a lower
	// index, and would hold a query for the old one until the wait is over.
	ask uint64
	// seen is the index of the last answer that was believed.
	seen uint64
	// consistent makes the next query go to the leader.
	consistent bool

	last   []registry.Instance
	have   bool
	outage outage

	skipped int
	hidden  bool // ACLs hide some instances
	noIndex bool // the missing index was logged
	retry   backoff
	unasked bucket // answers that brought nothing new
	trouble trouble
}

func (w *watch) run(ctx context.Context, yield func([]registry.Instance, error) bool) {
	for {
		asked, wait, start := w.ask, w.wait(), time.Now()
		a, err := w.query(ctx, wait)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil:
			w.outage.failed(err)
		case len(a.set) > 0:
		case a.filtered:
			err = errFiltered
		case !w.r.clients.token && a.index >= w.seen && (!w.have || len(w.last) > 0):
			err = w.mayRead(ctx)
			if ctx.Err() != nil {
				return
			}
		}
		if err != nil {
			err = w.r.errorf(err, "watch %q", w.service)
			w.trouble.failed("consul: cannot watch a service, the last instances stay", err)
			w.ask = 0
			if !yield(nil, err) || !sleep(ctx, w.retry.next()) {
				return
			}
			continue
		}
		w.trouble.over("consul: watching the service again")

		if a.index < w.seen {
			// Not applied: a server that has only just started, or one that was
			// restored, may not know yet what the cluster knows. The leader does.
			w.ask, w.seen, w.consistent = 0, 0, true
			if !sleep(ctx, w.unasked.delay(time.Now())) {
				return
			}
			continue
		}
		w.ask, w.seen, w.consistent = a.index, a.index, false
		early := time.Since(start) < wait/2
		if a.index == asked && !early {
			// Nothing has changed for the whole wait, or the news got lost: ask for
			// what there is from time to time, whatever the index.
			w.ask = 0
		}

		set := w.outage.apply(w.last, a.set, time.Now())
		changed := !w.have || !registry.EqualSnapshots(w.last, set)
		if changed {
			w.noteSkipped(a.skipped)
			w.noteHidden(a.filtered)
			w.last, w.have = set, true
			if !yield(set, nil) {
				return
			}
		}
		if !sleep(ctx, w.pause(asked, a, changed, early)) {
			return
		}
	}
}

// pause returns how long to wait before the next query, so that no server's
// answers make a busy loop.
func (w *watch) pause(asked uint64, a answer, changed, early bool) time.Duration {
	switch {
	case a.index == 0:
		// Nothing to wait for: this is polling, and slower every time.
		if !w.noIndex && w.r.watchLog.Allow(time.Now()) {
			w.noIndex = true
			w.r.logger(slog.String("service", w.service)).
				Warn("consul: answer without X-Consul-Index, polling instead of waiting for changes")
		}
		return w.retry.next()
	case a.index == asked && early:
		return w.retry.next() // it does not wait either
	}
	w.retry.reset()
	if changed {
		return time.Duration(len(a.set)) * perInstance
	}
	return w.unasked.delay(time.Now())
}

func (w *watch) noteSkipped(n int) {
	if n != w.skipped && n > 0 {
		w.r.logger(slog.String("service", w.service)).
			Warn("consul: left out instances without address or port", slog.Int("instances", n))
	}
	w.skipped = n
}

// noteHidden tells of a token that reads only some of the nodes, which may be meant.
func (w *watch) noteHidden(hidden bool) {
	if hidden && !w.hidden && w.r.watchLog.Allow(time.Now()) {
		w.r.logger(slog.String("service", w.service)).
			Warn("consul: ACLs hide some instances of the service: the token lacks node:read for their nodes")
	}
	w.hidden = hidden
}

// wait returns how long Consul may hold the next query: no longer than instances
// are held after an outage.
func (w *watch) wait() time.Duration {
	wait := w.r.config.wait
	if rest := w.outage.remaining(time.Now()); rest > 0 {
		wait = min(wait, max(rest, 50*time.Millisecond))
	}
	return wait
}

// query asks Consul once: where ask is set it waits for a change.
func (w *watch) query(ctx context.Context, wait time.Duration) (answer, error) {
	limit := askTimeout
	// Near is not for the order, which is by ID. Without it an agent answers blocking
	// queries from a view that it builds of the servers' events
	// (use_streaming_backend, the default since Consul 1.10). Of some 4,000 services
	// that registered two instances in quick succession, with 1.14.11 on a busy
	// machine, three lost one of them that way for as long as nothing else changed;
	// of 3,600 with it, none. With it the answer is what the state store holds.
	q := &api.QueryOptions{AllowStale: w.r.config.allowStale, Near: "_agent"}
	if w.consistent {
		q.AllowStale, q.RequireConsistent = false, true
	}
	if w.ask > 0 {
		q.WaitIndex, q.WaitTime = w.ask, wait
		// Consul spreads the end of its wait by up to a sixteenth.
		limit = wait + wait/16 + holdSlack
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	entries, meta, err := w.r.clients.catalog.Health().Service(w.service, "", false, q.WithContext(ctx))
	if err != nil {
		return answer{}, err
	}
	a := answer{}
	if meta != nil {
		a.index, a.filtered = meta.LastIndex, meta.ResultsFilteredByACLs
	}
	a.set, a.skipped = snapshot(entries)
	return a, nil
}

// mayRead asks the agent whether it tells of the service without a token: to such
// requests Consul does not say that it has filtered an answer.
func (w *watch) mayRead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var local any
	q := (&api.QueryOptions{}).WithContext(ctx)
	_, err := w.r.clients.kv.Raw().Query("/v1/agent/health/service/name/"+w.service, &local, q)
	if statusCode(err) == http.StatusForbidden && strings.Contains(err.Error(), "Permission denied") {
		return fmt.Errorf("%w; no token is set: %w", errFiltered, err)
	}
	return nil // what else goes wrong there says nothing about the answer
}
