package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/registry"
)

// Route says which requests go to which service.
type Route struct {
	// Host is the host that the client asked for, without a port and in any
	// case; "*.example.com" is every name below example.com. "" is every host.
	Host string
	// Prefix is a path prefix in plain text, not escaped, such as "/orders" or
	// "/shop.Orders". It takes whole segments: "/orders" takes /orders and
	// /orders/1, not /ordersheet. An escaped slash, %2F, is part of a segment.
	// "/orders/" is the same as "/orders", and "" the same as "/": every path.
	// A request with . or .. as a segment of its path, in whatever form, has no
	// route: clients resolve them, and a service that did would serve what its
	// prefix does not give away.
	Prefix string
	// Service is the name of the service in the registry.
	Service string
	// StripPrefix takes Prefix off the path that the service gets; it is told in
	// X-Forwarded-Prefix.
	StripPrefix bool
	// PreserveHost hands on the Host that the client sent. Otherwise Host is the
	// name of the service, and the client's is in X-Forwarded-Host alone.
	PreserveHost bool
	// TLS speaks https to the instances. Their certificates have to be valid for
	// the name of the service.
	TLS bool
	// H2C speaks HTTP/2 without TLS to the instances (prior knowledge, RFC 9113,
	// section 3.3), for every request but upgrades. Requests of gRPC always do.
	H2C bool
	// Timeout is how long the header of an answer may take, everything included;
	// then the client gets 504. It does not hold for gRPC. 0 is that of
	// [WithTimeout], negative is none.
	Timeout time.Duration
}

// String returns the route as it is named in errors and logs.
func (r Route) String() string {
	return fmt.Sprintf("host %q, prefix %q, service %q", r.Host, r.Prefix, r.Service)
}

// route is a Route that is ready to serve. It is immutable once New has returned.
type route struct {
	Route           // Host and Prefix in the form in which they are compared
	scheme   string // towards the instances
	timeout  time.Duration
	upgrades []string
	maxBody  int64
	entrance http.Handler
	names    *edge.Names // of the headers that carry tags
	proxy    *httputil.ReverseProxy
	h2c      *httputil.ReverseProxy
	fail     func(http.ResponseWriter, *http.Request, Failure)
	limit    *limiter

	observers []func(context.Context, Exchange)
}

// table finds the route of a request. Of the routes whose host fits the most
// exact one wins, and of those the one with the longest prefix; where none of
// them has a prefix that fits, the next less exact host has its turn.
type table struct {
	routes []*route
	exact  map[string]prefixes
	wild   []wildcard // longest first
	any    prefixes
}

type wildcard struct {
	suffix string // with the leading dot
	prefixes
}

// prefixes maps the prefixes of one host to routes.
type prefixes struct {
	routes  map[string]*route
	longest int // in bytes
}

func (p *prefixes) add(rt *route) (taken *route) {
	if taken = p.routes[rt.Prefix]; taken != nil {
		return taken
	}
	if p.routes == nil {
		p.routes = make(map[string]*route)
	}
	p.routes[rt.Prefix] = rt
	p.longest = max(p.longest, len(rt.Prefix))
	return nil
}

// find looks up the prefixes that path has, the longest first. What it costs is
// bounded by the longest prefix, not by the path.
func (p *prefixes) find(path string) *route {
	if len(p.routes) == 0 {
		return nil
	}
	at := path
	if len(at) > p.longest {
		if at = at[:p.longest]; path[p.longest] != '/' {
			at = at[:max(0, strings.LastIndexByte(at, '/'))]
		}
	}
	for {
		if rt := p.routes[at]; rt != nil {
			return rt
		}
		if at == "" {
			return nil
		}
		at = at[:strings.LastIndexByte(at, '/')]
	}
}

func newTable(routes []Route) (*table, error) {
	if len(routes) == 0 {
		return nil, errors.New("gateway: no route, want WithRoutes with one or more")
	}
	t := &table{exact: make(map[string]prefixes)}
	var faults []error
	index := make(map[*route]int, len(routes))
	for i, r := range routes {
		rt, err := newRoute(r)
		if err != nil {
			faults = append(faults, fmt.Errorf("gateway: route %d (%v): %w", i, r, err))
			continue
		}
		if taken := t.add(rt); taken != nil {
			faults = append(faults, fmt.Errorf("gateway: route %d (%v): route %d (%v) takes the same requests", i, r, index[taken], routes[index[taken]]))
			continue
		}
		index[rt] = i
		t.routes = append(t.routes, rt)
	}
	slices.SortStableFunc(t.wild, func(a, b wildcard) int { return len(b.suffix) - len(a.suffix) })
	return t, errors.Join(faults...)
}

func (t *table) add(rt *route) (taken *route) {
	switch {
	case rt.Host == "":
		return t.any.add(rt)
	case rt.Host[0] == '*':
		suffix := rt.Host[1:]
		for i := range t.wild {
			if t.wild[i].suffix == suffix {
				return t.wild[i].add(rt)
			}
		}
		w := wildcard{suffix: suffix}
		w.add(rt)
		t.wild = append(t.wild, w)
		return nil
	}
	p := t.exact[rt.Host]
	taken = p.add(rt)
	t.exact[rt.Host] = p
	return taken
}

