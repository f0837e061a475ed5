package gateway

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// requestBody is the body of a client's request, in the hands of a transport.
//
// It remembers why it could not be read: a request that fails of that is not the
// service's fault. And it can be closed while it is read. A transport of HTTP/2
// tells of a connection that broke only when it has stopped sending, and it waits
// for a client that may be waiting itself; the proxy's own wrapper swallows Close,
// since that of a body of HTTP/1 would wait as well.
type requestBody struct {
	io.ReadCloser
	interrupt func() // ends a Read that is under way
	limit     int64  // in bytes, 0 for none
	left      int64  // of limit

	// Trailers are known at the end of the body. The proxy has copied them before.
	in, out http.Header

	// mu guards what follows. The handler and the goroutines of a transport take
	// it, never while they read.
	mu      sync.Mutex
	reading bool
	closed  bool // by the transport, or because the handler is about to return
	all     bool // was read, to its end
	err     error
}

// newBody returns the body of r, which is served by way of w.
func newBody(w http.ResponseWriter, r *http.Request, limit int64) *requestBody {
	b := &requestBody{ReadCloser: r.Body, limit: limit, left: limit}
	if r.ProtoMajor >= 2 {
		b.interrupt = func() { _ = b.ReadCloser.Close() } // which does not wait
	} else {
		b.interrupt = func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) }
	}
	return b
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.reading = true
	b.mu.Unlock()

	n, err := b.ReadCloser.Read(p)
	if b.limit > 0 {
		if b.left -= int64(n); b.left < 0 {
			n, err = n+int(b.left), &http.MaxBytesError{Limit: b.limit}
			b.left = 0
		}
	}
	if err == io.EOF {
		for k := range b.out {
			b.out[k] = b.in[k]
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
	b.all = b.all || err == io.EOF
	if err != nil && err != io.EOF && !b.closed && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.err = err
	}
	return n, err
}

// Close ends a Read that is under way, and refuses further ones. It leaves the body
// itself to the server.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reading && !b.closed {
		b.interrupt() // with mu held: the handler must not return meanwhile, see end
	}
	b.closed = true
	return nil
}

// end says that the handler is about to return: the connection is none of ours any
// more. broken says that it breaks the answer off. net/http then closes the
// connection, but reads what is left of a request of HTTP/1 first, which may be as
// long as the client keeps silent.
func (b *requestBody) end(broken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if broken {
		b.interrupt()
	}
	b.closed = true
}

// rest tells whether there is, or may be, a rest that nobody has read.
func (b *requestBody) rest() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.all
}

// closeAfter has net/http close the connection of HTTP/1 after the answer that is
// under way. With full duplex net/http reads on to the end of the body and, where it
// cannot (a deadline, a broken chunk), takes what follows for the next request: a
// client could send one inside a body, past a proxy in front. A body that is too long
// is the one reason to close that can be given after the header.
func closeAfter(w http.ResponseWriter) {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			break
		}
		w = u.Unwrap()
	}
	_, _ = http.MaxBytesReader(w, io.NopCloser(strings.NewReader("x")), 0).Read(make([]byte, 1))
}

// failure returns what went wrong, nil where nothing did.
func (b *requestBody) failure() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
