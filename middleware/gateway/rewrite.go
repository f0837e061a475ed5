package gateway

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"

	"github.com/graylane/graylane/internal/edge"
)

// rewrite makes the request to the service of that to the gateway. The tag is not in
// it: the transport writes it last.
func (rt *route) rewrite(p *httputil.ProxyRequest) {
	x := p.In.Body.(*exchange)
	u := p.Out.URL
	u.Scheme, u.Host = rt.scheme, rt.Service
	u.User, u.Opaque = nil, "" // of a request in absolute form
	if strings.IndexByte(u.RawQuery, ' ') >= 0 {
		// HTTP/2 lets it through, and over HTTP/1.1 it would end the request's URI.
		u.RawQuery = strings.ReplaceAll(u.RawQuery, " ", "%20")
	}
	if !rt.PreserveHost {
		p.Out.Host = ""
	}
	p.Out.Body = x // for the transport
	if x.body != nil && len(p.In.Trailer) > 0 {
		x.body.in, x.body.out = p.In.Trailer, p.Out.Trailer
		p.Out.ContentLength = -1 // HTTP/1.1 has trailers in chunks alone
	}
	if p.In.Header == nil {
		p.Out.Header = x.outgoing()
	} else {
		x.tunnelled(p.Out.Header)
	}
	x.forwarded(p.Out.Header)
	if rt.StripPrefix && rt.Prefix != "" {
		stripPrefix(u, rt.Prefix)
		p.Out.Header["X-Forwarded-Prefix"] = []string{rt.Prefix}
	}
}

// forwarded tells the service whom the gateway speaks for. What a trusted proxy
// says of that is kept and extended, all else is replaced.
func (x *exchange) forwarded(h http.Header) {
	values := new([3]string) // in one allocation
	if x.proxied {
		values[0] = strings.Join(x.header["X-Forwarded-For"], ", ")
		values[1] = x.header.Get("X-Forwarded-Host")
		values[2] = x.header.Get("X-Forwarded-Proto")
	}
	if peer, _, err := net.SplitHostPort(x.in.RemoteAddr); err == nil {
		if values[0] != "" {
			values[0] += ", "
		}
		values[0] += peer
	}
	if values[1] == "" {
		values[1] = x.in.Host
	}
	if values[2] == "" {
		values[2] = "http"
		if x.in.TLS != nil {
			values[2] = "https"
		}
	}
	if values[0] != "" { // a peer of a Unix socket has no address
		h["X-Forwarded-For"] = values[0:1:1]
	}
	h["X-Forwarded-Host"] = values[1:2:2]
	h["X-Forwarded-Proto"] = values[2:3:3]
}

// tunnelled does with h, which the proxy has copied, what outgoing does.
func (x *exchange) tunnelled(h http.Header) {
	for k, v := range h {
		own := x.route.names.Canonical(k)
		switch {
		case own == k:
		case own != "":
			delete(h, k)
			h[own] = append(slices.Clip(h[own]), v...)
		case isRemoved(k, x.proxied):
			delete(h, k)
		}
	}
}

// isRemoved tells whether a header is one that only a proxy has a say in, and that
// frameworks believe. What a trusted proxy sent stays, but for names with '_', which
// it would not use.
func isRemoved(name string, proxied bool) bool {
	return len(name) > 2 && name[0] == 'X' && isClaim(name) && (!proxied || strings.IndexByte(name, '_') >= 0)
}

func isClaim(name string) bool {
	const prefix = "X-Forwarded-"
	return edge.SameName(name, "X-Real-Ip") || len(name) > len(prefix) && edge.SameName(name[:len(prefix)], prefix)
}

// stripPrefix takes a prefix that the path has off it, in both forms of the path.
func stripPrefix(u *url.URL, prefix string) {
	if u.RawPath != "" {
		// The prefix may be escaped in one way or another; of what it has none is
		// a slash, see decodedPath.
		raw := u.EscapedPath()
		at := 0
		for range len(prefix) {
			if raw[at] == '%' {
				at += 2
			}
			at++
		}
		u.RawPath = raw[at:]
		if u.RawPath == "" {
			u.RawPath = "/"
		}
	}
	u.Path = u.Path[len(prefix):]
	if u.Path == "" {
		u.Path = "/"
	}
}

// mayUpgrade tells whether the gateway makes a tunnel for a protocol.
func (rt *route) mayUpgrade(protocol string) bool {
	return slices.ContainsFunc(rt.upgrades, func(p string) bool { return strings.EqualFold(p, protocol) })
}

// isGRPC tells whether r is of gRPC (and not of gRPC-Web, which is content to be
// like any other request).
func isGRPC(r *http.Request) bool {
	if r.ProtoMajor < 2 {
		return false
	}
	after, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && (after == "" || after[0] == '+' || after[0] == ';')
}
