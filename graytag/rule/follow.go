package rule

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/graylane/graylane/internal/telemetry/rulegauge"
)

// ErrFollowing says that an engine follows a store already.
var ErrFollowing = errors.New("rule: follow: the engine follows a store already")

// ErrStoreEnded says that a store has stopped watching though nobody asked it
// to. The last good set stays in force.
var ErrStoreEnded = errors.New("rule: follow: the store has stopped watching")

// Follow puts every document of s in force as it comes, until ctx ends; it
// returns the error of ctx then. A document that is refused changes nothing: the
// last good set stays, and [Engine.Status] says why. A document that is deleted
// means no rules: everything is stable. While s cannot be read, the last good
// set stays for as long as it takes.
//
// Follow blocks: run it in a goroutine of its own. An engine follows one store
// at a time; another call returns [ErrFollowing].
func (e *Engine) Follow(ctx context.Context, s Store) error {
	if !e.following.CompareAndSwap(false, true) {
		return ErrFollowing
	}
	defer e.following.Store(false)
	defer rulegauge.Observe(e.config.provider, e.observed)()
	f := follower{engine: e}
	for d, err := range s.Watch(ctx) {
		if err != nil {
			f.storeFailed(ctx, err)
			continue
		}
		f.storeWorks(ctx)
		f.take(ctx, d)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	e.setStoreErr(ErrStoreEnded)
	return ErrStoreEnded
}

// observed is what the gauges of the engine show.
func (e *Engine) observed() rulegauge.State {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.current.Load()
	return rulegauge.State{
		Revision: s.document.Revision,
		Age:      time.Since(s.loaded),
		Refused:  e.health.refused != nil,
		Store:    e.health.store != nil,
	}
}

// follower is one call of Follow.
type follower struct {
	engine  *Engine
	data    []byte   // of the document that was taken last
	program *program // made of data; nil where there is none

	refused  []byte // the document that was refused last
	loggedAt uint64 // its revision
	failing  string // the text of the error of the store, as it was logged
}

func (f *follower) logger() *slog.Logger { return f.engine.config.logger() }

func (e *Engine) setStoreErr(err error) {
	e.mu.Lock()
	e.health.store = err
	e.mu.Unlock()
}

func (f *follower) storeFailed(ctx context.Context, err error) {
	if f.failing != err.Error() {
		f.failing = err.Error()
		f.logger().LogAttrs(ctx, slog.LevelWarn, "gray rules: the store cannot be read, the last good rules stay",
			slog.Any("error", err), slog.Uint64("revision", f.engine.current.Load().document.Revision))
	}
	f.engine.setStoreErr(err)
}

func (f *follower) storeWorks(ctx context.Context) {
	if f.failing != "" {
		f.failing = ""
		f.logger().LogAttrs(ctx, slog.LevelInfo, "gray rules: the store can be read again")
	}
	f.engine.setStoreErr(nil)
}

// take puts a document in force, or refuses it.
func (f *follower) take(ctx context.Context, d Document) {
	var p *program
	switch {
	case !d.Exists():
		p = compile(&Set{})
	case f.program != nil && bytes.Equal(d.Data, f.data):
		p = f.program // only the revision is new
	default:
		set, err := Parse(d.Data)
		if err != nil {
			f.refuse(ctx, d, err)
			return
		}
		p = compile(set)
	}
	f.data, f.program = d.Data, nil
	if d.Exists() {
		f.program = p
	}
	f.refused, f.loggedAt = nil, 0
	d.Data = nil

	e := f.engine
	e.mu.Lock()
	before := e.base
	e.put(base{program: p, document: d, loaded: time.Now()})
	e.health.refused, e.health.revision = nil, 0
	e.mu.Unlock()
	e.notify()

	if !d.Exists() {
		f.logger().LogAttrs(ctx, slog.LevelInfo, "gray rules: there is no document, everything is stable",
			slog.Uint64("before", before.document.Revision))
		return
	}
	f.logger().LogAttrs(ctx, slog.LevelInfo, "gray rules: in force",
		slog.Uint64("revision", d.Revision), slog.Int("rules", p.enabled), slog.Bool("stop", p.stop),
		slog.String("author", shorten(d.Author)), slog.String("reason", shorten(d.Reason)))
}

// refuse keeps what is in force.
func (f *follower) refuse(ctx context.Context, d Document, err error) {
	e := f.engine
	if f.loggedAt != d.Revision || !bytes.Equal(f.refused, d.Data) {
		f.refused, f.loggedAt = d.Data, d.Revision
		f.logger().LogAttrs(ctx, slog.LevelError, "gray rules: document refused, the last good rules stay",
			slog.Uint64("revision", d.Revision), slog.Any("error", err), slog.Uint64("in_force", e.current.Load().document.Revision))
	}
	e.mu.Lock()
	e.health.refused, e.health.revision = err, d.Revision
	e.mu.Unlock()
	e.notify()
}
