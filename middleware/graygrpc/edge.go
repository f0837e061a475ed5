package graygrpc

import (
	"context"
	"net/netip"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/telemetry"
)

// Metadata keys of the answers of an [Edge], in the header.
const (
	// VersionKey holds the version that was decided, "stable" where none was:
	// that for the service of [WithSelf], else that for all. Bytes that stand for
	// something else in a tag are percent-encoded.
	VersionKey = "x-version"
	// GroupKey holds the sticky group, where a percentage was drawn with the
	// cookie gray_group. Clients of gRPC keep no cookies, so that an Edge gives
	// them none; they may send one, as gRPC-Web of browsers does.
	GroupKey = "x-canary-group"
)

// Edge returns the options of a server that is the entrance of a system, where
// calls of strangers come in: it takes out what they claim, has engine decide
// which tag each call gets, and hands that on in the context. It stands in place
// of [ServerOptions], does all that ServerOptions does, and takes the same
// options:
//
//	opts, err := graygrpc.Edge(engine, graygrpc.WithTrustedProxies("10.0.0.0/8"))
//	server := grpc.NewServer(opts...)
//
// What is removed, from the incoming metadata and from the context, are
// x-gray-tag, the compatibility keys of [WithPropagator], x-gray-trace and the
// gray.* members of baggage; other baggage stays. It is counted as
// graylane.edge.forged. Rules see the metadata as it came, under the names of
// headers, in any case; host is the authority, path the full method, method POST.
// The answer has [VersionKey] and [GroupKey] in its header. A stream is decided
// when it begins.
//
// Methods that are exempt, see [WithExempt], get no decision and stay untagged;
// what they claim is removed all the same.
//
// Edge fails where engine is nil or an option is wrong. The options may be used
// for any number of servers. They chain interceptors; those that authenticate
// belong before them, see [WithAttr].
func Edge(engine *rule.Engine, opts ...EdgeOption) ([]grpc.ServerOption, error) {
	e, err := newEntrance(engine, opts)
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(e.unary), grpc.ChainStreamInterceptor(e.stream)}, nil
}

// UnaryEdgeInterceptor returns the interceptor of [Edge] for unary RPCs, for those
// who chain for themselves.
func UnaryEdgeInterceptor(engine *rule.Engine, opts ...EdgeOption) (grpc.UnaryServerInterceptor, error) {
	e, err := newEntrance(engine, opts)
	if err != nil {
		return nil, err
	}
	return e.unary, nil
}

// StreamEdgeInterceptor returns the interceptor of [Edge] for streams, for those
// who chain for themselves.
func StreamEdgeInterceptor(engine *rule.Engine, opts ...EdgeOption) (grpc.StreamServerInterceptor, error) {
	e, err := newEntrance(engine, opts)
	if err != nil {
		return nil, err
	}
	return e.stream, nil
}

// entrance is what an Edge knows.
type entrance struct {
	*server
	engine  *rule.Engine
	trust   trust
	attrs   []attr
	service string   // the own one, "" where it is not known
	formats []string // keys of compatibility formats
}

func newEntrance(engine *rule.Engine, opts []EdgeOption) (*entrance, error) {
	if engine == nil {
		return nil, errNoEngine
	}
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s, err := serverOf(c)
	if err != nil {
		return nil, err
	}
	e := &entrance{server: s, engine: engine, attrs: c.attrs}
	if e.trust, err = newTrust(c); err != nil {
		return nil, err
	}
	if err := checkAttrs(c.attrs); err != nil {
		return nil, err
	}
	if c.self != nil {
		e.service = c.self.Service
	}
	for _, f := range c.prop.Fields() {
		if f = wireKey(f); f != tagKey && f != baggageKey {
			e.formats = append(e.formats, f)
		}
	}
	return e, nil
}

func (e *entrance) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	v, err := e.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return v.unary(req, handler)
}

func (e *entrance) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	v, err := e.enter(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	inner := serverStream{ServerStream: ss, ctx: v.ctx}
	if v.private {
		return v.stream(srv, &privateStream{inner}, handler)
	}
	return v.stream(srv, &inner, handler)
}

