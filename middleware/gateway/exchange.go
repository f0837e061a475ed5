package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/internal/edge"
)

// exchange is one request and its answer. As the ResponseWriter of the proxy it
// sees to it that the answer says what the edge decided, whatever the service
// says: the proxy adds the headers of the service to those that are there, and
// drops all of them after an informational answer (1xx).
type exchange struct {
	http.ResponseWriter
	route *route
	in    *http.Request
	body  *requestBody // nil where the request has none
	timer *time.Timer  // nil where the time is not limited

	version  [1]string
	group    []string // nil where there is none
	cookies  []string // that the edge sets
	informed bool     // an informational answer has gone out
	wrote    bool
}

func newExchange(w http.ResponseWriter, r *http.Request, rt *route, version string) *exchange {
	h := w.Header()
	return &exchange{
		ResponseWriter: w, route: rt, in: r,
		version: [1]string{version}, group: h[edge.GroupHeader], cookies: h["Set-Cookie"],
	}
}

// WriteHeader implements [http.ResponseWriter].
func (x *exchange) WriteHeader(code int) {
	if code >= 100 && code < 200 && code != http.StatusSwitchingProtocols {
		x.inform(code)
		return
	}
	x.wrote = true
	x.stopTimer()
	h := x.Header()
	x.decided(h)
	if x.informed && len(x.cookies) > 0 {
		h["Set-Cookie"] = append(slices.Clone(x.cookies), h["Set-Cookie"]...)
	}
	x.ResponseWriter.WriteHeader(code)
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

// inform sends an informational answer, which says nothing of versions.
func (x *exchange) inform(code int) {
	x.informed = true
	h := x.Header()
	delete(h, edge.VersionHeader)
	delete(h, edge.GroupHeader)
	delete(h, "Set-Cookie")
	x.ResponseWriter.WriteHeader(code)
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
	if x.informed {
		x.decided(x.Header())
	}
	return http.NewResponseController(x.ResponseWriter).Hijack()
}

// Unwrap lets [http.ResponseController] reach what is inside.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

func (x *exchange) stopTimer() {
	if x.timer != nil {
		x.timer.Stop()
	}
}

// modifyResponse takes out of the answer to an upgrade what the edge has decided
// already. Such an answer is not written by WriteHeader.
func modifyResponse(res *http.Response) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		delete(res.Header, edge.VersionHeader)
		delete(res.Header, edge.GroupHeader)
	}
	return nil
}

// requestBody remembers why the client's body could not be read: a request that
// fails of that is not the service's fault.
type requestBody struct {
	io.ReadCloser
	err atomic.Pointer[error] // read by the handler, written by the transport
}

func (b *requestBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		b.err.Store(&err)
	}
	return n, err
}

// failure returns what went wrong, nil where nothing did.
func (b *requestBody) failure() error {
	if b == nil {
		return nil
	}
	if err := b.err.Load(); err != nil && *err != http.ErrBodyReadAfterClose {
		return *err
	}
	return nil
}
