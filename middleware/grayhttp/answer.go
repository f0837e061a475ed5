package grayhttp

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/felixge/httpsnoop"

	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// answer is the ResponseWriter of a request whose answer somebody wants to know of.
type answer struct {
	http.ResponseWriter
	*server
	ctx context.Context // of the request as it came, which its client can cancel

	arrival  *Arrival // nil where nobody knows
	measured bool
	began    time.Time

	trace *hops.Trace // nil: not traced
	relay bool        // we are a proxy, and no hop
	told  string      // the route in the header

	code     int  // 0 until the header of the answer proper is written
	answered bool // the client was there to be told code
	hijacked bool
	late     bool      // the time that the server gives an answer was over
	deadline time.Time // of writing the answer, the zero Time where none is known
	finished bool      // the handler has returned
}

// writer returns x with the optional methods that its ResponseWriter has. The two of
// net/http, which middleware passes on, are had without the closures of httpsnoop.
func (x *answer) writer() http.ResponseWriter {
	_, flushes := x.ResponseWriter.(http.Flusher)
	_, hijacks := x.ResponseWriter.(http.Hijacker)
	_, pushes := x.ResponseWriter.(http.Pusher)
	_, reads := x.ResponseWriter.(io.ReaderFrom)
	//lint:ignore SA1019 deprecated, and some still ask for it
	_, notifies := x.ResponseWriter.(http.CloseNotifier)
	switch {
	case flushes && notifies && hijacks && reads && !pushes:
		x.limit()
		return (*answer1)(x)
	case flushes && notifies && !hijacks && !reads && pushes:
		x.limit()
		return (*answer2)(x)
	}
	return httpsnoop.Wrap(x.ResponseWriter, httpsnoop.Hooks{
		WriteHeader: func(httpsnoop.WriteHeaderFunc) httpsnoop.WriteHeaderFunc { return x.WriteHeader },
		Write:       func(httpsnoop.WriteFunc) httpsnoop.WriteFunc { return x.Write },
		WriteString: func(httpsnoop.WriteStringFunc) httpsnoop.WriteStringFunc { return x.WriteString },
		Flush:       func(httpsnoop.FlushFunc) httpsnoop.FlushFunc { return func() { _ = x.FlushError() } },
		FlushError:  func(httpsnoop.FlushErrorFunc) httpsnoop.FlushErrorFunc { return x.FlushError },
		ReadFrom:    func(httpsnoop.ReadFromFunc) httpsnoop.ReadFromFunc { return x.readFrom },
		Hijack:      func(httpsnoop.HijackFunc) httpsnoop.HijackFunc { return x.hijack },
	})
}

// limit takes note of the time that the server gives every answer. Handlers that
// want another one say so with SetWriteDeadline.
func (x *answer) limit() {
	if srv, ok := x.ctx.Value(http.ServerContextKey).(*http.Server); ok && srv.WriteTimeout > 0 && x.measured {
		x.deadline = x.began.Add(srv.WriteTimeout)
	}
}

// SetWriteDeadline is what [http.ResponseController] asks for.
func (x *answer) SetWriteDeadline(t time.Time) error {
	err := http.NewResponseController(x.ResponseWriter).SetWriteDeadline(t)
	if err == nil {
		x.deadline = t
	}
	return err
}

// answer1 is an answer of HTTP/1.
type answer1 answer

func (x *answer1) Header() http.Header                { return x.ResponseWriter.Header() }
func (x *answer1) WriteHeader(code int)               { (*answer)(x).WriteHeader(code) }
func (x *answer1) Write(p []byte) (int, error)        { return (*answer)(x).Write(p) }
func (x *answer1) WriteString(s string) (int, error)  { return (*answer)(x).WriteString(s) }
func (x *answer1) Flush()                             { _ = x.FlushError() }
func (x *answer1) FlushError() error                  { return (*answer)(x).FlushError() }
func (x *answer1) Unwrap() http.ResponseWriter        { return x.ResponseWriter }
func (x *answer1) SetWriteDeadline(t time.Time) error { return (*answer)(x).SetWriteDeadline(t) }

func (x *answer1) ReadFrom(r io.Reader) (int64, error) { return (*answer)(x).readFrom(r) }

func (x *answer1) Hijack() (net.Conn, *bufio.ReadWriter, error) { return (*answer)(x).hijack() }

func (x *answer1) CloseNotify() <-chan bool { return (*answer)(x).closeNotify() }

// answer2 is an answer of HTTP/2.
type answer2 answer

func (x *answer2) Header() http.Header                { return x.ResponseWriter.Header() }
func (x *answer2) WriteHeader(code int)               { (*answer)(x).WriteHeader(code) }
func (x *answer2) Write(p []byte) (int, error)        { return (*answer)(x).Write(p) }
func (x *answer2) WriteString(s string) (int, error)  { return (*answer)(x).WriteString(s) }
func (x *answer2) Flush()                             { _ = x.FlushError() }
func (x *answer2) FlushError() error                  { return (*answer)(x).FlushError() }
func (x *answer2) Unwrap() http.ResponseWriter        { return x.ResponseWriter }
func (x *answer2) SetWriteDeadline(t time.Time) error { return (*answer)(x).SetWriteDeadline(t) }

