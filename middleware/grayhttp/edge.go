package grayhttp

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
)

// Headers of the answers of an [Edge], and its cookie.
const (
	// VersionHeader holds the version that was decided, "stable" where none was:
	// that for the service of [WithSelf], else that for all. Bytes that stand for
	// something else in a tag are percent-encoded.
	VersionHeader = edge.VersionHeader
	// GroupHeader holds the sticky group, where a percentage was drawn with it.
	GroupHeader = edge.GroupHeader
	// GroupCookie is the cookie that holds the sticky group, see
	// [WithStickyCookie]. A value of more than 64 characters, or of others than
	// letters, digits, '-', '_' and '.', counts as missing.
	GroupCookie = edge.GroupCookie
)

// Edge returns middleware for the entrance of a system, where requests of
// strangers come in: it takes out what they claim, has engine decide which tag
// each request gets, and hands that on in the context. It stands in place of
// [Middleware], does all that Middleware does, and takes the same options:
//
//	enter, err := grayhttp.Edge(engine, grayhttp.WithTrustedProxies("10.0.0.0/8"))
//	http.ListenAndServe(addr, enter(mux))
//
// What is removed, from the request that the handler sees and from its context, are
// X-Gray-Tag, the compatibility headers of [WithPropagator], X-Gray-Trace, the same
// with '_' for '-', for grpc-gateway, or as trailers, and the gray.* members of
// baggage, that of OpenTracing and Jaeger included; other baggage stays. It is
// counted as graylane.edge.forged. Rules see the request as it came. The caller's header is
// not changed. The headers of the answer, [VersionHeader] and [GroupHeader], are set
// before the handler runs.
//
// Requests for the paths of [WithExempt] get no decision and stay untagged; what
// they claim is removed all the same.
//
// Edge fails where engine is nil or an option is wrong. The function that it
// returns may be used for any number of handlers.
func Edge(engine *rule.Engine, opts ...EdgeOption) (func(next http.Handler) http.Handler, error) {
	if engine == nil {
		return nil, errNoEngine
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c)
	if err != nil {
		return nil, err
	}
	e := &entrance{server: s, engine: engine, attrs: c.attrs, service: ""}
	if e.trust, err = newTrust(c); err != nil {
		return nil, err
	}
	if err := checkAttrs(c.attrs); err != nil {
		return nil, err
	}
	if e.sticky, err = checkSticky(c.sticky); err != nil {
		return nil, err
	}
	if c.self != nil {
		e.service = c.self.Service
	}
	e.formats = edge.NewNames(slices.DeleteFunc(c.prop.Fields(), func(f string) bool {
		f = http.CanonicalHeaderKey(f)
		return f == graytag.Header || f == baggageHeader
	})...)
	return func(next http.Handler) http.Handler { return &edgeHandler{entrance: e, next: next} }, nil
}

const baggageHeader = "Baggage"

// entrance is what an Edge knows.
type entrance struct {
	*server
	engine  *rule.Engine
	trust   trust
	attrs   []attr
	sticky  *StickyCookie // nil: none is given
	service string        // the own one, "" where it is not known
	formats *edge.Names   // compatibility headers
}

type edgeHandler struct {
	*entrance
	next http.Handler
}

// ServeHTTP implements [http.Handler].
func (h *edgeHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	shareTrailers(r)
	in, a, trusted := h.enter(w, r)
	h.serve(h.next, w, r, in, a, trusted)
	if !trusted || !hops.Asks(in.Header[hops.TraceHeader]) {
		// Trailers of an answer from further inside, which a handler handed on.
		header := w.Header()
		delete(header, http.TrailerPrefix+hops.RouteHeader)
		delete(header, http.TrailerPrefix+MisroutedHeader)
	}
}

