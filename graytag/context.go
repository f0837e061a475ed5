package graytag

import (
	"context"

	"go.opentelemetry.io/otel/baggage"
)

// contextKey is compared by address, which is what makes a look-up cheap.
type contextKey struct{ _ byte }

var ctxKey = &contextKey{}

// NewContext returns ctx with t in it, and in scope. It also writes t into the
// OTel baggage of ctx, one member gray.<key> per pair, so that any client that
// OTel instruments hands the tag on: other members are kept, gray.* members
// that were there go. Where the members of t do not fit into the limits of W3C
// Baggage (64 members, 8192 bytes) all of them are left out; the tag itself is
// in the context all the same.
//
// The zero Tag says that the request is known to be untagged.
func NewContext(ctx context.Context, t Tag) context.Context {
	alone := t.p != nil && otelKey != nil && ctx.Value(otelKey) == nil // no baggage, and no hook of OTel's
	if alone {
		if state := t.asMembers().otelState(); state != nil {
			return &tagContext{ctx, t.p, state}
		}
	}
	if b := baggage.FromContext(ctx); b.Len() > 0 || t.p != nil {
		if next, changed := t.intoBaggage(b); changed {
			ctx = baggage.ContextWithBaggage(ctx, next)
			if alone {
				t.asMembers().keepState(ctx.Value(otelKey))
			}
		}
	}
	return context.WithValue(ctx, ctxKey, t.p) // nil is a value, too: untagged
}

// tagContext is a context with a tag that was in one before, and with its baggage: one
// layer in place of two, and what OTel looks for is not built again.
type tagContext struct {
	context.Context
	tag   *tag
	state any
}

func (c *tagContext) Value(key any) any {
	switch key {
	case ctxKey:
		return c.tag
	case otelKey:
		return c.state
	}
	return c.Context.Value(key)
}

// otelKey is the key under which OTel keeps baggage in a context, nil where it does
// so in another way, under several keys for example.
var otelKey = func() any {
	asked := &askedContext{Context: context.Background()}
	baggage.FromContext(asked)
	if len(asked.keys) != 1 {
		return nil
	}
	return asked.keys[0]
}()

// askedContext is a context that remembers what it was asked for.
type askedContext struct {
	context.Context
	keys []any
}

func (c *askedContext) Value(key any) any {
	c.keys = append(c.keys, key)
	return nil
}

// FromContext returns the tag of ctx: the one that [NewContext] put in, else
// the one that the gray.* members of its OTel baggage spell, as they do in a
// service that has only OTel middleware. It returns the zero Tag where there is
// none or where those members make no valid tag. It does not allocate where
// NewContext has seen ctx.
func FromContext(ctx context.Context) Tag {
	if p, ok := ctx.Value(ctxKey).(*tag); ok {
		return Tag{p: p}
	}
	return fromContextBaggage(ctx)
}

// fromContextBaggage is apart so that FromContext is small enough to be inlined.
func fromContextBaggage(ctx context.Context) Tag {
	b := baggage.FromContext(ctx)
	if b.Len() == 0 {
		return Tag{}
	}
	t, _ := FromBaggage(b)
	return t
}

// InScope tells whether the request that ctx belongs to has passed an inbound
// middleware, an edge or [NewContext], or has gray.* baggage. "Untagged" and
// "the context was lost" look alike in [FromContext]; here they differ.
func InScope(ctx context.Context) bool {
	if ctx.Value(ctxKey) != nil {
		return true
	}
	b := baggage.FromContext(ctx)
	return b.Len() > 0 && hasMembers(b)
}