// enter returns the visit of a call, with the context that it goes on with, or the
// error that it is refused with, and begins the answer.
func (e *entrance) enter(ctx context.Context, method string) (v visit, err error) {
	layer := &edgeContext{}
	entry := &layer.entry
	var from netip.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = edge.NetAddr(p.Addr)
	}
	entry.Client = from
	if e.trust.proxies.Contains(from) {
		entry.Client = edge.ClientAddr(from, metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"), e.trust.proxies)
	}
	trusted := e.trust.gateways.Contains(from)
	traced := trusted && asksForRoute(ctx)
	entry.private = !traced
	tag := e.colour(ctx, method, layer, trusted)
	v = visit{server: e.server, in: ctx, ctx: layer, method: method, arrival: layer.arrival, private: !trusted}
	v.begin(tag, traced)
	if err = v.refuse(traced); err != nil {
		return v, err
	}
	v.private = entry.private
	return v, nil
}

// colour fills layer, and returns the tag that the call goes on with.
func (e *entrance) colour(ctx context.Context, method string, layer *edgeContext, trusted bool) graytag.Tag {
	entry := &layer.entry
	if trusted {
		ctx := e.extract(ctx)
		if tag := graytag.FromContext(ctx); !tag.IsZero() {
			entry.Passed, entry.Decision.Key = true, e.engine.Key()
			e.answer(ctx, tag, entry)
			layer.Context, layer.arrival = ctx, e.arrival(ctx, method, tag)
			return tag
		}
	}
	clean := e.clean(ctx, trusted)
	if exempts(e.exempt, method) {
		entry.Decision.Key = e.engine.Key()
	} else {
		e.decide(ctx, method, entry)
		e.answer(ctx, entry.Decision.Tag, entry)
	}
	tag := entry.Decision.Tag
	layer.arrival = e.arrival(clean, method, tag)
	if layer.untagged = tag.IsZero(); !layer.untagged {
		clean = graytag.NewContext(clean, tag)
	}
	layer.Context = clean
	return tag
}

// clean returns ctx without what outsiders claim, in its metadata and its baggage.
func (e *entrance) clean(ctx context.Context, trusted bool) context.Context {
	ctx, inContext := edge.CleanContext(ctx)
	f := e.forged(ctx, trusted)
	f.baggage = f.baggage || inContext
	if f != (forged{}) {
		e.countForged(ctx, f)
		ctx = e.without(ctx, trusted)
	}
	// What is left are members of others; a handler that calls on hands them on.
	return e.extract(ctx)
}

// decide asks the rules about a call as it came.
func (e *entrance) decide(ctx context.Context, method string, entry *Entry) {
	q := callers.Get().(*caller)
	q.e, q.ctx = e, ctx
	f := edge.Fields{Path: method, Method: "POST", Client: entry.Client}
	if a := metadata.ValueFromIncomingContext(ctx, ":authority"); len(a) > 0 {
		f.Host = a[0]
	}
	q.Set(q, f)
	entry.Decision = q.Decide(e.engine)
	q.Clear()
	q.e, q.ctx = nil, nil
	callers.Put(q)
}

// answer sets the header of the answer. Where it is too late for one, because an
// interceptor outside ours has sent it, the call goes on without.
func (e *entrance) answer(ctx context.Context, tag graytag.Tag, entry *Entry) {
	md := metadata.MD{VersionKey: {edge.VersionOf(tag, entry.Decision.Key, e.service)}}
	if group, ok := entry.Decision.HashedBy(edge.GroupSource); ok {
		md[GroupKey] = []string{group}
	}
	_ = grpc.SetHeader(ctx, md)
}

// forged says where a call claims something of a tag.
type forged struct{ tag, baggage, format, trace bool }

func (e *entrance) forged(ctx context.Context, trusted bool) (f forged) {
	f.tag = has(ctx, tagKey)
	f.trace = !trusted && has(ctx, traceKey)
	f.baggage = edge.HasForged(metadata.ValueFromIncomingContext(ctx, baggageKey))
	for _, key := range e.formats {
		f.format = f.format || has(ctx, key)
	}
	return f
}

func has(ctx context.Context, key string) bool {
	return len(metadata.ValueFromIncomingContext(ctx, key)) > 0
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

// without returns ctx with a copy of its metadata without what claims something of
// a tag.
func (e *entrance) without(ctx context.Context, trusted bool) context.Context {
	md, ok := metadata.FromIncomingContext(ctx) // a copy
	if !ok {
		return ctx
	}
	delete(md, tagKey)
	if !trusted {
		delete(md, traceKey)
	}
	for _, key := range e.formats {
		delete(md, key)
	}
	if lines := edge.WithoutForged(md[baggageKey]); len(lines) > 0 {
		md[baggageKey] = lines
	} else {
		delete(md, baggageKey)
	}
	return metadata.NewIncomingContext(ctx, md)
}
