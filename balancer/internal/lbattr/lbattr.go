package lbattr

import (
	"context"
	"maps"

	"google.golang.org/grpc/resolver"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
)

type metadataKey struct{}

// metadata has an Equal: attributes compare values with ==, which panics on a
// bare map.
type metadata map[string]string

func (m metadata) Equal(o any) bool {
	om, ok := o.(metadata)
	return ok && maps.Equal(m, om)
}

// SetMetadata returns e with the metadata of its instance, which must not be
// changed any more. It goes to the endpoint, not to its addresses: there every
// change would mean a new connection.
func SetMetadata(e resolver.Endpoint, m map[string]string) resolver.Endpoint {
	if len(m) > 0 {
		e.Attributes = e.Attributes.WithValue(metadataKey{}, metadata(m))
	}
	return e
}

// Metadata returns what SetMetadata put in, nil where there is none.
func Metadata(e resolver.Endpoint) map[string]string {
	m, _ := e.Attributes.Value(metadataKey{}).(metadata)
	return m
}

type idKey struct{}

// SetID returns e with the ID of its instance.
func SetID(e resolver.Endpoint, id string) resolver.Endpoint {
	if id != "" {
		e.Attributes = e.Attributes.WithValue(idKey{}, id)
	}
	return e
}

// ID returns what SetID put in, "" where there is none.
func ID(e resolver.Endpoint) string {
	id, _ := e.Attributes.Value(idKey{}).(string)
	return id
}

type unusableKey struct{}

// SetUnusable returns e as an endpoint that is registered and must not serve: it
// is not dialled, and tells a version that is out of order from one that there
// is not.
func SetUnusable(e resolver.Endpoint) resolver.Endpoint {
	e.Attributes = e.Attributes.WithValue(unusableKey{}, true)
	return e
}

// Unusable tells whether SetUnusable made e.
func Unusable(e resolver.Endpoint) bool {
	unusable, _ := e.Attributes.Value(unusableKey{}).(bool)
	return unusable
}

type clientKey struct{}

// Client is what the balancer needs of the client that it works for. One Client
// accompanies all states of one resolver.
type Client struct {
	Service string
	Metrics *telemetry.Metrics                     // nil counts nothing
	Observe func(context.Context, subset.Decision) // nil where nobody looks
}

// SetClient returns s with c.
func SetClient(s resolver.State, c *Client) resolver.State {
	s.Attributes = s.Attributes.WithValue(clientKey{}, c)
	return s
}

// ClientOf returns what SetClient put in, nil where there is none.
func ClientOf(s resolver.State) *Client {
	c, _ := s.Attributes.Value(clientKey{}).(*Client)
	return c
}
