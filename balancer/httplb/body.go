package httplb

import (
	"io"
	"net/http"
	"sync"
)

// replay hands the body of a request to one attempt after another.
type replay struct {
	req  *http.Request
	held *heldBody // of a body that cannot be had twice, nil for others
	used bool
}

func newReplay(req *http.Request) replay {
	r := replay{req: req}
	if req.Body != nil && req.Body != http.NoBody && req.GetBody == nil {
		r.held = &heldBody{body: req.Body}
	}
	return r
}

// next returns the body of the next attempt.
func (r *replay) next() (io.ReadCloser, error) {
	first := !r.used
	r.used = true
	switch {
	case r.req.Body == nil || r.req.Body == http.NoBody:
		return r.req.Body, nil
	case r.held != nil:
		return r.held.next(), nil
	case first:
		return r.req.Body, nil
	}
	return r.req.GetBody()
}

// again tells whether an attempt that did not send the request can be followed by
// another one.
func (r *replay) again() bool { return r.held == nil || r.held.untouched() }

// claim is again for an attempt that is not over: it has had an answer, and its
// transport may be about to read. It reads no more after that.
func (r *replay) claim() bool { return r.held == nil || r.held.claim() }

// twice tells whether the request can be sent once more though it may have been
// sent before.
func (r *replay) twice() bool { return r.held == nil }

// done says that no attempt will follow.
func (r *replay) done() {
	switch {
	case !r.used && r.req.Body != nil:
		_ = r.req.Body.Close()
	case r.held != nil:
		r.held.settle()
	}
}

// heldBody is a body that exists once. A transport closes the body of a request
// that it could not send, too; that must not reach the body itself while another
// attempt may follow.
type heldBody struct {
	body io.ReadCloser

	mu      sync.Mutex   // taken by the goroutines of a transport and by the caller's
	now     *attemptBody // of the attempt under way
	read    bool
	settled bool
	asked   bool // the attempt under way has closed it, and it was kept open
	closed  bool
}

func (h *heldBody) next() io.ReadCloser {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now, h.asked = &attemptBody{held: h}, false
	return h.now
}

func (h *heldBody) untouched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.read
}

// claim takes the body from the attempt under way where that has not read of it.
func (h *heldBody) claim() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.read {
		return false
	}
	h.now, h.asked = nil, true
	return true
}

func (h *heldBody) settle() {
	h.mu.Lock()
	h.settled = true
	do := h.asked && !h.closed
	h.closed = h.closed || do
	h.mu.Unlock()
	if do {
		_ = h.body.Close()
	}
}

func (h *heldBody) close(by *attemptBody) error {
	h.mu.Lock()
	if h.now != by { // an attempt that is over
		h.mu.Unlock()
		return nil
	}
	if h.closed || !h.read && !h.settled {
		h.asked = true
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.mu.Unlock()
	return h.body.Close()
}

// attemptBody is a heldBody in the hands of one attempt.
type attemptBody struct{ held *heldBody }

func (b *attemptBody) Read(p []byte) (int, error) {
	b.held.mu.Lock()
	if b.held.now != b || b.held.closed || b.held.asked {
		b.held.mu.Unlock()
		return 0, http.ErrBodyReadAfterClose
	}
	b.held.read = true
	b.held.mu.Unlock()
	return b.held.body.Read(p)
}

func (b *attemptBody) Close() error { return b.held.close(b) }
