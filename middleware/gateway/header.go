package gateway

import (
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/graylane/graylane/internal/edge"
)

// httputil.ReverseProxy copies the headers of requests and answers value by value,
// and looks for a dozen names in each. Here the same is done in one pass; the proxy
// gets to see what it needs to decide, which is an upgrade and a stream of events.

// lend makes r, which is the edge's copy, what the proxy gets to see: rewrite finds x
// in it. Its header is seen where a tunnel is asked for.
func (x *exchange) lend(r *http.Request, tunnel bool) {
	x.in, x.header = r, r.Header
	r.Body = x
	if x.body == nil {
		r.ContentLength = 0
	}
	if !tunnel {
		r.Header = nil
	}
}

// outgoing returns the client's header without what is for this hop alone, and without
// what only a proxy has a say in. It shares the values; nobody changes them.
func (x *exchange) outgoing() http.Header {
	room := len(x.header) + 3 // for X-Forwarded
	if x.tagged {
		room += 2 // for what the transport writes
	}
	out := make(http.Header, room)
	var connection, te []string
	for k, v := range x.header {
		own := x.route.names.Canonical(k)
		switch {
		case own != "":
			out[own] = append(slices.Clip(out[own]), v...) // whoever stands outside may have spelled it as he liked
		case k == "Connection":
			connection = v
		case k == "Te":
			te = v
		case !isHop(k) && k != "Forwarded" && !isRemoved(k, x.proxied):
			out[k] = v[:len(v):len(v)]
		}
	}
	removeOptions(out, connection)
	for _, line := range te {
		for coding := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(textproto.TrimString(coding), "trailers") {
				out["Te"] = []string{"trailers"}
			}
		}
	}
	return out
}

// take moves the header of an answer to where the proxy would copy it, all but what
// the edge has decided.
func (x *exchange) take(res *http.Response) {
	x.answer = res
	if res.StatusCode == http.StatusSwitchingProtocols {
		deleteOurs(res.Header, "")
		return
	}
	removeOptions(res.Header, res.Header["Connection"])
	deleteOurs(res.Trailer, "")
	x.trailer = res.Trailer
	if len(res.Trailer) > 0 {
		// HTTP/2 has trailers beside a length, HTTP/1.1 has them in chunks alone.
		delete(res.Header, "Content-Length")
	}
	// Events go on at once, also where their length is known.
	kind := res.Header["Content-Type"]
	events := len(kind) == 1 && strings.HasPrefix(kind[0], "text/event-stream")
	h := x.Header()
	for k, v := range res.Header {
		if isHop(k) || isOurs(k) || events && k == "Content-Type" {
			continue
		}
		if own := h[k]; len(own) > 0 {
			v = append(slices.Clip(own), v...)
		}
		h[k] = v
	}
	res.Header = nil
	if events {
		res.Header = http.Header{"Content-Type": kind}
	}
}

// isOurs tells whether a header or trailer of an answer is the gateway's to give,
// whatever services say.
func isOurs(name string) bool { return slices.Contains(ours[:], name) }

var ours = [...]string{edge.VersionHeader, edge.GroupHeader, ReasonHeader}

// deleteOurs deletes what is ours to give under keys that begin with prefix.
func deleteOurs(h http.Header, prefix string) {
	for _, name := range ours {
		delete(h, prefix+name)
	}
}

// isHop tells whether a header is for one hop alone (RFC 9110, section 7.6.1, and
// what proxies remove beside that).
func isHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
		"Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// removeOptions removes the headers that a Connection header names.
func removeOptions(h http.Header, connection []string) {
	for _, line := range connection {
		for option := range strings.SplitSeq(line, ",") {
			if option = textproto.TrimString(option); option != "" {
				h.Del(option)
			}
		}
	}
}
