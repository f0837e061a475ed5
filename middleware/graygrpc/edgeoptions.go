package graygrpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/graylane/graylane/internal/edge"
)

// WithTrustedGateways names the edges whose tags an [Edge] believes: CIDR ranges,
// or addresses, of the peers that connect to it. Whoever is in one of them must
// remove what comes from outside itself. A valid tag of theirs passes as it is, and
// no rule is asked; where they send none, the rules decide. What counts is the
// other end of the connection, never x-forwarded-for. Nobody is trusted by default.
func WithTrustedGateways(cidrs ...string) EdgeOption {
	return edgeOptionFunc(func(c *config) { c.gateways = append(c.gateways, cidrs...) })
}

// WithTrustedProxies names the proxies, as CIDR ranges or addresses, that an
// [Edge] believes the address of a client (x-forwarded-for, read from the right
// through all that are named). It says nothing of tags. Nobody is trusted by
// default.
func WithTrustedProxies(cidrs ...string) EdgeOption {
	return edgeOptionFunc(func(c *config) { c.proxies = append(c.proxies, cidrs...) })
}

// WithAttr gives an attribute of the rules the value that code knows, the
// authenticated user for example, in place of the sources that the rule set
// names: what metadata claims does not count any more, also where ok is false,
// which is that the call has no such attribute. A rule that names header:N itself
// still reads the metadata.
//
// value gets the context of the call, with what interceptors before the Edge have
// put into it. It is asked once at most, and only where a rule looks at the
// attribute; it must be quick and safe for concurrent use. The built-in
// attributes ip, host, path, method and source cannot be replaced.
func WithAttr(name string, value func(context.Context) (_ string, ok bool)) EdgeOption {
	return edgeOptionFunc(func(c *config) {
		if value != nil {
			c.attrs = append(c.attrs, attr{name, value})
		}
	})
}

type attr struct {
	name  string
	value func(context.Context) (string, bool)
}

// trust is who is believed what.
type trust struct{ gateways, proxies edge.Prefixes }

func newTrust(c *config) (t trust, err error) {
	if t.gateways, err = edge.ParsePrefixes(c.gateways); err != nil {
		return trust{}, fmt.Errorf("graygrpc: WithTrustedGateways: %w", err)
	}
	if t.proxies, err = edge.ParsePrefixes(c.proxies); err != nil {
		return trust{}, fmt.Errorf("graygrpc: WithTrustedProxies: %w", err)
	}
	return t, nil
}

func checkAttrs(attrs []attr) error {
	for _, a := range attrs {
		if err := edge.CheckAttr(a.name); err != nil {
			return fmt.Errorf("graygrpc: WithAttr: %w", err)
		}
	}
	return nil
}

var errNoEngine = errors.New("graygrpc: engine is nil")
