package graygrpc

import (
	"context"
	"net/textproto"
	"slices"
	"strings"
	"sync"

	otelprop "go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/propagation"
)

// Metadata keys of what the propagator writes, see package graytag and
// https://www.w3.org/TR/baggage/.
const (
	tagKey     = "x-gray-tag"
	baggageKey = "baggage"
	traceKey   = hops.TraceKey
)

// wireKey returns key as metadata holds it, without an allocation for the keys
// that every call asks for.
func wireKey(key string) string {
	switch key {
	case graytag.Header:
		return tagKey
	case baggageKey, "Baggage":
		return baggageKey
	}
	return strings.ToLower(key)
}

// incoming is a carrier over the metadata of an inbound RPC. It reads the keys
// that it is asked for and no others: FromIncomingContext would copy them all.
type incoming struct{ ctx context.Context }

var (
	_ otelprop.TextMapCarrier = (*incoming)(nil)
	_ otelprop.ValuesGetter   = (*incoming)(nil)
)

var incomingPool = sync.Pool{New: func() any { return new(incoming) }}

func (c *incoming) Values(key string) []string {
	return metadata.ValueFromIncomingContext(c.ctx, wireKey(key))
}

func (c *incoming) Get(key string) string {
	for _, v := range c.Values(key) {
		if v != "" {
			return v
		}
	}
	return ""
}

// Set does nothing: what came in is not ours to change.
func (c *incoming) Set(string, string) {}

func (c *incoming) Keys() []string {
	md, _ := metadata.FromIncomingContext(c.ctx)
	return keys(md)
}

// outgoing is a carrier over the metadata of an outbound RPC, which stays as
// the caller made it until commit returns a context with the changes. Where the
// caller's metadata holds none of the keys in question (fresh) the new pairs are
// appended; else it works on a copy.
type outgoing struct {
	md      metadata.MD // the copy; nil where fresh
	kv      []string
	changed bool
}

var (
	_ otelprop.TextMapCarrier = (*outgoing)(nil)
	_ otelprop.ValuesGetter   = (*outgoing)(nil)
	_ propagation.Deleter     = (*outgoing)(nil)
)

var outgoingPool = sync.Pool{New: func() any { return &outgoing{kv: make([]string, 0, 8)} }}

// outgoingOf returns the carrier of ctx; release it.
func outgoingOf(ctx context.Context, fresh bool) *outgoing {
	c := outgoingPool.Get().(*outgoing)
	if !fresh {
		c.md, _ = metadata.FromOutgoingContext(ctx)
	}
	return c
}

func (c *outgoing) release() {
	clear(c.kv)
	c.md, c.kv, c.changed = nil, c.kv[:0], false
	outgoingPool.Put(c)
}

// commit returns ctx with the metadata as it is now.
func (c *outgoing) commit(ctx context.Context) context.Context {
	switch {
	case !c.changed:
		return ctx
	case c.md != nil:
		return metadata.NewOutgoingContext(ctx, c.md)
	}
	return metadata.AppendToOutgoingContext(ctx, c.kv...)
}

func (c *outgoing) Values(key string) []string {
	key = wireKey(key)
	if c.md != nil {
		return c.md[key]
	}
	for i := 0; i < len(c.kv); i += 2 {
		if c.kv[i] == key {
			return c.kv[i+1 : i+2]
		}
	}
	return nil
}

func (c *outgoing) Get(key string) string {
	for _, v := range c.Values(key) {
		if v != "" {
			return v
		}
	}
	return ""
}

// Set replaces the values under key, in so far as gRPC takes them: a value with
// other bytes than 0x20 to 0x7E would fail the call before it is sent.
func (c *outgoing) Set(key, value string) {
	key = wireKey(key)
	if !printable(value) {
		if value = printableMembers(key, value); value == "" {
			c.Delete(key)
			return
		}
	}
	c.changed = true
	if c.md != nil {
		c.md[key] = []string{value}
		return
	}
	for i := 0; i < len(c.kv); i += 2 {
		if c.kv[i] == key {
			c.kv[i+1] = value
			return
		}
	}
	c.kv = append(c.kv, key, value)
}

// Delete removes the values under key.
func (c *outgoing) Delete(key string) {
	key = wireKey(key)
	if _, ok := c.md[key]; ok {
		delete(c.md, key)
		c.changed = true
	}
	for i := 0; i < len(c.kv); i += 2 {
		if c.kv[i] == key {
			c.kv = slices.Delete(c.kv, i, i+2)
			return
		}
	}
}

func (c *outgoing) Keys() []string { return keys(c.md) }

func keys(md metadata.MD) []string {
	list := make([]string, 0, len(md))
	for k := range md {
		list = append(list, k)
	}
	return list
}

func printable(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] > 0x7E {
			return false
		}
	}
	return true
}

// printableMembers returns the list-members of a baggage value that gRPC takes;
// of another value it takes nothing.
func printableMembers(key, value string) string {
	if key != baggageKey {
		return ""
	}
	var kept []string
	for m := range strings.SplitSeq(value, ",") {
		if m = textproto.TrimString(m); m != "" && printable(m) {
			kept = append(kept, m)
		}
	}
	return strings.Join(kept, ",")
}
