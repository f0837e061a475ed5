package httplb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// RoundTrip implements [http.RoundTripper]. Where the URL of req names a service,
// the tag of the request's context chooses the instance; see the package comment.
// The error is a [*subset.UnavailableError] where no instance may serve or none
// could be reached.
func (b *Balancer) RoundTrip(req *http.Request) (*http.Response, error) {
	name, ok := b.Service(req.URL)
	if !ok {
		return b.through.RoundTrip(req)
	}
	return b.send(name, req, req.Header, false)
}

// RoundTripOwned is RoundTrip for a request that nobody else uses, neither while it
// is under way nor afterwards, as the one that httputil.ReverseProxy makes: its URL
// and Host are changed, which spares a copy of it.
func (b *Balancer) RoundTripOwned(req *http.Request) (*http.Response, error) {
	name, ok := b.Service(req.URL)
	if !ok {
		return b.through.RoundTrip(req)
	}
	return b.send(name, req, req.Header, true)
}

// RoundTripHeader is RoundTrip with header in place of that of req. It is for
// middleware that sends a request on with other headers: the balancer copies the
// request anyway, so that the middleware need not.
func (b *Balancer) RoundTripHeader(req *http.Request, header http.Header) (*http.Response, error) {
	name, ok := b.Service(req.URL)
	if !ok {
		out := *req
		out.Header = header
		return b.through.RoundTrip(&out)
	}
	return b.send(name, req, header, false)
}

func (b *Balancer) send(name string, req *http.Request, header http.Header, owned bool) (*http.Response, error) {
	s, err := b.service(req.Context(), name)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if _, ok := b.through.(*http.Transport); !ok && req.URL.Scheme == "https" {
		closeBody(req)
		return nil, errHTTPS(b.through)
	}
	x := exchange{s: s, req: req, header: header, owned: owned, tag: graytag.FromContext(req.Context()), body: newReplay(req)}
	resp, err := x.run()
	x.body.done()
	return resp, err
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
}

// exchange is one request on its way to a service.
type exchange struct {
	s    *service
	req  *http.Request
	tag  graytag.Tag
	body replay

	header http.Header // to be sent
	owned  bool        // req may be changed

	attempts int
	down     []*endpoint // that could not be dialled
	sends    int         // that may have reached a server and failed
	cause    error       // of the last failure
	avoid    *instance   // that the last failure was of
	forced   bool        // the last resort was tried
	refusal  *refusal    // nil until an instance has refused the request
}

func (x *exchange) run() (*http.Response, error) {
	for {
		v := x.s.view.Load()
		in, choice, wanted := x.pick(v)
		forced := false
		if x.refusal != nil && (in == nil || len(x.down) > v.size) {
			return x.refused(), nil
		}
		if in == nil && !x.forced {
			in, choice = v.lastResort(x.tag, x.s.selector, x.down)
			forced, x.forced = in != nil, true
		}
		if in == nil || len(x.down) > v.size {
			return nil, x.unavailable(v)
		}
		body, err := x.body.next()
		if err != nil {
			if x.refusal != nil {
				return x.refused(), nil
			}
			x.report(in, choice, wanted)
			return nil, fmt.Errorf("httplb: body for another attempt: %w", err)
		}
		x.attempts++
		if c := hops.CallFromContext(x.req.Context()); c != nil {
			c.Decided(x.decision(in, choice, wanted).hop())
		}
		resp, sent, err := x.send(in, body)
		switch {
		case err == nil:
			x.s.reached(in.endpoint, forced)
			if isRefusal(resp) {
				again := x.takes(resp)
				// Nobody else may react to it, or learn who it was.
				delete(resp.Header, arrival.MisroutedHeader)
				delete(resp.Header, arrival.DetailsHeader)
				if again {
					x.refusal = &refusal{resp: resp, in: in, choice: choice, wanted: wanted}
					continue
				}
			}
			x.report(in, choice, wanted)
			resp.Request = x.req
			return resp, nil
		case x.canceled():
			// That nobody waited for the answer is an outcome of this version, too.
			x.report(in, choice, wanted)
			return nil, err
		case !sent:
			x.s.putAside(in.endpoint, err)
			x.down = append(x.down, in.endpoint)
			x.cause = err
			if !x.body.again() {
				x.report(in, choice, wanted)
				return nil, err
			}
		default:
			x.s.reached(in.endpoint, forced)
			x.sends++
			if x.sends > x.s.b.retries || !retriable(x.req.Method, x.header, err) || !x.body.twice() {
				x.report(in, choice, wanted)
				return nil, err
			}
			x.cause, x.avoid = err, in
		}
	}
}

