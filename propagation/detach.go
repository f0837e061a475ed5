package propagation

import (
	"context"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/trace"

	"github.com/graylane/graylane/graytag"
)

// Detach returns a context for work that outlives the request of ctx: it holds
// the tag, the baggage and the span context, and nothing else. It has no
// deadline, is never cancelled and has no other value, since what the request
// put there (a transaction, a ResponseWriter) ends with the request.
func Detach(ctx context.Context) context.Context {
	detached := context.Background()
	if sc := trace.SpanContextFromContext(ctx); sc.IsValid() {
		detached = trace.ContextWithSpanContext(detached, sc)
	}
	if b := baggage.FromContext(ctx); b.Len() > 0 {
		detached = baggage.ContextWithBaggage(detached, b)
	}
	if graytag.InScope(ctx) {
		detached = graytag.NewContext(detached, graytag.FromContext(ctx))
	}
	return detached
}

// Bind returns f bound to a context detached from ctx, for worker pools that
// take a func(). Detaching happens now, not when the pool runs it.
func Bind(ctx context.Context, f func(context.Context)) func() {
	detached := Detach(ctx)
	return func() { f(detached) }
}

// Go runs f in a goroutine of its own with a context detached from ctx. The
// caller owns the goroutine: nothing waits for it or ends it.
func Go(ctx context.Context, f func(context.Context)) { go f(Detach(ctx)) }
