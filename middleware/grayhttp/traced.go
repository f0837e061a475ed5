package grayhttp

import (
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/graylane/graylane/internal/hops"
)

// traced sends req, whose way t gathers.
func (t *Transport) traced(trace *hops.Trace, req *http.Request, owned bool) (*http.Response, error) {
	if req.URL == nil || hops.CallFromContext(req.Context()) != nil || !t.inside(req.URL) {
		// A transport outside ours has begun the call, or it is none of the inside.
		return t.roundTrip(req, owned)
	}
	ctx, call := trace.Begin(req.Context())
	if call == nil {
		return t.roundTrip(req, owned)
	}
	given, odd := t.canonical(req.Header)
	out := req.WithContext(ctx)
	if out.Header = given; !odd {
		out.Header = copyHeader(given)
	}
	out.Header[hops.TraceHeader] = []string{"1"}
	resp, err := t.roundTrip(out, owned)
	if err != nil {
		return nil, err
	}
	resp.Request = req
	call.Answered(route(resp.Header))
	if resp.StatusCode != http.StatusSwitchingProtocols && resp.Body != nil && resp.Body != http.NoBody {
		resp.Body = &tracedBody{ReadCloser: resp.Body, resp: resp, call: call}
	}
	return resp, nil
}

// route returns the values of RouteHeader as one list.
func route(h http.Header) string { return strings.Join(h[hops.RouteHeader], ", ") }

// tracedBody tells a call of the trailer that comes after the body.
type tracedBody struct {
	io.ReadCloser
	resp *http.Response
	call *hops.Call
}

func (b *tracedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		if r := route(b.resp.Trailer); r != "" {
			b.call.Answered(r)
			strip(b.resp.Request.Context(), b.resp)
		}
	}
	return n, err
}

// strip takes out of an answer what a handler must not hand on: a refusal, which the
// balancer has reacted to, and which would have the caller of the handler run it once
// more; and the route, where it has come to an [Edge].
func strip(ctx context.Context, resp *http.Response) {
	if !tells(resp.Header) && !tells(resp.Trailer) {
		return
	}
	_, outermost := ctx.Value(entryKey{}).(*Entry)
	for _, h := range []http.Header{resp.Header, resp.Trailer} {
		delete(h, MisroutedHeader)
		if outermost {
			delete(h, hops.RouteHeader)
		}
	}
}

func tells(h http.Header) bool {
	if len(h) == 0 {
		return false
	}
	_, route := h[hops.RouteHeader]
	_, misrouted := h[MisroutedHeader]
	return route || misrouted
}
