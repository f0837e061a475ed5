package lbtest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// instanceHeader names the instance that has answered.
const instanceHeader = "x-instance"

// Server is one instance. It answers health checks, with its ID in a header.
type Server struct {
	grpc_health_v1.UnimplementedHealthServer

	ID   string
	Addr string

	accepted atomic.Int64
	served   atomic.Int64

	mu      sync.Mutex
	grpc    *grpc.Server
	sick    bool
	changed chan struct{} // closed with every change of sick
}

// Start runs an instance until the test ends.
func Start(tb testing.TB, id string) *Server { return StartAfter(tb, id, 0) }

// StartAfter runs an instance that can be connected to at once, and answers
// only after delay: until then its clients are connecting.
func StartAfter(tb testing.TB, id string, delay time.Duration) *Server {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	s := &Server{ID: id, Addr: lis.Addr().String(), changed: make(chan struct{})}
	s.serve(tb, lis, delay)
	tb.Cleanup(s.Stop)
	return s
}

func (s *Server) serve(tb testing.TB, lis net.Listener, delay time.Duration) {
	g := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(g, s)
	s.mu.Lock()
	s.grpc = g
	s.mu.Unlock()
	counted := &countingListener{Listener: lis, accepted: &s.accepted}
	var wg sync.WaitGroup
	wg.Add(1)
	time.AfterFunc(delay, func() {
		defer wg.Done()
		_ = g.Serve(counted) // returns with Stop, at once where that came first
	})
	tb.Cleanup(func() {
		s.Stop()
		_ = lis.Close() // where Serve has not begun
		wg.Wait()
	})
}

// Stop ends the instance and all its connections.
func (s *Server) Stop() {
	s.mu.Lock()
	g := s.grpc
	s.mu.Unlock()
	g.Stop()
}

// Restart runs the instance again at its address.
func (s *Server) Restart(tb testing.TB) {
	tb.Helper()
	lis, err := net.Listen("tcp", s.Addr)
	require.NoError(tb, err)
	s.serve(tb, lis, 0)
}

// Accepted returns how many connections the instance has had.
func (s *Server) Accepted() int { return int(s.accepted.Load()) }

// Served returns how many RPCs the instance has answered.
func (s *Server) Served() int { return int(s.served.Load()) }

// Check implements grpc_health_v1.HealthServer.
func (s *Server) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s.served.Add(1)
	if err := grpc.SetHeader(ctx, metadata.Pairs(instanceHeader, s.ID)); err != nil {
		return nil, err
	}
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

// SetSick makes the instance answer health watches with NOT_SERVING, or with
// SERVING again. It answers RPCs all the same.
func (s *Server) SetSick(sick bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sick = sick
	close(s.changed)
	s.changed = make(chan struct{})
}

// Watch implements grpc_health_v1.HealthServer.
func (s *Server) Watch(_ *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	for {
		s.mu.Lock()
		sick, changed := s.sick, s.changed
		s.mu.Unlock()
		state := grpc_health_v1.HealthCheckResponse_SERVING
		if sick {
			state = grpc_health_v1.HealthCheckResponse_NOT_SERVING
		}
		if err := stream.Send(&grpc_health_v1.HealthCheckResponse{Status: state}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-changed:
		}
	}
}

type countingListener struct {
	net.Listener
	accepted *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.accepted.Add(1)
	}
	return c, err
}

// Refusing returns an address that refuses connections.
func Refusing(tb testing.TB) string {
	tb.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	defer func() { require.NoError(tb, lis.Close()) }()
	return lis.Addr().String()
}
