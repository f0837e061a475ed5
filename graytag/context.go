package graytag

import (
	"context"

	"go.opentelemetry.io/otel/baggage"
)

// contextKey is compared by address, which is what makes a look-up cheap.
type contextKey struct{ _ byte }

var (
	ctxKey = &contextKey{}
	// untagged stands in a context for the zero Tag: in scope, and no tag.
	untagged = &tag{}
)

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
	p := t.p
	if p == nil {
		p = untagged
	}
	return context.WithValue(ctx, ctxKey, p)
}

// FromContext returns the tag of ctx: the one that [NewContext] put in, else
// the one that the gray.* members of its OTel baggage spell, as they do in a
// service that has only OTel middleware. It returns the zero Tag where there is
// none or where those members make no valid tag. It does not allocate where
// NewContext has seen ctx.
func FromContext(ctx context.Context) Tag {
	if p, ok := ctx.Value(ctxKey).(*tag); ok {
		if p == untagged {
			return Tag{}
		}
		return Tag{p: p}
	}
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
