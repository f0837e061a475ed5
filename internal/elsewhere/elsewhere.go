// Package elsewhere tells a balancer of gRPC, through the context of a call, that an
// instance has refused it and that another one is wanted.
package elsewhere

import (
	"context"
	"sync/atomic"
)

// live counts the calls that look for another instance. It spares a look into the
// context of every call as long as none does, which is nearly always.
var live atomic.Int64

// Refusal says who has refused a call of Service, as far as the instance has told: by the ID or
// by the address that the registry has of it. Where neither is known any instance
// of its version may be the one.
type Refusal struct {
	Service     string
	ID, Address string

	nowhere atomic.Bool
}

// Nowhere notes that nobody else may serve the call.
func (r *Refusal) Nowhere() { r.nowhere.Store(true) }

// WasNowhere tells whether [Refusal.Nowhere] was called.
func (r *Refusal) WasNowhere() bool { return r.nowhere.Load() }

type key struct{}

// NewContext returns ctx for the second try of a call. The caller has to call done
// when an instance has been chosen.
func NewContext(ctx context.Context, r *Refusal) (_ context.Context, done func()) {
	live.Add(1)
	return context.WithValue(ctx, key{}, r), func() { live.Add(-1) }
}

// Live tells whether any call looks for another instance.
func Live() bool { return live.Load() != 0 }

// FromContext returns what NewContext put in, nil where there is nothing.
func FromContext(ctx context.Context) *Refusal {
	if !Live() {
		return nil
	}
	r, _ := ctx.Value(key{}).(*Refusal)
	return r
}

// Tried tells whether ctx is that of a second try.
func Tried(ctx context.Context) bool { return FromContext(ctx) != nil }
