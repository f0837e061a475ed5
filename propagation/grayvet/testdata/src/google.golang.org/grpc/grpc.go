// Package grpc is what the checks see of gRPC.
package grpc

import "context"

type CallOption interface{ before() }

type ClientConnInterface interface {
	Invoke(ctx context.Context, method string, args, reply any, opts ...CallOption) error
	NewStream(ctx context.Context, desc *StreamDesc, method string, opts ...CallOption) (ClientStream, error)
}

type ClientConn struct{}

func (*ClientConn) Invoke(ctx context.Context, method string, args, reply any, opts ...CallOption) error {
	return nil
}

func (*ClientConn) NewStream(ctx context.Context, desc *StreamDesc, method string, opts ...CallOption) (ClientStream, error) {
	return nil, nil
}

type StreamDesc struct{}

type ClientStream interface {
	Context() context.Context
	CloseSend() error
	SendMsg(m any) error
	RecvMsg(m any) error
}

type ServerStream interface {
	SetTrailer(map[string][]string)
	Context() context.Context
	SendMsg(m any) error
	RecvMsg(m any) error
}

type ServerStreamingServer[Res any] interface {
	Send(*Res) error
	ServerStream
}

type UnaryServerInfo struct{ FullMethod string }

type (
	UnaryHandler func(ctx context.Context, req any) (any, error)
	UnaryInvoker func(ctx context.Context, method string, req, reply any, cc *ClientConn, opts ...CallOption) error
)
