package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// service is a gRPC service that notes the tag of every call and message.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	mu   sync.Mutex
	tags []string
	wire []string
}

func (s *service) note(ctx context.Context) {
	md, _ := metadata.FromIncomingContext(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tags = append(s.tags, graytag.FromContext(ctx).String())
	s.wire = append(s.wire, strings.Join(md.Get("x-gray-tag"), "|"))
}

func (s *service) UnaryCall(ctx context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	s.note(ctx)
	if err := grpc.SetTrailer(ctx, metadata.Pairs("x-trailer", "end")); err != nil {
		return nil, err
	}
	if in.ResponseSize < 0 {
		st, err := status.New(codes.NotFound, "no such order: 灰").WithDetails(&testgrpc.SimpleRequest{ResponseSize: 404})
		if err != nil {
			return nil, err
		}
		return nil, st.Err()
	}
	return &testgrpc.SimpleResponse{ServerId: "unary"}, nil
}

func (s *service) FullDuplexCall(stream grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	stream.SetTrailer(metadata.Pairs("x-trailer", "end"))
	for {
		in, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return status.Error(codes.DataLoss, "the end")
		}
		if err != nil {
			return err
		}
		s.note(stream.Context())
		if err := stream.Send(&testgrpc.StreamingOutputCallResponse{Payload: in.Payload}); err != nil {
			return err
		}
	}
}

func startService(t *testing.T, reg *memory.Registry, name, version string, options ...graygrpc.ServerOption) *service {
	t.Helper()
	opts, err := graygrpc.ServerOptions(options...)
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	s := &service{}
	testgrpc.RegisterTestServiceServer(srv, s)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	register(t, reg, name, version, lis.Addr().String())
	return s
}

func dial(t *testing.T, url string) testgrpc.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(url, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}

func TestW6_GRPC(t *testing.T) {
	reg := memory.New()
	stable, gray := startService(t, reg, "order", ""), startService(t, reg, "order", "v2.1.0")
	client := dial(t, start(t, reg))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "10086", "x-gray-tag", "version=v9", "baggage", "gray.version=v9")

	var header, trailer metadata.MD
	_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	assert.Equal(t, []string{"v2.1.0"}, header.Get("x-version"))
	assert.Equal(t, []string{"end"}, trailer.Get("x-trailer"))

	_, err = client.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: -1}, grpc.Trailer(&trailer))
	st := status.Convert(err)
	assert.Equal(t, codes.NotFound, st.Code())
	assert.Equal(t, "no such order: 灰", st.Message())
	require.Len(t, st.Details(), 1)
	assert.Equal(t, int32(404), st.Details()[0].(*testgrpc.SimpleRequest).ResponseSize)
	assert.Equal(t, []string{"end"}, trailer.Get("x-trailer"))

	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	for i := range 100 {
		body := []byte{byte(i)}
		require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: body}}))
		out, err := stream.Recv()
		require.NoError(t, err)
		assert.Equal(t, body, out.Payload.Body)
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	assert.Equal(t, codes.DataLoss, status.Code(err))
	assert.Equal(t, []string{"end"}, stream.Trailer().Get("x-trailer"))

	assert.Empty(t, stable.tags)
	assert.Len(t, gray.tags, 102)
	for i := range gray.tags {
		assert.Equal(t, grayTag, gray.tags[i])
		assert.Equal(t, grayTag, gray.wire[i])
	}
	_, err = client.UnaryCall(context.Background(), &testgrpc.SimpleRequest{}, grpc.Header(&header))
	require.NoError(t, err)
	assert.Equal(t, []string{""}, stable.tags)
	assert.Equal(t, []string{"stable"}, header.Get("x-version"))
}

