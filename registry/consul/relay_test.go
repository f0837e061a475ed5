package consul_test

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"
)

// relay forwards TCP connections to an agent, and can swallow what goes through
// those that are open, as a firewall does that has lost its state: nobody is told.
type relay struct {
	net.Listener
	target string

	mu    sync.Mutex
	conns map[net.Conn]*pipe
	dark  bool // swallow what new connections send, too
	work  sync.WaitGroup
}

// pipe is one connection; while it is held nothing passes, in either direction.
type pipe struct {
	mu   sync.Mutex
	held bool
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &relay{Listener: l, target: target, conns: make(map[net.Conn]*pipe)}
	r.work.Go(r.accept)
	t.Cleanup(func() {
		_ = l.Close()
		r.mu.Lock()
		for c := range r.conns {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.work.Wait()
	})
	return r
}

func (r *relay) config() *api.Config {
	return &api.Config{Address: r.Addr().String(), Transport: api.DefaultConfig().Transport}
}

func (r *relay) accept() {
	for {
		in, err := r.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		r.mu.Lock()
		p := &pipe{held: r.dark}
		r.conns[in], r.conns[out] = p, p
		r.mu.Unlock()
		for _, c := range [][2]net.Conn{{in, out}, {out, in}} {
			r.work.Go(func() {
				_, _ = io.Copy(writer{p, c[1]}, c[0])
				p.mu.Lock()
				held := p.held
				p.mu.Unlock()
				if !held { // the end of a connection does not get through either
					_ = c[1].Close()
				}
			})
		}
	}
}

type writer struct {
	p *pipe
	net.Conn
}

func (w writer) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.p.held {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

// swallow holds all connections that are open, for good, and returns how many.
func (r *relay) swallow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.conns {
		p.mu.Lock()
		p.held = true
		p.mu.Unlock()
	}
	return len(r.conns) / 2
}

// blackout cuts off whoever uses the relay: nothing passes any more, and nobody is
// told.
func (r *relay) blackout() {
	r.mu.Lock()
	r.dark = true
	r.mu.Unlock()
	r.swallow()
}

// light lets new connections through again.
func (r *relay) light() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dark = false
}

// open returns how many connections were opened so far.
func (r *relay) open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns) / 2
}
