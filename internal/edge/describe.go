package edge

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Described is a request that somebody asks about, a proxy at a forward-auth
// endpoint for example. What is "" or nil is as in the request that asks.
type Described struct {
	Method string
	URI    string // a path with its query, or an absolute URI
	Host   string
	Header http.Header
}

// maxURIBytes bounds what is parsed of a described URI.
const maxURIBytes = 64 << 10

// Describe returns the request that d describes, to put before an edge. Its peer
// is that of the asking request, which is the one to trust or not where
// X-Forwarded-For and X-Forwarded-Proto are concerned; its context is that of the
// asking request [WithoutTrust]. It has no body, and did not come over TLS itself.
func Describe(asking *http.Request, d Described) (*http.Request, error) {
	r := asking.WithContext(WithoutTrust(asking.Context()))
	r.Body, r.ContentLength, r.TransferEncoding, r.TLS = http.NoBody, 0, nil, nil
	if d.Method != "" {
		r.Method = d.Method
	}
	if d.Header != nil {
		r.Header = d.Header
	}
	if d.URI != "" {
		if len(d.URI) > maxURIBytes {
			return nil, fmt.Errorf("described URI of %d bytes, want at most %d", len(d.URI), maxURIBytes)
		}
		u, err := url.ParseRequestURI(d.URI)
		if err != nil || !strings.HasPrefix(d.URI, "/") && !u.IsAbs() && d.URI != "*" {
			return nil, fmt.Errorf("described URI %.200q, want a path or an absolute URI", d.URI)
		}
		r.URL, r.RequestURI = u, d.URI
		if u.Host != "" {
			r.Host = u.Host
		}
	}
	if d.Host != "" {
		r.Host = d.Host
	}
	return r, nil
}