// An instance whose metadata have become another version's refuses. The client learns
// that, and neither which instance it was nor how clients of the inside would see it.
func TestRefusalsOfGRPC(t *testing.T) {
	reg := memory.New()
	startService(t, reg, "order", "v2.1.0", graygrpc.WithRejectMisrouted(), graygrpc.WithLogger(slog.New(slog.DiscardHandler)),
		graygrpc.WithSelf(registry.Instance{ID: "order-1", Service: "order", Metadata: map[string]string{"version": "v3"}}))
	client := dial(t, start(t, reg))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "10086")
	refused := func(header, trailer metadata.MD, err error) {
		t.Helper()
		assert.Equal(t, codes.FailedPrecondition, status.Code(err))
		assert.Empty(t, status.Convert(err).Details())
		for _, md := range []metadata.MD{header, trailer} {
			assert.Empty(t, md.Get(graygrpc.MisroutedKey))
			assert.Empty(t, md.Get("grpc-status-details-bin"))
		}
	}
	var header, trailer metadata.MD
	_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	refused(header, trailer, err)
	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	_, err = stream.Recv()
	header, _ = stream.Header()
	refused(header, stream.Trailer(), err)
}

// Another instance takes what one refuses, also of requests with a body, which are
// those of gRPC all: no user learns of it.
func TestRefusalsGoElsewhere(t *testing.T) {
	reg := memory.New()
	logger := slog.New(slog.DiscardHandler)
	self := registry.Instance{ID: "liar", Service: "order", Metadata: map[string]string{"version": "v3"}}
	startService(t, reg, "order", "v2.1.0", graygrpc.WithRejectMisrouted(), graygrpc.WithLogger(logger), graygrpc.WithSelf(self))
	startService(t, reg, "order", "")
	client := dial(t, start(t, reg))
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "10086"), 10*time.Second)
	defer cancel()
	for range 20 {
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: make([]byte, 4096)}})
		require.NoError(t, err)
		stream, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		for i := range 4 { // each when the one before has come back
			require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: []byte(fmt.Sprint(i))}}))
			out, err := stream.Recv()
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(i), string(out.Payload.Body))
		}
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		assert.Equal(t, codes.DataLoss, status.Code(err))
	}

	reg = memory.New()
	refuse, err := grayhttp.NewHandler(http.NotFoundHandler(), grayhttp.WithRejectMisrouted(), grayhttp.WithLogger(logger), grayhttp.WithSelf(self))
	require.NoError(t, err)
	upstream(t, reg, "order", "v2.1.0", refuse)
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	url := start(t, reg)
	for range 20 {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("hello"))
		require.NoError(t, err)
		req.Header.Set("X-User-ID", "10086")
		resp, body := send(t, newClient(t, "127.0.0.1"), req)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, "hello", body)
	}
}

// TestW6_NoInstance gets a status that a client of gRPC understands.
func TestW6_NoInstance(t *testing.T) {
	var trailer metadata.MD
	_, err := dial(t, start(t, memory.New())).UnaryCall(context.Background(), &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Equal(t, "gateway: missing", status.Convert(err).Message())
	assert.Equal(t, []string{"missing"}, trailer.Get(gateway.ReasonHeader))

	g := newGateway(t, engine(t, whitelist), memory.New(), gateway.WithRoutes(gateway.Route{Prefix: "/other", Service: "order"}))
	_, err = dial(t, "http://"+serve(t, g)).UnaryCall(context.Background(), &testgrpc.SimpleRequest{})
	assert.Equal(t, codes.Unimplemented, status.Code(err))
}

// TestW6_TheServerIsGone while a stream is open.
func TestW6_TheServerIsGone(t *testing.T) {
	reg := memory.New()
	srv := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(srv, &service{})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	register(t, reg, "order", "", lis.Addr().String())
	stream, err := dial(t, start(t, reg)).FullDuplexCall(context.Background())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	srv.Stop()
	<-done
	_, err = stream.Recv()
	assert.NotEqual(t, io.EOF, err)
	assert.NotEqual(t, codes.OK, status.Code(err))
}
