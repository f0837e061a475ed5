package grayhttp

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
)

// Transport is an [http.RoundTripper] that hands the tag of a request's context
// on, to hosts inside the outbound scope, and keeps it from the others. It is
// safe for concurrent use. Make one with [NewTransport] or [NewClient].
type Transport struct {
	base       http.RoundTripper
	copies     headerRoundTripper                       // base, where it copies requests itself
	discovers  func(*url.URL) (service string, ok bool) // nil: the base finds nothing
	prop       *propagation.Propagator
	fields     []string // header names of prop, canonical
	names      *edge.Names
	scope      *propagation.OutboundScope
	orphans    *telemetry.OrphanCounter
	exempt     []string
	defaultTag graytag.Tag
	rules      *edge.HopRules // nil: none
	owned      io.Closer      // nil where the base is the caller's
}

var _ http.RoundTripper = (*Transport)(nil)

// headerRoundTripper is a RoundTripper that spares us a copy of the request.
type headerRoundTripper interface {
	RoundTripHeader(req *http.Request, header http.Header) (*http.Response, error)
	RoundTripOwned(req *http.Request) (*http.Response, error)
}

var _ headerRoundTripper = (*httplb.Balancer)(nil)

// NewTransport returns a Transport over base, which may be any RoundTripper; nil
// is http.DefaultTransport. Over a [httplb.Balancer] requests also go to the
// version that their tag asks for; [NewClient] makes both. It fails where an
// option is wrong.
func NewTransport(base http.RoundTripper, opts ...TransportOption) (*Transport, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return newTransport(base, c), nil
}

func newTransport(base http.RoundTripper, c *config) *Transport {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &Transport{
		base:       base,
		prop:       c.prop,
		fields:     c.prop.Fields(),
		scope:      c.prop.NewOutboundScope(c.injectTo, c.logger),
		orphans:    telemetry.NewOrphanCounter(c.metrics(), c.logger),
		exempt:     c.exempt,
		defaultTag: c.defaultTag,
		rules:      c.rules,
	}
	for i, f := range t.fields {
		t.fields[i] = http.CanonicalHeaderKey(f)
	}
	t.names = edge.NewNames(append(slices.Clone(t.fields), hops.TraceHeader)...)
	t.copies, _ = base.(headerRoundTripper)
	if d, ok := base.(interface {
		Service(*url.URL) (string, bool)
	}); ok {
		t.discovers = d.Service
	}
	return t
}

// RoundTrip implements [http.RoundTripper]. The caller's request is not changed.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return t.do(req, false)
}

// RoundTripOwned is RoundTrip for a request that nobody else uses, neither while it
// is under way nor afterwards, as the one that httputil.ReverseProxy makes: it is
// changed, header and all, which spares copies. The names of the headers that the
// propagator writes, and X-Gray-Trace, have to be in canonical form, as the methods of
// http.Header leave them: another spelling would go beside ours, and out of the scope.
func (t *Transport) RoundTripOwned(req *http.Request) (*http.Response, error) {
	return t.do(req, true)
}

func (t *Transport) do(req *http.Request, owned bool) (resp *http.Response, err error) {
	ctx := req.Context()
	if trace := hops.FromContext(ctx); trace != nil {
		resp, err = t.traced(trace, req, owned)
	} else {
		resp, err = t.roundTrip(req, owned)
	}
	if err == nil {
		strip(ctx, resp)
	}
	return resp, err
}

func (t *Transport) roundTrip(req *http.Request, owned bool) (*http.Response, error) {
	if req.URL == nil {
		return t.base.RoundTrip(req) // which says what it thinks of that
	}
	given, odd := req.Header, false
	if !owned {
		given, odd = t.canonical(given)
	}
	if !t.inside(req.URL) {
		return t.withhold(req, given)
	}
	ctx := req.Context()
	present := t.present(given)
	tag := graytag.FromContext(ctx)
	scope := !tag.IsZero() || graytag.InScope(ctx)
	changed := false // the context
	if !scope {
		if tag = t.adopt(req, given, present); !tag.IsZero() {
			ctx, changed = graytag.NewContext(ctx, tag), true
		}
	}
	if t.rules != nil {
		var ok bool
		ctx, tag, ok = t.decide(ctx, req, tag)
		changed = changed || ok
	}
	switch {
	case scope || changed:
	case present && t.unreadable(given):
		// What nobody can read is no tag, and must not fail the request.
		header := copyHeader(given)
		t.prop.Remove(propagation.HeaderCarrier(header))
		return t.send(req, header)
	default:
		return t.pass(req, owned)
	}
	if tag.IsZero() && !present && baggage.FromContext(ctx).Len() == 0 {
		return t.pass(req, owned)
	}
	header := given
	owned = owned && !odd && given != nil
	if !owned && !odd {
		header = copyHeader(given)
	}
	t.prop.Inject(ctx, propagation.HeaderCarrier(header))
	switch {
	case changed:
		return t.sendContext(req, ctx, header)
	case owned:
		return t.pass(req, true)
	}
	return t.send(req, header)
}

