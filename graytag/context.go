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
	if b := baggage.FromContext(ctx); b.Len() > 0 || t.p != nil {
		if next, changed := t.intoBaggage(b); changed {
			ctx = baggage.ContextWithBaggage(ctx, next)
		}
	}
	return context.WithValue(ctx, ctxKey, t.p) // nil is a value, too: untagged
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
