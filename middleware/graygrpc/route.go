package graygrpc

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/internal/hops"
)

// asking returns ctx for a call of t, which asks the other side for its route.
func asking(ctx context.Context, t *hops.Trace) (context.Context, *hops.Call) {
	ctx, call := t.Begin(ctx)
	if call == nil {
		return ctx, nil
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		md = metadata.MD{}
	}
	md.Set(hops.TraceKey, "1")
	return metadata.NewOutgoingContext(ctx, md), call
}

// answered tells call what the other side has sent.
func answered(call *hops.Call, trailer metadata.MD, err error) {
	route := strings.Join(trailer.Get(hops.RouteKey), ",")
	if route == "" {
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			return // perhaps nobody has seen it
		}
	}
	call.Answered(route)
}

// traced returns invoker for calls of t, each try of which is one hop.
func traced(t *hops.Trace, invoker grpc.UnaryInvoker) grpc.UnaryInvoker {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, opts ...grpc.CallOption) error {
		ctx, call := asking(ctx, t)
		if call == nil {
			return invoker(ctx, method, req, reply, cc, opts...)
		}
		var trailer metadata.MD
		err := invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Trailer(&trailer))...)
		answered(call, trailer, err)
		keepPrivate(ctx, opts)
		return err
	}
}

// tracedStream returns streamer for streams of t.
func tracedStream(t *hops.Trace, streamer grpc.Streamer) grpc.Streamer {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, call := asking(ctx, t)
		s, err := streamer(ctx, desc, cc, method, opts...)
		if err != nil || call == nil {
			return s, err
		}
		return &tracedClientStream{ClientStream: s, call: call, single: !desc.ServerStreams}, nil
	}
}

// tracedClientStream tells its call what the trailer says of the route.
type tracedClientStream struct {
	grpc.ClientStream
	call   *hops.Call
	single bool // one answer ends it
	once   sync.Once
}

func (s *tracedClientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == io.EOF {
		s.ended(nil)
	} else if err != nil || s.single {
		s.ended(err)
	}
	return err
}

// ended notes that the trailer is there.
func (s *tracedClientStream) ended(err error) {
	s.once.Do(func() { answered(s.call, s.Trailer(), err) })
}

// keepPrivate takes out of the trailer that a caller has asked for what he must not
// hand on: a refusal, and, where ctx is that of a call at an [Edge] whose answer
// leaves the system, what is of the inside.
func keepPrivate(ctx context.Context, opts []grpc.CallOption) {
	for _, o := range opts {
		if t, ok := o.(grpc.TrailerCallOption); ok && t.TrailerAddr != nil && *t.TrailerAddr != nil {
			*t.TrailerAddr = unmarked(*t.TrailerAddr)
			if leaves(ctx) {
				*t.TrailerAddr = public(*t.TrailerAddr)
			}
		}
	}
}

// leaves tells whether ctx is that of a call at an [Edge] whose answer leaves the
// system.
func leaves(ctx context.Context) bool {
	e, ok := ctx.Value(entryKey{}).(*Entry)
	return ok && e.private
}