// pass sends req as it is.
func (t *Transport) pass(req *http.Request, owned bool) (*http.Response, error) {
	if owned && t.copies != nil {
		return t.copies.RoundTripOwned(req)
	}
	return t.base.RoundTrip(req)
}

// send sends req with another header.
func (t *Transport) send(req *http.Request, header http.Header) (*http.Response, error) {
	if t.copies != nil {
		return t.copies.RoundTripHeader(req, header)
	}
	out := *req
	out.Header = header
	return t.base.RoundTrip(&out)
}

// sendContext sends req with another context and another header.
func (t *Transport) sendContext(req *http.Request, ctx context.Context, header http.Header) (*http.Response, error) {
	out := req.WithContext(ctx)
	out.Header = header
	return t.base.RoundTrip(out)
}

// inside tells whether tags go to u.
func (t *Transport) inside(u *url.URL) bool {
	if t.discovers != nil {
		if _, ok := t.discovers(u); ok {
			return true
		}
	}
	return t.scope.Allows(u.Host)
}

// canonical returns h where every header of ours that it holds is under its
// canonical key, else, odd, a copy of h where it is. net/http sends a key as it
// stands: one in odd case would go beside ours, and out of the scope.
func (t *Transport) canonical(h http.Header) (_ http.Header, odd bool) {
	for k := range h {
		if f := t.names.Canonical(k); f != "" && k != f {
			odd = true
			break
		}
	}
	if !odd {
		return h, false
	}
	c := make(http.Header, len(h)+2)
	for _, k := range slices.Sorted(maps.Keys(h)) { // always in the same order
		f := t.names.Canonical(k)
		if f == "" {
			f = k
		}
		c[f] = append(slices.Clip(c[f]), h[k]...)
	}
	return c, true
}

// present tells whether h holds something that Inject may have to replace or
// remove.
func (t *Transport) present(h http.Header) bool {
	for _, f := range t.fields {
		if len(h[f]) > 0 {
			return true
		}
	}
	return false
}

// adopt finds a tag for a request that belongs to no other: the one that the
// caller has put into its header, which is given, himself, else the default.
func (t *Transport) adopt(req *http.Request, given http.Header, present bool) graytag.Tag {
	if present {
		if tag, ok := t.prop.Tag(req.Context(), propagation.HeaderCarrier(given)); ok {
			return tag
		}
	}
	if t.defaultTag.IsZero() && !exempts(t.exempt, req.URL.Path) {
		t.orphans.Count(req.Context(), req.URL.Host)
	}
	return t.defaultTag
}

// unreadable tells of a header without a valid tag whether it pretends to one.
func (t *Transport) unreadable(h http.Header) bool { return h.Get(graytag.Header) != "" }

// withhold sends req without anything that says something of a tag, in its header,
// which is given, and in its context. Other baggage goes on, as it would inside the scope.
func (t *Transport) withhold(req *http.Request, given http.Header) (*http.Response, error) {
	ctx := req.Context()
	present := t.present(given)
	scope := graytag.InScope(ctx)
	asks := len(given[hops.TraceHeader]) > 0
	if !present && !asks && (!scope || graytag.FromContext(ctx).IsZero() && baggage.FromContext(ctx).Len() == 0) {
		return t.base.RoundTrip(req)
	}
	header := copyHeader(given)
	delete(header, hops.TraceHeader) // nobody outside may know that there is such a thing
	removed := t.prop.Remove(propagation.HeaderCarrier(header))
	ctx = t.scope.Withhold(ctx, req.URL.Host, removed)
	if scope {
		t.prop.Inject(ctx, propagation.HeaderCarrier(header)) // nothing but other baggage is left
	}
	return t.sendContext(req, ctx, header)
}

// copyHeader shares the values of h; their capacity is cut off, so that no append
// reaches the caller's.
func copyHeader(h http.Header) http.Header {
	out := make(http.Header, len(h)+2)
	for k, v := range h {
		out[k] = v[:len(v):len(v)]
	}
	return out
}

// CloseIdleConnections closes the connections of the base that no request uses.
// [http.Client.CloseIdleConnections] calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Close ends what [NewClient] started: the watches of its balancer, and idle
// connections. Requests to services fail afterwards. On a Transport of
// [NewTransport] it does nothing, the base being the caller's. It always returns
// nil.
func (t *Transport) Close() error {
	if t.owned == nil {
		return nil
	}
	if err := t.owned.Close(); err != nil {
		return fmt.Errorf("grayhttp: %w", err)
	}
	return nil
}
