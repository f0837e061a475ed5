package graygrpc_test

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
)

type service struct {
	testgrpc.UnimplementedTestServiceServer
}

func (s *service) EmptyCall(ctx context.Context, in *testgrpc.Empty) (*testgrpc.Empty, error) {
	return in, nil
}

func serve(tb testing.TB, s testgrpc.TestServiceServer, opts ...grpc.ServerOption) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	tb.Cleanup(func() {
		server.Stop()
		<-done
	})
	return l.Addr().String()
}
