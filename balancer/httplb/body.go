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
		r.held.idle.L = &r.held.mu
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

// claim tells whether an attempt that was refused can be followed by another one. Its
// transport may be reading still; it reads no more after that.
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
// that it could not send, or whose answer has come, too; that must not reach the body
// itself while another attempt may follow. The beginning of it is kept until then.
type heldBody struct {
	body io.ReadCloser

	mu      sync.Mutex   // taken by the goroutines of a transport and by the caller's; not held while body is read
	idle    sync.Cond    // of mu: reading is over, or nobody waits for it any more
	now     *attemptBody // of the attempt under way
	kept    []byte       // what was read, from the beginning
	array   *[maxKept]byte
	end     error // of the body, nil before
	reading bool
	read    bool
	lost    bool // more was read than is kept
	settled bool
	asked   bool // the attempt under way has closed it, and it was kept open
	closed  bool
}

// maxKept bounds what is kept of a body that exists once, in case that an instance
// refuses the request.
const maxKept = 16 << 10

var keptArrays = sync.Pool{New: func() any { return new([maxKept]byte) }}

func (h *heldBody) next() io.ReadCloser {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now, h.asked = &attemptBody{held: h, second: h.read}, false
	return h.now
}

func (h *heldBody) untouched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.read
}

// claim takes the body from the attempt under way where all that it has read is kept.
func (h *heldBody) claim() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lost || h.closed {
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
	if h.now == nil || !h.now.second {
		h.forget()
	}
	h.mu.Unlock()
	if do {
		_ = h.body.Close()
	}
}

// keep keeps what was read. mu is held.
func (h *heldBody) keep(p []byte, claimed bool) {
	switch {
	case h.settled && !claimed || h.lost || len(p) == 0:
	case len(h.kept)+len(p) > maxKept && !claimed:
		h.lost = true
		h.forget()
	default:
		if h.kept == nil {
			h.array = keptArrays.Get().(*[maxKept]byte)
			h.kept = h.array[:0]
		}
		h.kept = append(h.kept, p...)
	}
}

// forget gives up what is kept. mu is held.
func (h *heldBody) forget() {
	if h.array != nil {
		keptArrays.Put(h.array)
	}
	h.array, h.kept = nil, nil
}

func (h *heldBody) close(by *attemptBody) error {
	h.mu.Lock()
	if h.now != by { // an attempt that is over
		h.mu.Unlock()
		return nil
	}
	if h.closed || !h.lost && !h.settled {
		h.asked = true
		h.idle.Broadcast()
		h.mu.Unlock()
		return nil
	}
	h.closed = true
	h.idle.Broadcast()
	h.mu.Unlock()
	return h.body.Close()
}

// attemptBody is a heldBody in the hands of one attempt.
type attemptBody struct {
	held   *heldBody
	second bool // what is kept comes first
	at     int  // in that
}

func (b *attemptBody) Read(p []byte) (int, error) {
	h := b.held
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.now != b || h.closed || h.asked:
			return 0, http.ErrBodyReadAfterClose
		case b.second && b.at < len(h.kept):
			n := copy(p, h.kept[b.at:])
			b.at += n
			return n, nil
		case h.end != nil:
			return 0, h.end
		}
		if !h.reading {
			break
		}
		h.idle.Wait() // for what the attempt before has begun to read
	}
	h.read, h.reading = true, true
	h.mu.Unlock()
	n, err := h.body.Read(p)
	h.mu.Lock()
	h.reading, h.end = false, err
	claimed := h.now != b
	if !b.second {
		h.keep(p[:n], claimed)
	}
	h.idle.Broadcast()
	if claimed {
		return 0, http.ErrBodyReadAfterClose
	}
	return n, err
}

func (b *attemptBody) Close() error { return b.held.close(b) }
