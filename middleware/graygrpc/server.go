package graygrpc

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
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
	return &server{prop: c.prop, metrics: c.metrics(), self: self, exempt: c.exempt}, nil
}

func (s *server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(s.receive(ctx, info.FullMethod), req)
}

func (s *server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &serverStream{ServerStream: ss, ctx: s.receive(ss.Context(), info.FullMethod)})
}

// serverStream is a stream with the context of its request.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// receive returns ctx with the tag of its request, and in scope.
func (s *server) receive(ctx context.Context, method string) context.Context {
	ctx = s.extract(ctx)
	tag := graytag.FromContext(ctx)
	a := s.arrival(ctx, method, tag)
	if tag.IsZero() {
		return arrival.Untagged(ctx, a)
	}
	return arrival.NewContext(ctx, a)
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
	s.metrics.Request(ctx, a.Wanted, string(a.Outcome))
	return a
}
