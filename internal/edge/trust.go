package edge

import "context"

type distrust struct{}

// WithoutTrust returns a context of a request that no edge believes a tag of,
// whoever the peer is.
func WithoutTrust(ctx context.Context) context.Context {
	return context.WithValue(ctx, distrust{}, true)
}

// Distrusts tells whether ctx comes from [WithoutTrust].
func Distrusts(ctx context.Context) bool { return ctx.Value(distrust{}) != nil }

type relay struct{}

// Relaying returns a context of a request that an edge of a proxy takes: the route
// that it answers with is that of its own call.
func Relaying(ctx context.Context) context.Context { return context.WithValue(ctx, relay{}, true) }

// Relays tells whether ctx comes from [Relaying].
func Relays(ctx context.Context) bool { return ctx.Value(relay{}) != nil }
