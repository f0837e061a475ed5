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
