package grayslog

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
)

// NewHandler returns a handler that adds the version that the request of a record's
// context wants, and by option its tag, to what h writes. It is safe for concurrent
// use where h is. Where h is a handler of this package, it is not wrapped again: the
// options add to those that it has.
//
// nil stands for the handler of slog.Default() at this moment. The one that slog
// starts with, given or meant by nil, is replaced by a slog.TextHandler on
// log.Writer(): it hands its lines to package log, which deadlocks once a handler
// around it is made the default. One that slog.Logger.With made of it is used as it
// is, and must not become the default.
func NewHandler(h slog.Handler, opts ...Option) slog.Handler {
	if h == nil {
		h = slog.Default().Handler()
	}
	if isInitial(h) {
		h = slog.NewTextHandler(log.Writer(), nil)
	}
	made := &handler{next: h, top: h}
	var base *config
	if o, ok := h.(*handler); ok {
		made, base = o.with(), o.config
	}
	var err error
	if made.config, err = newConfig(base, opts); err != nil {
		slog.New(h).Error("grayslog: policy refused, the default policy says what is a version", "err", err)
	}
	return made
}

// initial is what slog.Default() has until somebody sets another.
var initial = slog.Default().Handler()

func isInitial(h slog.Handler) bool {
	// The type first: comparing two handlers panics where their type has no ==, and
	// initial is another one where the init of a package has set the default.
	return fmt.Sprintf("%T", h) == "*slog.defaultHandler" && h == initial
}

// handler is immutable, but for the cache.
type handler struct {
	config *config
	own    own // of the top level

	next slog.Handler // with all groups and attributes; for lines of no request

	// Attributes of the top level cannot be added to a handler with an open group:
	// what was called since the first one is called again on a handler that has them.
	top   slog.Handler // next without calls
	calls []call
	made  atomic.Pointer[[]variant]
}

// call is one of WithGroup, where group is not empty, or of WithAttrs.
type call struct {
	group string
	attrs []slog.Attr
}

// variant is a handler with calls, whose lines say version.
type variant struct {
	version string
	handler slog.Handler
}

// maxVariants bounds what is kept; a service sees a few versions at a time.
const maxVariants = 8

var _ slog.Handler = (*handler)(nil)

// with returns a copy of h without its cache.
func (h *handler) with() *handler {
	return &handler{config: h.config, own: h.own, next: h.next, top: h.top, calls: h.calls}
}

// Enabled implements [slog.Handler].
func (h *handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements [slog.Handler].
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	w := h.with()
	if len(h.calls) > 0 {
		attrs = resolve(attrs)
		w.calls = append(slices.Clip(h.calls), call{attrs: attrs})
		w.next = h.next.WithAttrs(slices.Clone(attrs)) // which may keep and change them
		return w
	}
	for _, a := range attrs {
		w.own.see(a)
	}
	w.next = h.next.WithAttrs(attrs)
	w.top = w.next
	return w
}

// WithGroup implements [slog.Handler].
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	w := h.with()
	w.calls = append(slices.Clip(h.calls), call{group: name})
	w.next = h.next.WithGroup(name)
	return w
}

// Handle implements [slog.Handler].
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	e := h.config.read(ctx).without(h.own)
	if e.isZero() {
		return h.next.Handle(ctx, r)
	}
	if len(h.calls) > 0 {
		return h.variant(e).Handle(ctx, r)
	}
	var said own
	r.Attrs(func(a slog.Attr) bool {
		said.see(a)
		return true
	})
	if e = e.without(said); e.isZero() {
		return h.next.Handle(ctx, r)
	}
	r = r.Clone()
	switch {
	case e.tag.IsZero():
		r.AddAttrs(slog.String(VersionKey, e.version))
	case e.version == "":
		r.AddAttrs(h.config.tagAttr(e.tag))
	default:
		r.AddAttrs(slog.String(VersionKey, e.version), h.config.tagAttr(e.tag))
	}
	return h.next.Handle(ctx, r)
}

// variant returns next with e at the top level.
func (h *handler) variant(e entry) slog.Handler {
	if !e.tag.IsZero() { // which few requests share
		var attrs []slog.Attr
		if e.version != "" {
			attrs = append(attrs, slog.String(VersionKey, e.version))
		}
		return h.remake(append(attrs, h.config.tagAttr(e.tag)))
	}
	var kept []variant
	if p := h.made.Load(); p != nil {
		kept = *p
	}
	for i := range kept {
		if kept[i].version == e.version {
			return kept[i].handler
		}
	}
	return h.keep(kept, e)
}

// keep makes the variant for e and keeps it beside the newest of kept.
func (h *handler) keep(kept []variant, e entry) slog.Handler {
	v := variant{version: strings.Clone(e.version)} // which may be a piece of a header that would be kept with it
	v.handler = h.remake([]slog.Attr{slog.String(VersionKey, v.version)})
	next := append(slices.Clone(kept[max(0, len(kept)+1-maxVariants):]), v)
	// Of goroutines that get here at once the last one stays: what the others made
	// is made again.
	h.made.Store(&next)
	return v.handler
}

// remake returns top with attrs, and with what was called since.
func (h *handler) remake(attrs []slog.Attr) slog.Handler {
	next := h.top.WithAttrs(attrs)
	for _, c := range h.calls {
		if c.group != "" {
			next = next.WithGroup(c.group)
		} else {
			next = next.WithAttrs(slices.Clone(c.attrs))
		}
	}
	return next
}

// resolve returns a copy of attrs that says later what it says now, as far as slog can
// know: a handler that formats what it is given at once would call LogValue now.
func resolve(attrs []slog.Attr) []slog.Attr {
	resolved := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		a.Value = a.Value.Resolve()
		if a.Value.Kind() == slog.KindGroup {
			a.Value = slog.GroupValue(resolve(a.Value.Group())...)
		}
		resolved[i] = a
	}
	return resolved
}