// enter returns r as it goes on, what its arrival means, and whether the peer is a
// gateway that is trusted, and begins the answer.
func (e *entrance) enter(w http.ResponseWriter, r *http.Request) (in *http.Request, a *Arrival, trusted bool) {
	peer := edge.PeerAddr(r.RemoteAddr)
	layer := &edgeContext{} // apart from the request, which need not live as long
	entry := &layer.entry
	entry.Proxied = e.trust.proxies.Contains(peer)
	entry.Client = e.trust.client(r, peer)
	entry.Secure = secure(r, entry.Proxied)
	trusted = e.trust.gateways.Contains(peer) && !edge.Distrusts(r.Context())
	if trusted {
		ctx := e.prop.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		if tag := graytag.FromContext(ctx); !tag.IsZero() {
			entry.Passed, entry.Decision.Key = true, e.engine.Key()
			e.answer(w, tag, entry)
			layer.Context, layer.arrival = ctx, e.arrival(ctx, r, tag)
			return r.WithContext(layer), layer.arrival, trusted
		}
	}
	ctx, header := e.clean(r, trusted)
	if exempts(e.exempt, r.URL.Path) {
		entry.Decision.Key = e.engine.Key()
	} else {
		e.decide(w, r, entry)
	}
	tag := entry.Decision.Tag
	layer.arrival = e.arrival(ctx, r, tag)
	if layer.untagged = tag.IsZero(); !layer.untagged {
		ctx = graytag.NewContext(ctx, tag)
	}
	layer.Context = ctx
	in = r.WithContext(layer)
	in.Header = header
	if r.Trailer != nil && r.Body != nil && r.ProtoMajor == 1 {
		in.Body = &trailerGuard{ReadCloser: r.Body, entrance: e, trailer: r.Trailer, trusted: trusted}
	}
	return in, layer.arrival, trusted
}

// clean returns the context and the header of r without what outsiders claim.
func (e *entrance) clean(r *http.Request, trusted bool) (context.Context, http.Header) {
	ctx, inContext := edge.CleanContext(r.Context())
	f := e.forged(r.Header, trusted)
	f.baggage = f.baggage || inContext
	e.cleanTrailer(r.Trailer, trusted, &f)
	header := r.Header
	if f != (forged{}) {
		e.countForged(ctx, f)
		header = e.without(r.Header, trusted)
	}
	if len(header[baggageHeader]) > 0 {
		// What is left are members of others; a handler that calls on hands them on.
		ctx = e.prop.Extract(ctx, propagation.HeaderCarrier(header))
	}
	return ctx, header
}

// decide asks the rules about r, which is as it came, and begins the answer.
func (e *entrance) decide(w http.ResponseWriter, r *http.Request, entry *Entry) {
	q := visitors.Get().(*visitor)
	q.e, q.r = e, r
	q.Set(httpHeader(r.Header), edge.Fields{
		Host: r.Host, Path: r.URL.Path, Method: r.Method, RawQuery: r.URL.RawQuery, Client: entry.Client,
	})
	var group string
	if e.sticky != nil && keepsCookies(r) {
		entry.Decision, group = q.DecideSticky(e.engine)
	} else {
		entry.Decision = q.Decide(e.engine)
	}
	q.Clear()
	q.e, q.r = nil, nil
	visitors.Put(q)
	if group != "" {
		h := w.Header()
		http.SetCookie(w, edge.GroupSetCookie(group, e.sticky.Domain, e.sticky.MaxAge, entry.Secure))
		if h.Get("Cache-Control") == "" {
			h.Set("Cache-Control", "private")
		}
	}
	e.answer(w, entry.Decision.Tag, entry)
}

// keepsCookies is false for requests that no browser keeps cookies of: preflights
// of CORS, and gRPC other than that of browsers.
func keepsCookies(r *http.Request) bool {
	if r.Method == http.MethodOptions {
		return false
	}
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	kind, _, _ = strings.Cut(kind, "+")
	return !strings.EqualFold(strings.TrimSpace(kind), "application/grpc")
}

