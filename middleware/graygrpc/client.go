package graygrpc

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/baggage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/elsewhere"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
)

// UnaryClientInterceptor returns the interceptor of [DialOptions] for unary
// RPCs, for connections that are dialled without it, to a fixed address for
// example. It hands tags on; which instance gets the call is for the
// connection's balancer to say.
func UnaryClientInterceptor(opts ...ClientOption) (grpc.UnaryClientInterceptor, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return newClient(c).unary, nil
}

// StreamClientInterceptor returns the interceptor of [DialOptions] for streams,
// see [UnaryClientInterceptor].
func StreamClientInterceptor(opts ...ClientOption) (grpc.StreamClientInterceptor, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return newClient(c).stream, nil
}

type client struct {
	prop       *propagation.Propagator
	fields     []string // metadata keys of prop
	scope      *propagation.OutboundScope
	orphans    *telemetry.OrphanCounter
	exempt     []string
	defaultTag graytag.Tag
	rules      *edge.HopRules // nil: none
	guard      grpc.CallOption
	targets    destinations
}

func newClient(c *config) *client {
	fields := c.prop.Fields()
	for i, f := range fields {
		fields[i] = strings.ToLower(f)
	}
	return &client{
		prop:       c.prop,
		fields:     fields,
		scope:      c.prop.NewOutboundScope(c.injectTo, c.logger),
		orphans:    telemetry.NewOrphanCounter(c.metrics(), c.logger),
		exempt:     c.exempt,
		defaultTag: c.defaultTag,
		rules:      c.rules,
		guard:      grpc.PerRPCCredentials(&guard{prop: c.prop}),
	}
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, opts, to := c.send(ctx, method, cc, opts)
	if to.inside && hops.Live() {
		if t := hops.FromContext(ctx); t != nil {
			invoker = traced(t, invoker)
		}
	}
	err := invoker(ctx, method, req, reply, cc, opts...)
	if err == nil {
		return nil
	}
	if _, ok := refused(err, anyone); !ok {
		return err
	}
	refusal, ok := refused(err, to.service)
	if !ok || !to.chosen || elsewhere.Tried(ctx) {
		keepPrivate(ctx, opts)
		return err
	}
	again, done := elsewhere.NewContext(ctx, refusal)
	defer done()
	second := invoker(again, method, req, reply, cc, opts...)
	if refusal.WasNowhere() {
		second = err
	}
	keepPrivate(ctx, opts) // also of the first try, whose trailer is there where the second had none
	if _, ok := refused(second, anyone); ok {
		return &tried{second}
	}
	return second
}

func (c *client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, opts, to := c.send(ctx, method, cc, opts)
	if to.inside && hops.Live() {
		if t := hops.FromContext(ctx); t != nil {
			streamer = tracedStream(t, streamer)
		}
	}
	if !to.chosen || elsewhere.Tried(ctx) {
		return streamer(ctx, desc, cc, method, opts...)
	}
	return openStream(ctx, desc, cc, method, to.service, streamer, opts)
}

// send returns ctx and opts as the call goes on with them, and where it goes: inside
// where tags go there. Neither the caller's metadata nor its options are changed.
func (c *client) send(ctx context.Context, method string, cc *grpc.ClientConn, opts []grpc.CallOption) (context.Context, []grpc.CallOption, destination) {
	to := c.targets.of(cc)
	if to.inside = to.inside || c.scope.Allows(to.host); !to.inside {
		return c.withhold(ctx, to.host), opts, to
	}
	ctx, opts = c.inject(ctx, method, to, opts)
	return ctx, opts, to
}

func (c *client) inject(ctx context.Context, method string, to destination, opts []grpc.CallOption) (context.Context, []grpc.CallOption) {
	tag := graytag.FromContext(ctx)
	scope := !tag.IsZero() || graytag.InScope(ctx)
	if !scope {
		ctx = c.adopt(ctx, method)
	}
	if c.rules != nil {
		ctx = c.decide(ctx, method, to.service)
	}
	if tag = graytag.FromContext(ctx); tag.IsZero() && !scope {
		return ctx, opts
	}
	present := c.present(ctx)
	if tag.IsZero() && !present && baggage.FromContext(ctx).Len() == 0 {
		return ctx, opts
	}
	md := outgoingOf(ctx, !present)
	c.prop.Inject(ctx, md)
	ctx = md.commit(ctx)
	md.release()
	if !tag.IsZero() {
		opts = guarded(opts, c.guard, c.prop)
	}
	return ctx, opts
}

// present tells whether the outgoing metadata of ctx holds something that
// Inject may have to replace or remove.
func (c *client) present(ctx context.Context) bool {
	for _, f := range c.fields {
		if len(metadata.ValueFromOutgoingContext(ctx, f)) > 0 {
			return true
		}
	}
	return false
}

// adopt finds a tag for a call that belongs to no request: the one that the
// caller has put into the metadata himself, else the default. The tag has to be
// in the context, which is where the balancer reads it.
func (c *client) adopt(ctx context.Context, method string) context.Context {
	if c.present(ctx) {
		md := outgoingOf(ctx, false)
		defer md.release()
		if tag, ok := c.prop.Tag(ctx, md); ok {
			return graytag.NewContext(ctx, tag)
		}
		// What nobody could read must not fail the call either.
		if md.Get(tagKey) != "" && c.prop.Remove(md) {
			ctx = md.commit(ctx)
		}
	}
	if !c.defaultTag.IsZero() {
		return graytag.NewContext(ctx, c.defaultTag)
	}
	if !exempts(c.exempt, method) {
		c.orphans.Count(ctx, method)
	}
	return ctx
}

// withhold keeps everything that says something of a tag from a call to host,
// and nothing else: other baggage goes where it went.
func (c *client) withhold(ctx context.Context, host string) context.Context {
	asks := len(metadata.ValueFromOutgoingContext(ctx, traceKey)) > 0
	md := outgoingOf(ctx, !asks && !c.present(ctx))
	defer md.release()
	if asks {
		md.Delete(traceKey)
	}
	ctx = c.scope.Withhold(ctx, host, c.prop.Remove(md))
	c.prop.Inject(ctx, md)
	return md.commit(ctx)
}
