package graygrpc

import (
	"context"
	"net/netip"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/arrival"
)

// Entry is what an [Edge] knows of a call, for logs and for handlers that have to
// know whom they serve.
type Entry struct {
	// Client is the address that rules see as ip: the peer's, or what trusted
	// proxies say. It is not valid where the peer has no IP address.
	Client netip.Addr
	// Passed tells that the tag came from a trusted gateway. No rule was asked
	// then: of Decision, Key alone is set. So it is for methods that are exempt.
	Passed bool
	// Decision is what the rules said. What its slices hold must not be changed.
	Decision rule.Decision

	private bool // the answer says nothing of the inside
}

type entryKey struct{}

// EntryFromContext returns what the [Edge] of this process knows of the call of
// ctx; ok is false where there was none.
func EntryFromContext(ctx context.Context) (e Entry, ok bool) {
	p, ok := ctx.Value(entryKey{}).(*Entry)
	if !ok {
		return Entry{}, false
	}
	return *p, true
}

// edgeContext is one layer for what an Edge adds to a context.
type edgeContext struct {
	context.Context
	arrival  *Arrival // may be nil
	entry    Entry
	untagged bool
}

func (c *edgeContext) Value(key any) any {
	switch key {
	case arrival.Key{}:
		if c.arrival != nil {
			return c.arrival
		}
		return nil
	case entryKey{}:
		return &c.entry
	}
	if c.untagged {
		if v := arrival.UntaggedValue(key); v != nil {
			return v
		}
	}
	return c.Context.Value(key)
}