// pick chooses an instance, another one than the last where there is one.
func (x *exchange) pick(v *view) (in *instance, choice *subset.Choice, wanted string) {
	in, choice, wanted = v.pick(x.tag)
	if x.refusal != nil {
		in, choice = v.elsewhere(x.tag, x.s.selector, x.refusal.in.endpoint)
		return in, choice, wanted
	}
	if x.avoid != nil {
		// The sequence of an alias comes to another slot soon.
		for i := 0; i < 3 && in != nil && in.endpoint == x.avoid.endpoint; i++ {
			in, choice, wanted = v.pick(x.tag)
		}
	}
	return in, choice, wanted
}

// send makes one attempt. sent is false where the request surely did not leave.
func (x *exchange) send(in *instance, body io.ReadCloser) (resp *http.Response, sent bool, err error) {
	var out *outgoing
	req := x.req
	if x.owned && x.attempts == 1 && req.URL.Scheme != "https" {
		// Of an attempt that failed a transport may still read.
		if req.Host == "" {
			req.Host = req.URL.Host
		}
		req.URL.Host, req.Body = in.Address, body
	} else {
		out = &outgoing{Request: *x.req, url: *x.req.URL}
		req = &out.Request
		if req.URL.Scheme == "https" {
			// A failed handshake is a failed dial; only a trace tells it from what
			// happens later.
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), out.traceHandshake(x.s, in.endpoint)))
		}
		out.url.Host = in.Address
		req.URL = &out.url
		req.Header, req.Body = x.header, body
		if req.Host == "" {
			req.Host = x.req.URL.Host
		}
	}
	resp, err = x.s.reach().base.RoundTrip(req)
	if err == nil {
		return resp, true, nil
	}
	var dial *dialError
	if errors.As(err, &dial) {
		return nil, false, dial.err
	}
	if out != nil {
		if h := out.handshake.Load(); h != nil && errors.Is(err, *h) {
			return nil, false, err
		}
	}
	var op *net.OpError
	return nil, !(errors.As(err, &op) && op.Op == "dial"), err
}

// outgoing is a request as one instance gets it, in one allocation.
type outgoing struct {
	http.Request
	url       url.URL
	handshake atomic.Pointer[error] // that failed
}

func (o *outgoing) traceHandshake(s *service, e *endpoint) *httptrace.ClientTrace {
	return &httptrace.ClientTrace{TLSHandshakeDone: func(_ tls.ConnectionState, err error) {
		if err == nil {
			return
		}
		o.handshake.Store(&err)
		if !errors.Is(err, context.Canceled) {
			s.putAside(e, err) // the request may be gone, see dialFailed
		}
	}}
}

// canceled tells whether the caller has given up.
func (x *exchange) canceled() bool {
	ctx := x.req.Context()
	if ctx.Err() != nil {
		return true
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		return true // a dialer may see a deadline before the context does
	}
	select {
	//lint:ignore SA1019 deprecated, and net/http still honours it
	case <-x.req.Cancel:
		return true
	default:
		return false
	}
}

// retriable tells whether a request that may have reached a server may be sent
// again after err: its method is idempotent (RFC 9110, section 9.2.2) or it carries
// an Idempotency-Key, as net/http has it. What timed out is not sent again: it
// would take as long once more.
func retriable(method string, header http.Header, err error) bool {
	var timeout interface{ Timeout() bool }
	if errors.As(err, &timeout) && timeout.Timeout() {
		return false
	}
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	_, key := header["Idempotency-Key"]
	_, old := header["X-Idempotency-Key"]
	return key || old
}

// unavailable makes the error of a request that no instance may or can serve.
func (x *exchange) unavailable(v *view) error {
	choice, wanted := v.table.Choose(x.tag)
	cause := x.cause
	if cause == nil {
		cause = x.s.cause()
	}
	err := v.table.Unavailable(choice, wanted, cause)
	if choice.Outcome != subset.Unavailable {
		err.Reason = subset.Unhealthy // what came back meanwhile was down
	}
	x.observe(Decision{Service: x.s.name, Wanted: wanted, Outcome: subset.Unavailable, Reason: err.Reason, Attempts: x.attempts})
	return err
}

func (x *exchange) decision(in *instance, choice *subset.Choice, wanted string) Decision {
	return Decision{
		Service: x.s.name, Wanted: wanted, Served: in.version,
		Outcome: choice.Outcome, Reason: choice.Reason,
		Instance: in.Instance, Attempts: x.attempts, Refused: x.refusal != nil,
	}
}

func (x *exchange) report(in *instance, choice *subset.Choice, wanted string) {
	x.observe(x.decision(in, choice, wanted))
	if x.refusal != nil {
		x.tellRefusal(in)
	}
}

func (x *exchange) observe(d Decision) {
	ctx := x.req.Context()
	x.s.counters.count(ctx, d)
	telemetry.Decided(ctx, d.Service, d.Wanted, d.Served, string(d.Outcome), string(d.Reason))
	if d.Outcome == subset.Unavailable {
		if c := hops.CallFromContext(ctx); c != nil {
			c.Decided(d.hop())
		}
	}
	for _, f := range x.s.b.observers {
		f(ctx, d)
	}
}