// find returns the route of r, nil where there is none.
func (t *table) find(r *http.Request) *route {
	path := decodedPath(r.URL)
	if path == "" && r.URL.Host != "" && r.Method != http.MethodOptions {
		path = "/" // an absolute URI without a path (RFC 9112, section 3.2.1)
	}
	if path == "" || path[0] != '/' || hasDots(r.URL.Path) {
		return nil // "*", an authority, or a path that a service makes another of
	}
	if len(t.exact) > 0 || len(t.wild) > 0 {
		host := canonicalHost(r.Host)
		if p, ok := t.exact[host]; ok {
			if rt := p.find(path); rt != nil {
				return rt
			}
		}
		for i := range t.wild {
			if w := &t.wild[i]; len(host) > len(w.suffix) && strings.HasSuffix(host, w.suffix) {
				if rt := w.find(path); rt != nil {
					return rt
				}
			}
		}
	}
	return t.any.find(path)
}

// decodedPath returns the path of u decoded, but for slashes that are escaped: they
// stay %2F, which no prefix holds.
func decodedPath(u *url.URL) string {
	if u.RawPath == "" {
		return u.Path // an escaped slash would have set it
	}
	escaped := strings.ReplaceAll(u.EscapedPath(), "%2f", "%2F")
	if !strings.Contains(escaped, "%2F") {
		return u.Path
	}
	var b strings.Builder
	for part := range strings.SplitSeq(escaped, "%2F") {
		if b.Len() > 0 {
			b.WriteString("%2F")
		}
		plain, err := url.PathUnescape(part)
		if err != nil {
			return "" // no URL that was parsed comes here
		}
		b.WriteString(plain)
	}
	return b.String()
}

// hasDots tells whether a path, decoded, has a segment . or .. in the eyes of any
// service: some take a backslash for a slash, and some cut off what follows a ";".
func hasDots(path string) bool {
	for i := 0; ; i++ {
		next := strings.IndexByte(path[i:], '.')
		if next < 0 {
			return false
		}
		if i += next; i > 0 && path[i-1] != '/' && path[i-1] != '\\' {
			continue
		}
		end := i + 1
		if end < len(path) && path[end] == '.' {
			end++
		}
		if end == len(path) || path[end] == '/' || path[end] == '\\' || path[end] == ';' {
			return true
		}
		i = end - 1
	}
}

// canonicalHost returns a Host header in lower case without port and final dot.
func canonicalHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && i > strings.LastIndexByte(host, ']') {
		host = host[:i]
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

func newRoute(r Route) (*route, error) {
	rt := &route{Route: r, scheme: "http"}
	if r.TLS {
		rt.scheme = "https"
	}
	if r.TLS && r.H2C {
		return nil, errors.New("both TLS and H2C, want one: HTTP/2 over TLS needs no setting")
	}
	if err := checkHost(r.Host); err != nil {
		return nil, err
	}
	rt.Host = strings.ToLower(strings.TrimSuffix(r.Host, "."))
	prefix, err := checkPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	rt.Prefix = prefix
	// An instance of it has to be valid somewhere.
	if err := (registry.Instance{ID: "x", Service: r.Service, Address: "localhost:1"}).Validate(); err != nil {
		return nil, err
	}
	if strings.ContainsAny(r.Service, `@[]\"<>^`+"`{|}") {
		return nil, fmt.Errorf("service %q, want a name that can be the host of a URL", r.Service)
	}
	return rt, nil
}

func checkHost(host string) error {
	name, wild := strings.CutPrefix(host, "*.")
	if wild && name == "" || strings.Contains(name, "*") {
		return fmt.Errorf("host %q, want a name, or *. and a name", host)
	}
	bare := strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]")
	if !bare && strings.Contains(host, ":") {
		return fmt.Errorf("host %q, want it without a port, and an IPv6 address in brackets", host)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7F || strings.IndexByte(`/?#@%\`, c) >= 0 {
			return fmt.Errorf("host %q, want a name as it stands in a Host header", host)
		}
	}
	return nil
}

// checkPrefix returns the prefix in the form in which it is compared: "" for every
// path, else without a slash at its end.
func checkPrefix(prefix string) (string, error) {
	plain := strings.TrimSuffix(prefix, "/")
	if plain == "" && len(prefix) <= 1 {
		return "", nil
	}
	if plain == "" || plain[0] != '/' {
		return "", fmt.Errorf("prefix %q, want one that starts with /", prefix)
	}
	for segment := range strings.SplitSeq(plain[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return "", fmt.Errorf("prefix %q, want one whose segments are not empty, and without . and .. among them", prefix)
		}
	}
	for i := range len(plain) {
		if c := plain[i]; c < ' ' || c == 0x7F || c == '%' || c == '?' || c == '#' {
			return "", fmt.Errorf("prefix %q, want a path in plain text without %%, ?, # and control characters", prefix)
		}
	}
	return plain, nil
}