func (e *entrance) answer(w http.ResponseWriter, tag graytag.Tag, entry *Entry) {
	h := w.Header()
	h[VersionHeader] = []string{edge.VersionOf(tag, entry.Decision.Key, e.service)}
	if group, ok := entry.Decision.HashedBy(edge.GroupSource); ok {
		h[GroupHeader] = []string{group}
	}
}

// forged says where a request claims something of a tag.
type forged struct{ tag, baggage, format, trace, connection bool }

func (f *forged) note(carrier string) {
	switch carrier {
	case telemetry.ForgedHeader:
		f.tag = true
	case telemetry.ForgedBaggage:
		f.baggage = true
	case telemetry.ForgedCompatibility:
		f.format = true
	case telemetry.ForgedTrace:
		f.trace = true
	}
}

func (e *entrance) forged(h http.Header, trusted bool) (f forged) {
	for name, values := range h {
		if !e.usual(name) {
			if carrier, list := e.carrier(name, trusted); !list || edge.HasForged(values) {
				f.note(carrier)
			}
		}
	}
	for _, line := range h["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			f.connection = f.connection || e.own(option)
		}
	}
	return f
}

// usual tells of nearly every header name, at no cost to speak of, that [entrance.carrier]
// returns "" for it.
func (e *entrance) usual(name string) bool {
	return !e.formats.May(name) && edge.IsUsual(name)
}

// carrier returns what a header of this name, in any spelling, claims a tag in; ""
// where it does not. A list does so only where it holds members of one.
func (e *entrance) carrier(name string, trusted bool) (carrier string, list bool) {
	name = edge.HTTPName(name)
	switch {
	case edge.SameName(name, graytag.Header):
		return telemetry.ForgedHeader, false
	case edge.SameName(name, baggageHeader), edge.SameName(name, "Jaeger-Baggage"):
		return telemetry.ForgedBaggage, true
	case edge.IsForgedMember(name):
		return telemetry.ForgedBaggage, false
	case !trusted && edge.SameName(name, edge.TraceHeader):
		return telemetry.ForgedTrace, false
	}
	if e.formats.Same(name) {
		return telemetry.ForgedCompatibility, false
	}
	return "", false
}

func (e *entrance) countForged(ctx context.Context, f forged) {
	if f.tag {
		e.metrics.CountForged(ctx, telemetry.ForgedHeader)
	}
	if f.baggage {
		e.metrics.CountForged(ctx, telemetry.ForgedBaggage)
	}
	if f.format {
		e.metrics.CountForged(ctx, telemetry.ForgedCompatibility)
	}
	if f.trace {
		e.metrics.CountForged(ctx, telemetry.ForgedTrace)
	}
}

// own tells whether a connection option names a header that is ours.
func (e *entrance) own(option string) bool {
	carrier, _ := e.carrier(strings.Trim(option, " \t"), false)
	return carrier != ""
}

// without returns a copy of h without what claims something of a tag. Connection
// options that name our headers go as well: whoever honours them further inside
// would take away what we put there.
func (e *entrance) without(h http.Header, trusted bool) http.Header {
	h = copyHeader(h)
	for name, values := range h {
		if e.usual(name) {
			continue
		}
		switch carrier, list := e.carrier(name, trusted); {
		case list:
			setOrDelete(h, name, edge.WithoutForged(values))
		case carrier != "":
			delete(h, name)
		}
	}
	var options []string
	for _, line := range h["Connection"] {
		for option := range strings.SplitSeq(line, ",") {
			if option = strings.Trim(option, " \t"); option != "" && !e.own(option) {
				options = append(options, option)
			}
		}
	}
	if len(options) > 0 {
		options = []string{strings.Join(options, ", ")}
	}
	setOrDelete(h, "Connection", options)
	return h
}

func setOrDelete(h http.Header, key string, values []string) {
	if len(values) > 0 {
		h[key] = values
	} else {
		delete(h, key)
	}
}
