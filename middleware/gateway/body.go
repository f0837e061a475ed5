package gateway

import (
	"errors"
	"io"
	"net/http"
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

	// Trailers are known at the end of the body. The proxy has copied them before.
	in, out http.Header

	// mu guards what follows. The handler and the goroutines of a transport take
	// it, never while they read.
	mu      sync.Mutex
	reading bool
	closed  bool // by the transport, or because the handler is about to return
	err     error
}

// newBody returns the body of r, which is served by way of w.
func newBody(w http.ResponseWriter, r *http.Request) *requestBody {
	b := &requestBody{ReadCloser: r.Body}
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
	if err == io.EOF {
		for k := range b.out {
			b.out[k] = b.in[k]
		}
	}

	b.mu.Lock()
	defer b.mu.Unlock()
	b.reading = false
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

// failure returns what went wrong, nil where nothing did.
func (b *requestBody) failure() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
