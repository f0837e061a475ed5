package graygrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
)

// ServerOptions returns what makes a server hand the tags of its requests to
// its handlers, for all four kinds of RPC:
//
//	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self))
//	server := grpc.NewServer(opts...)
//
// It fails where an option is wrong. The options may be used for any number of
// servers that are the same instance. They chain interceptors: others that are
// chained before them run before, and see a context without the tag.
func ServerOptions(opts ...ServerOption) ([]grpc.ServerOption, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream)}, nil
}

// UnaryServerInterceptor returns the interceptor of [ServerOptions] for unary
// RPCs, for those who chain for themselves.
func UnaryServerInterceptor(opts ...ServerOption) (grpc.UnaryServerInterceptor, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	return s.unary, nil
}

// StreamServerInterceptor returns the interceptor of [ServerOptions] for
// streams, for those who chain for themselves.
func StreamServerInterceptor(opts ...ServerOption) (grpc.StreamServerInterceptor, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	return s.stream, nil
}

type server struct {
	prop    *propagation.Propagator
	metrics *telemetry.Metrics
	self    *arrival.Self // nil where it is not known
	exempt  []string

	id, address string // of the own instance, "" where they are not known
	reject      bool   // what is misrouted
	misrouted   *arrival.MisroutedLog
	profiles    *arrival.Profiles // nil: none
}

func newServer(opts []ServerOption) (*server, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	return serverOf(c)
}

func serverOf(c *config) (*server, error) {
	self, err := arrival.NewSelf(c.self, c.policy, c.policies)
	if err != nil {
		return nil, fmt.Errorf("graygrpc: %w", err)
	}
	s := &server{
		prop: c.prop, metrics: c.metrics(), self: self, exempt: c.exempt,
		reject: c.reject, misrouted: arrival.NewMisroutedLog(c.logger),
	}
	if c.self != nil {
		s.id, s.address = c.self.ID, c.self.Address
	} else if c.reject {
		return nil, errors.New("graygrpc: WithRejectMisrouted without WithSelf: nobody knows what is misrouted")
	}
	if c.profiles {
		if s.profiles, err = arrival.NewProfiles(self, c.policy); err != nil {
			return nil, fmt.Errorf("graygrpc: %w", err)
		}
	}
	return s, nil
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	v, err := s.receive(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return v.unary(req, handler)
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	v, err := s.receive(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return v.stream(srv, &serverStream{ServerStream: ss, ctx: v.ctx}, handler)
}

// serverStream is a stream with the context of its request.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// SetTrailer sets what a handler may say.
func (s *serverStream) SetTrailer(md metadata.MD) { s.ServerStream.SetTrailer(unmarked(md)) }

// receive returns the visit of a call, whose context has its tag and is in scope, or
// the error that it is refused with.
func (s *server) receive(ctx context.Context, method string) (v visit, err error) {
	v = visit{server: s, in: ctx, method: method}
	v.ctx = s.extract(ctx)
	tag := graytag.FromContext(v.ctx)
	v.arrival = s.arrival(v.ctx, method, tag)
	if tag.IsZero() {
		v.ctx = arrival.Untagged(v.ctx, v.arrival)
	} else {
		v.ctx = arrival.NewContext(v.ctx, v.arrival)
	}
	traced := asksForRoute(ctx)
	v.begin(tag, traced)
	return v, v.refuse(traced)
}

// asksForRoute tells whether the client asks for the route of its call.
func asksForRoute(ctx context.Context) bool {
	// An interceptor of ours around this one gathers what we would.
	return hops.Asks(metadata.ValueFromIncomingContext(ctx, hops.TraceKey)) && hops.FromContext(ctx) == nil
}

// extract adds to ctx what its metadata holds.
func (s *server) extract(ctx context.Context) context.Context {
	c := incomingPool.Get().(*incoming)
	c.ctx = ctx
	ctx = s.prop.Extract(ctx, c)
	c.ctx = nil
	incomingPool.Put(c)
	return ctx
}

// arrival says what it means that a call of method, which asks for tag, has
// arrived, and counts it; nil where nobody knows.
func (s *server) arrival(ctx context.Context, method string, tag graytag.Tag) *Arrival {
	if s.self == nil || exempts(s.exempt, method) {
		return nil
	}
	a := s.self.Classify(tag)
	if !s.metrics.RequestsEnabled(ctx) || s.self.Known(ctx) {
		return a
	}
	_, wanted := s.self.Labels(a)
	s.metrics.Request(ctx, wanted, string(a.Outcome))
	return a
}
