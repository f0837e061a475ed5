package arrival

import (
	"context"

	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
)

// Key is the key under which a context holds a *subset.Arrival.
type Key struct{}

// NewContext returns ctx with a, which may be nil: then it is ctx.
func NewContext(ctx context.Context, a *subset.Arrival) context.Context {
	if a == nil {
		return ctx
	}
	return context.WithValue(ctx, Key{}, a)
}

// FromContext returns what NewContext or Untagged put in.
func FromContext(ctx context.Context) (a subset.Arrival, ok bool) {
	p, ok := ctx.Value(Key{}).(*subset.Arrival)
	if !ok {
		return subset.Arrival{}, false
	}
	return *p, true
}

// Known tells whether the arrival of the request of ctx at this instance is known
// already: middleware of ours stands around this one.
func (s *Self) Known(ctx context.Context) bool {
	p, ok := ctx.Value(Key{}).(*subset.Arrival)
	return ok && p.Service == s.own.Service && p.Version == s.own.Version
}

// Untagged returns ctx in scope and without a tag, and with a where it is not
// nil.
func Untagged(ctx context.Context, a *subset.Arrival) context.Context {
	if baggage.FromContext(ctx).Len() > 0 {
		// There may be gray.* members among them that spell no tag, put there
		// by OTel middleware outside ours.
		return NewContext(graytag.NewContext(ctx, graytag.Tag{}), a)
	}
	return &untagged{ctx, a}
}

// untagged is the context of an untagged request with its arrival: one layer in
// place of two, since most requests are untagged.
type untagged struct {
	context.Context
	arrival *subset.Arrival // may be nil
}

// inScope answers what graytag asks of an untagged context.
var inScope = graytag.NewContext(context.Background(), graytag.Tag{})

// UntaggedValue answers for a context that is in scope and untagged: it returns
// what graytag looks for, and nil for every other key.
func UntaggedValue(key any) any { return inScope.Value(key) }

func (c *untagged) Value(key any) any {
	if key == (Key{}) {
		if c.arrival == nil {
			return nil
		}
		return c.arrival
	}
	if v := UntaggedValue(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}
