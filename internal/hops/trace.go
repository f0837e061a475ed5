package hops

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// live counts the traces that gather. It spares a look into the context of every
// request as long as nobody traces one, which is nearly always.
var live atomic.Int64

// Trace gathers the calls that one request, or one piece of a program, makes. It is
// safe for concurrent use. Make one with [Start].
type Trace struct {
	mu      sync.Mutex // of what follows; taken by traced requests alone
	ended   bool
	calls   []*Call
	dropped int // calls past MaxHops
}

type traceKey struct{}
type callKey struct{}

// Start returns ctx with a trace that gathers what is called with it, until End.
func Start(ctx context.Context) (context.Context, *Trace) {
	live.Add(1)
	t := &Trace{}
	return context.WithValue(ctx, traceKey{}, t), t
}

// End ends t: what is called or answered later is not gathered. It may be called
// more than once.
func (t *Trace) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended = true
		live.Add(-1)
	}
}

// Live tells whether anything is traced at all.
func Live() bool { return live.Load() != 0 }

// FromContext returns the trace of ctx, nil where there is none.
func FromContext(ctx context.Context) *Trace {
	if live.Load() == 0 {
		return nil
	}
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}

// CallFromContext returns the call that ctx was made for, nil where nothing is
// traced.
func CallFromContext(ctx context.Context) *Call {
	if live.Load() == 0 {
		return nil
	}
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// Begin begins a call and returns ctx for it; ctx is as it was, and the call nil,
// where the trace has ended or is full. The methods of a nil *Call do nothing.
func (t *Trace) Begin(ctx context.Context) (context.Context, *Call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return ctx, nil
	}
	if len(t.calls) == MaxHops {
		t.dropped++
		return ctx, nil
	}
	c := &Call{trace: t}
	t.calls = append(t.calls, c)
	return context.WithValue(ctx, callKey{}, c), c
}

// Call is one call of a trace.
type Call struct {
	trace *Trace

	// guarded by trace.mu
	refused []Hop // an instance that the call was sent to before, of Depth 0
	hop     Hop   // of Depth 0
	decided bool
	below   []Hop // of Depth 1 and more
	more    int
	gone    bool // nothing is to be told of it
}

// Decided says whom a balancer has chosen. The last word of several attempts counts.
func (c *Call) Decided(h Hop) {
	if c == nil {
		return
	}
	h.Depth = 0
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	c.hop, c.decided = h, true
}

// Refused says that the call was sent to first, which refused it and sent route, and then
// elsewhere, where a balancer that is no hop of its own tries again.
func (c *Call) Refused(first Hop, route string) {
	if c == nil {
		return
	}
	first.Depth = 0
	if hops, _, err := Parse(route); err == nil && len(hops) > 0 && hops[0].Depth == 0 {
		first = merged(first, hops[0])
	}
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	c.refused = []Hop{first}
}

// Answered says what the other side sent in [RouteHeader]: itself as the first hop,
// of depth 0, and what it called. "" says that it sent nothing. A route that cannot
// be read is as good as none.
func (c *Call) Answered(route string) {
	if c == nil {
		return
	}
	hops, more, err := Parse(route)
	if err != nil {
		hops, more = nil, 0
	}
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	if len(hops) > 0 && hops[0].Depth == 0 {
		if c.decided {
			c.hop = merged(c.hop, hops[0])
		} else {
			c.hop = hops[0]
		}
		hops = hops[1:]
	}
	if c.hop.Outcome == "" {
		c.hop.Outcome = "answered"
	}
	if route == "" {
		return // a trailer may have said it before
	}
	c.below, c.more = hops, more
}

// merged is h, as a balancer has decided, with what the instance says of itself for what
// the caller does not know. Which version it is, it knows best.
func merged(h, self Hop) Hop {
	if self.Got != "" {
		h.Got = self.Got
	}
	if self.Outcome == "misrouted" {
		h.Outcome = self.Outcome
	}
	if h.Instance == "" {
		h.Instance = self.Instance
	}
	return h
}

// Forget takes the call out of its trace: it was no call of a service.
func (c *Call) Forget() {
	if c == nil {
		return
	}
	c.trace.mu.Lock()
	defer c.trace.mu.Unlock()
	c.gone = true
}

// Hops returns what was gathered so far, in the order in which the calls began, each
// followed by what it called. more counts what did not fit.
func (t *Trace) Hops() (hops []Hop, more int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	more = t.dropped
	for _, c := range t.calls {
		if c.gone {
			continue
		}
		hops = append(hops, c.refused...)
		h := c.hop
		if h.Outcome == "" {
			h.Outcome = Pending
		}
		hops = append(hops, h)
		hops = append(hops, c.below...)
		more += c.more
	}
	if len(hops) > MaxHops {
		more += len(hops) - MaxHops
		hops = slices.Clip(hops[:MaxHops])
	}
	return hops, more
}

// Answer returns what a server sends in [RouteHeader]: self, which the zero Hop
// leaves out, and what was gathered beneath it.
func (t *Trace) Answer(self Hop) string {
	below, more := t.Hops()
	hops := make([]Hop, 0, len(below)+1)
	if self.Depth = 0; self != (Hop{}) {
		hops = append(hops, self)
	}
	for _, h := range below {
		if h.Depth++; h.Depth > maxDepth {
			more++
			continue
		}
		hops = append(hops, h)
	}
	return Format(hops, more)
}

// Relay returns what a proxy sends in [RouteHeader], which is no hop of its own: what
// it called stands for itself.
func (t *Trace) Relay() string { return Format(t.Hops()) }
