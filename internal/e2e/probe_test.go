package e2e_test

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// An agent knows nothing of tags: its probes are untagged.
func TestS1_ConsulProbesARejectingInstanceOverGRPC(t *testing.T) {
	agent := consultest.Start(t)
	self := registry.Instance{ID: "order-gray", Service: "order", Status: registry.StatusCritical, Metadata: map[string]string{"version": "v2"}}
	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self), graygrpc.WithRejectMisrouted(), graygrpc.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	server, state := grpc.NewServer(opts...), health.NewServer()
	healthpb.RegisterHealthServer(server, state)
	testgrpc.RegisterTestServiceServer(server, testgrpc.UnimplementedTestServiceServer{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		server.Stop()
		require.NoError(t, <-done)
	}()

	reg, err := consul.New(agent.Config(), consul.WithGRPCCheck("", time.Second))
	require.NoError(t, err)
	defer func() { require.NoError(t, reg.Close()) }()
	self.Address = l.Addr().String()
	_, err = reg.Register(context.Background(), self)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	healthy := false
	for set, err := range reg.Watch(ctx, "order") {
		require.NoError(t, err)
		if healthy = len(set) == 1 && set[0].Status == registry.StatusPassing; healthy {
			break
		}
	}
	assert.True(t, healthy)

	conn, err := grpc.NewClient("passthrough:///"+self.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, err = testgrpc.NewTestServiceClient(conn).EmptyCall(ctx, &testgrpc.Empty{})
	assert.Equal(t, codes.FailedPrecondition, status.Code(err), "it does reject")
}