func (x *answer2) Push(target string, opts *http.PushOptions) error {
	return x.ResponseWriter.(http.Pusher).Push(target, opts)
}

func (x *answer2) CloseNotify() <-chan bool { return (*answer)(x).closeNotify() }

var (
	_ http.Flusher  = (*answer1)(nil)
	_ http.Hijacker = (*answer1)(nil)
	_ io.ReaderFrom = (*answer1)(nil)
	_ http.Flusher  = (*answer2)(nil)
	_ http.Pusher   = (*answer2)(nil)
)

// WriteHeader implements [http.ResponseWriter].
func (x *answer) WriteHeader(code int) {
	if code < 100 || code >= 200 || code == http.StatusSwitchingProtocols {
		x.begin(code)
	}
	x.ResponseWriter.WriteHeader(code)
}

// begin notes that the header of the answer proper is written.
func (x *answer) begin(code int) {
	if x.code != 0 {
		return
	}
	x.code, x.answered = code, x.ctx.Err() == nil
	if x.trace != nil {
		x.told = x.route()
		h := x.Header()
		setOrDelete(h, hops.RouteHeader, nonEmpty(x.told))
		// The calls that are still to come go into a trailer. That there may be one,
		// net/http has to know before it decides how the body ends.
		h[http.TrailerPrefix+hops.RouteHeader] = []string{x.told}
	}
}

// route returns the way of the request so far.
func (x *answer) route() string {
	if x.relay {
		return x.trace.Relay()
	}
	return x.trace.Answer(arrival.Hop(x.arrival, x.instance))
}

// tellRest tells, at the end of the answer, what the header does not.
func (x *answer) tellRest() {
	if x.code == 0 {
		setOrDelete(x.Header(), hops.RouteHeader, nonEmpty(x.route()))
		return
	}
	var rest []string
	if route := x.route(); route != x.told {
		rest = nonEmpty(route)
	}
	setOrDelete(x.Header(), http.TrailerPrefix+hops.RouteHeader, rest)
}

func nonEmpty(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// Write implements [io.Writer].
func (x *answer) Write(p []byte) (int, error) {
	x.begin(http.StatusOK)
	n, err := x.ResponseWriter.Write(p)
	return n, x.failed(err)
}

func (x *answer) WriteString(s string) (int, error) {
	x.begin(http.StatusOK)
	n, err := io.WriteString(x.ResponseWriter, s)
	return n, x.failed(err)
}

func (x *answer) FlushError() error {
	x.begin(http.StatusOK)
	return x.failed(http.NewResponseController(x.ResponseWriter).Flush())
}

func (x *answer) readFrom(r io.Reader) (int64, error) {
	if x.trace != nil && x.code == 0 {
		// The header has to be ready before the first byte; where there is none it
		// is not written.
		return io.Copy(struct{ io.Writer }{x}, r)
	}
	n, err := x.ResponseWriter.(io.ReaderFrom).ReadFrom(r)
	if n > 0 {
		x.begin(http.StatusOK)
	}
	return n, x.failed(err)
}

func (x *answer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := x.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil && !x.hijacked {
		x.hijacked = true
		status := telemetry.StatusHijacked
		if x.code == http.StatusSwitchingProtocols {
			status = telemetry.HTTPStatus(x.code)
		}
		x.record(status)
	}
	return c, rw, err
}

func (x *answer) closeNotify() <-chan bool {
	//lint:ignore SA1019 deprecated, and some still ask for it
	return x.ResponseWriter.(http.CloseNotifier).CloseNotify()
}

func (x *answer) failed(err error) error {
	if err != nil && (errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, http.ErrHandlerTimeout)) {
		x.late = true
	}
	return err
}

// tooLate tells whether the client had no answer, or not all of it, because a limit
// of the server's had passed, which over HTTP/2 looks as if the client had given up.
func (x *answer) tooLate() bool {
	cause := x.ctx.Err()
	if x.late || x.code == 0 && cause == context.DeadlineExceeded {
		return true
	}
	if x.deadline.IsZero() {
		return false
	}
	left := time.Until(x.deadline)
	if cause != nil { // net/http has begun to count before us, on a busy machine long before
		left -= min(x.deadline.Sub(x.began)/5, time.Second) + 5*time.Millisecond
	}
	return left <= 0
}

// end is deferred around the handler. What it panics with goes on.
func (x *answer) end() {
	v := recover()
	if !x.hijacked {
		if x.trace != nil && x.finished {
			x.tellRest()
		}
		x.record(x.status(v))
	}
	if v != nil {
		panic(v)
	}
}

func (x *answer) status(v any) string {
	switch {
	case x.tooLate():
		return telemetry.StatusAborted // and net/http has cancelled the context
	case errors.Is(x.ctx.Err(), context.Canceled) && !(x.answered && x.code >= http.StatusInternalServerError):
		return telemetry.StatusCanceled
	case !x.finished:
		if x.code == 0 && v != nil && v != http.ErrAbortHandler {
			return telemetry.HTTPStatus(http.StatusInternalServerError)
		}
		return telemetry.StatusAborted
	case x.code == 0:
		return telemetry.HTTPStatus(http.StatusOK)
	}
	return telemetry.HTTPStatus(x.code)
}

func (x *answer) record(status string) {
	if x.measured {
		x.measure(x.ctx, x.arrival, status, time.Since(x.began))
	}
}
