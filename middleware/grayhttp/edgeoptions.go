package grayhttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/graylane/graylane/internal/edge"
)

// WithTrustedGateways names the edges whose tags an [Edge] believes: CIDR ranges,
// or addresses, of the peers that connect to it. Whoever is in one of them must
// remove what comes from outside itself. A valid tag of theirs passes as it is, and
// no rule is asked; where they send none, the rules decide. What counts is the
// other end of the connection, never X-Forwarded-For. Nobody is trusted by default.
func WithTrustedGateways(cidrs ...string) EdgeOption {
	return edgeOptionFunc(func(c *config) { c.gateways = append(c.gateways, cidrs...) })
}

// WithTrustedProxies names the proxies, as CIDR ranges or addresses, that an
// [Edge] believes the address of a client (X-Forwarded-For, read from the right
// through all that are named) and whether the client speaks TLS
// (X-Forwarded-Proto). It says nothing of tags. Nobody is trusted by default.
func WithTrustedProxies(cidrs ...string) EdgeOption {
	return edgeOptionFunc(func(c *config) { c.proxies = append(c.proxies, cidrs...) })
}

// WithAttr gives an attribute of the rules the value that code knows, the
// authenticated user for example, in place of the sources that the rule set
// names: what a header claims does not count any more, also where ok is false,
// which is that the request has no such attribute. A rule that names header:N
// itself still reads the header.
//
// value is asked at most twice for a request, and only where a rule looks at the
// attribute; it must be quick and safe for concurrent use. What it reads, an
// authentication middleware outside the Edge has to have put into the context. The
// built-in attributes ip, host, path, method and source cannot be replaced.
func WithAttr(name string, value func(*http.Request) (_ string, ok bool)) EdgeOption {
	return edgeOptionFunc(func(c *config) {
		if value != nil {
			c.attrs = append(c.attrs, attr{name, value})
		}
	})
}

type attr struct {
	name  string
	value func(*http.Request) (string, bool)
}

// StickyCookie describes the cookie of [WithStickyCookie]. The zero value is
// ready for use.
type StickyCookie struct {
	// MaxAge is how long a browser keeps the cookie, in whole seconds; 0 is 30
	// days. It is not renewed: a visitor who comes back later is drawn anew.
	MaxAge time.Duration
	// Domain is shared with all of its subdomains; "" is the host alone.
	Domain string
}

const defaultStickyAge = 30 * 24 * time.Hour

// WithStickyCookie gives visitors a group where a percentage of the rules found
// nothing else to hash: the cookie gray_group, with a random value, HttpOnly,
// SameSite=Lax, Path=/, and Secure where the client speaks TLS. It is given only
// where it makes a difference, so rules have to name it, as the attribute group
// or as cookie:gray_group, in hashBy: "hashBy": ["uid", "group"]. The decision
// that comes with the cookie is made with its group already.
//
// The group is what is hashed, never a version: whatever the rules say at the
// next request holds then, for its holder, too. A client that keeps no cookies is
// drawn anew by each request.
//
// The answer that sets the cookie is marked Cache-Control: private, unless the
// handler says otherwise. Preflight requests (CORS) and calls of gRPC, other than
// gRPC-Web, get none: nobody would keep it.
func WithStickyCookie(cookie StickyCookie) EdgeOption {
	return edgeOptionFunc(func(c *config) { c.sticky = &cookie })
}

// trust is who is believed what.
type trust struct{ gateways, proxies edge.Prefixes }

func newTrust(c *config) (t trust, err error) {
	if t.gateways, err = edge.ParsePrefixes(c.gateways); err != nil {
		return trust{}, fmt.Errorf("grayhttp: WithTrustedGateways: %w", err)
	}
	if t.proxies, err = edge.ParsePrefixes(c.proxies); err != nil {
		return trust{}, fmt.Errorf("grayhttp: WithTrustedProxies: %w", err)
	}
	return t, nil
}

// client returns the address of the client of r.
func (t *trust) client(r *http.Request, peer netip.Addr) netip.Addr {
	return edge.ClientAddr(peer, r.Header["X-Forwarded-For"], t.proxies)
}

// secure tells whether the client of r speaks TLS.
func secure(r *http.Request, proxied bool) bool {
	return r.TLS != nil || proxied && edge.AllHTTPS(r.Header["X-Forwarded-Proto"])
}

func checkAttrs(attrs []attr) error {
	for _, a := range attrs {
		if err := edge.CheckAttr(a.name); err != nil {
			return fmt.Errorf("grayhttp: WithAttr: %w", err)
		}
	}
	return nil
}

func checkSticky(s *StickyCookie) (*StickyCookie, error) {
	if s == nil {
		return nil, nil
	}
	set := *s
	switch {
	case set.MaxAge == 0:
		set.MaxAge = defaultStickyAge
	case set.MaxAge < time.Second:
		return nil, fmt.Errorf("grayhttp: WithStickyCookie: MaxAge %v, want at least a second", set.MaxAge)
	}
	if err := edge.GroupSetCookie("x", set.Domain, set.MaxAge, false).Valid(); err != nil {
		return nil, fmt.Errorf("grayhttp: WithStickyCookie: domain %q: %w", set.Domain, err)
	}
	return &set, nil
}

var errNoEngine = errors.New("grayhttp: engine is nil")
