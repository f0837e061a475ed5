package consul

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
)

// registration is one registered instance and the goroutine that keeps it so.
type registration struct {
	r      *Registry
	slot   *slot
	status registry.Status
	want   registry.Instance // guarded by slot.lock

	stop  context.CancelFunc
	done  chan struct{} // closed when the goroutine has ended
	wake  chan struct{} // of capacity 1: do not wait for the next beat
	stale atomic.Bool   // the agent may hold something else than want
	ended atomic.Bool   // superseded, or Deregister was called
	fresh bool          // the agent has forgotten the instance; the goroutine's own
}

// newRegistration starts the background work of an instance that the agent knows.
// The slot is held, and the work counted in.
func newRegistration(r *Registry, s *slot, i registry.Instance) *registration {
	ctx, stop := context.WithCancel(r.ctx)
	g := &registration{
		r:      r,
		slot:   s,
		status: i.Status,
		want:   i,
		stop:   stop,
		done:   make(chan struct{}),
		wake:   make(chan struct{}, 1),
	}
	go g.keep(ctx)
	return g
}

// Update implements [registry.Registration]. Where it fails without a clear
// refusal, the goroutine of the registration restores the metadata from before.
func (g *registration) Update(ctx context.Context, metadata map[string]string) error {
	id := g.slot.id
	if err := checkMetadata(metadata); err != nil {
		return fmt.Errorf("consul: update %q: %w", id, err)
	}
	ctx, cancel := withLimit(ctx)
	defer cancel()
	if err := g.slot.take(ctx); err != nil {
		return g.r.errorf(err, "update %q", id)
	}
	defer g.slot.give()
	if g.ended.Load() {
		return fmt.Errorf("consul: update %q: %w", id, registry.ErrNotRegistered)
	}
	i := g.want
	i.Metadata = maps.Clone(metadata)
	if applied, err := g.r.put(ctx, i, false); err != nil {
		if applied {
			g.refresh()
		}
		return g.r.errorf(err, "update %q", id)
	}
	g.want = i
	return nil
}

// Deregister implements [registry.Registration]. After an error no background
// work goes on, and another call tries again.
func (g *registration) Deregister(ctx context.Context) error {
	ctx, cancel := withLimit(ctx)
	defer cancel()
	if err := g.slot.take(ctx); err != nil {
		// Whoever holds the slot may take longer than ctx: the background work must
		// end all the same.
		g.ended.Store(true)
		g.stop()
		return g.r.errorf(err, "deregister %q", g.slot.id)
	}
	g.end()
	if g.slot.owner != g { // deregistered, or registered anew
		g.slot.give()
		return nil
	}
	if err := g.r.deregister(ctx, g.slot.id); err != nil {
		g.slot.give()
		return g.r.errorf(err, "deregister %q", g.slot.id)
	}
	g.slot.owner = nil
	g.slot.give()
	g.r.unref(g.slot)
	return nil
}

// end ends the background work and waits for it. The slot is held, so the
// goroutine is in no registration that could come after what the caller does next.
func (g *registration) end() {
	g.ended.Store(true)
	g.stop()
	<-g.done
}

// refresh lets the goroutine register want again, soon.
func (g *registration) refresh() {
	g.stale.Store(true)
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// keep reports to the agent until ctx ends, and registers again what the agent has
// forgotten.
func (g *registration) keep(ctx context.Context) {
	defer g.r.work.Done()
	defer close(g.done)
	defer g.stop()

	interval := g.r.config.ttl / 3
	retry := backoff{low: g.r.config.retryMin, high: min(interval, g.r.config.retryMax)}
	log := trouble{logger: g.r.logger(slog.String("instance", g.slot.id))}
	// Many instances of one start do not report in step.
	timer := time.NewTimer(interval - rand.N(interval/10))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		case <-timer.C:
		}
		err := g.beat(ctx, min(interval, askTimeout))
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if statusCode(err) == 0 {
				g.r.clients.idleKV() // more than one connection may be dead
			}
			log.failed("consul: cannot keep an instance registered", g.r.errorf(err, "keep %q registered", g.slot.id))
			timer.Reset(retry.next())
			continue
		}
		log.over("consul: the instance is registered again")
		retry.reset()
		timer.Reset(interval - rand.N(interval/10))
	}
}

// beat makes sure once that the agent knows the instance and that it is alive.
func (g *registration) beat(ctx context.Context, limit time.Duration) error {
	if !g.stale.Load() {
		tryCtx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		err := g.probe(tryCtx)
		if err == nil || !forgotten(err) {
			return err
		}
		g.fresh = true
		g.stale.Store(true)
		g.r.logger(slog.String("instance", g.slot.id)).Info("consul: the agent has forgotten an instance, registering it again")
	}

	if err := g.slot.take(ctx); err != nil {
		return err
	}
	defer g.slot.give()
	if g.ended.Load() {
		return nil
	}
	// Not ctx: a request that is cut off may still be carried out, after the
	// deregistration that waits for the slot.
	putCtx, cancel := context.WithTimeout(g.r.ctx, limit)
	defer cancel()
	if _, err := g.r.put(putCtx, g.want, g.fresh); err != nil {
		return err
	}
	g.fresh = false
	g.stale.Store(false)
	return nil
}

// probe reports a TTL check, or asks after an instance that the agent checks.
func (g *registration) probe(ctx context.Context) error {
	if g.r.config.check == nil {
		return g.r.report(ctx, g.slot.id, g.status)
	}
	_, _, err := g.r.clients.kv.Agent().Service(g.slot.id, (&api.QueryOptions{}).WithContext(ctx))
	return err
}

// forgotten reports whether the agent's answer says that it does not know the
// instance, or not with this check.
func forgotten(err error) bool {
	switch statusCode(err) {
	case http.StatusNotFound:
		return true
	case http.StatusInternalServerError:
		text := err.Error()
		return strings.Contains(text, "nknown check") || strings.Contains(text, "associated TTL") ||
			strings.Contains(text, "nknown service")
	}
	return false
}
