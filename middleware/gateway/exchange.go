package gateway

import (
	"bufio"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// exchange is one request and its answer. As the ResponseWriter of the proxy it
// sees to it that the answer says what the edge decided, whatever the service
// says: the proxy adds the headers of the service to those that are there, and
// drops all of them after an informational answer (1xx).
type exchange struct {
	http.ResponseWriter
	route   *route
	in      *http.Request
	header  http.Header  // of in
	body    *requestBody // nil where the request has none
	timer   *time.Timer  // nil where the time is not limited
	proxied bool         // the peer is a trusted proxy
	tagged  bool         // the request has a tag

	observed *observed // nil where nobody observes

	version  [1]string
	group    []string       // nil where there is none
	answer   *http.Response // of the service, nil before it has answered
	trailer  http.Header    // of it; its keys are those that were announced
	before   []field        // what else the answer held before the proxy: a cookie, headers of handlers outside
	informed bool           // an informational answer has gone out
	wrote    bool
	ended    bool // in good order, else by a panic
}

type field struct {
	key    string
	values []string
}

func newExchange(w http.ResponseWriter, r *http.Request, rt *route) *exchange {
	h := w.Header()
	tag := graytag.FromContext(r.Context())
	entry, _ := grayhttp.EntryFromContext(r.Context())
	x := &exchange{
		ResponseWriter: w, route: rt, in: r, proxied: entry.Proxied, tagged: !tag.IsZero(),
		version: [1]string{edge.VersionOf(tag, entry.Decision.Key, rt.Service)}, group: h[edge.GroupHeader],
	}
	if _, version := h[edge.VersionHeader]; version && len(h) == 1 {
		return x // as nearly always
	}
	for k, v := range h {
		if k != edge.VersionHeader && k != edge.GroupHeader {
			x.before = append(x.before, field{k, v})
		}
	}
	return x
}

// WriteHeader implements [http.ResponseWriter].
func (x *exchange) WriteHeader(code int) {
	if code >= 100 && code < 200 && code != http.StatusSwitchingProtocols {
		x.inform(code)
		return
	}
	x.wrote = true
	x.stopTimer()
	if x.observed != nil {
		x.observed.status = code
	}
	h := x.Header()
	x.restore(h)
	x.decided(h)
	x.ResponseWriter.WriteHeader(code)
	for k := range x.trailer {
		delete(h, k) // has gone out; the proxy adds the trailers to what is there
	}
}

// restore puts back what an informational answer has cost.
func (x *exchange) restore(h http.Header) {
	if x.informed {
		for _, f := range x.before {
			h[f.key] = append(slices.Clone(f.values), h[f.key]...)
		}
	}
}

// decided sets what the edge decided, in place of what the service says.
func (x *exchange) decided(h http.Header) {
	h[edge.VersionHeader] = x.version[:]
	if x.group != nil {
		h[edge.GroupHeader] = x.group
	} else {
		delete(h, edge.GroupHeader)
	}
}

// cleanTrailer takes out of the trailers that the service did not announce what is
// ours to give, after the proxy has written all of them.
func (x *exchange) cleanTrailer() {
	if x.answer == nil || len(x.answer.Trailer) == 0 {
		return
	}
	h := x.Header()
	if len(h[http.TrailerPrefix+grayhttp.MisroutedHeader]) > 0 {
		delete(h, http.TrailerPrefix+arrival.DetailsHeader)
	}
	deleteOurs(h, http.TrailerPrefix)
}

// inform sends an informational answer, without what is for the answer proper.
func (x *exchange) inform(code int) {
	x.informed = true
	h := x.Header()
	delete(h, edge.VersionHeader)
	delete(h, edge.GroupHeader)
	delete(h, hops.RouteHeader)
	delete(h, grayhttp.MisroutedHeader)
	for _, f := range x.before {
		delete(h, f.key)
	}
	if x.in.ProtoAtLeast(1, 1) { // RFC 9110, section 15.2: not to HTTP/1.0
		x.ResponseWriter.WriteHeader(code)
	}
}

// Write implements [io.Writer].
func (x *exchange) Write(p []byte) (int, error) {
	if !x.wrote {
		x.WriteHeader(http.StatusOK)
	}
	return x.ResponseWriter.Write(p)
}

// FlushError is what [http.ResponseController] calls.
func (x *exchange) FlushError() error {
	if !x.wrote {
		x.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(x.ResponseWriter).Flush()
}

// Hijack is what [http.ResponseController] calls: the connection becomes a tunnel.
func (x *exchange) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	x.stopTimer()
	x.restore(x.Header())
	x.decided(x.Header())
	conn, rw, err := http.NewResponseController(x.ResponseWriter).Hijack()
	if err == nil && x.observed != nil {
		x.observed.status = http.StatusSwitchingProtocols
		x.tell()
	}
	return conn, rw, err
}

// Unwrap lets [http.ResponseController] reach what is inside.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Read and Close make x the Body of the requests that the proxy gets and makes, which
// is how the rewrite and the transport find it. Nobody reads it there.
func (x *exchange) Read([]byte) (int, error) { return 0, http.ErrBodyReadAfterClose }

// Close implements [io.Closer].
func (x *exchange) Close() error { return nil }

func (x *exchange) stopTimer() {
	if x.timer != nil {
		x.timer.Stop()
	}
}
