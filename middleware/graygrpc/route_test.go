package graygrpc_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// traceable runs service with a stable and a v2.1.0 instance that call next.
func traceable(t *testing.T, reg registry.Registrar, service string, next func(context.Context) error) {
	t.Helper()
	for _, version := range []string{"", "v2.1.0"} {
		id := service + "-stable"
		self := registry.Instance{Service: service}
		if version != "" {
			id = service + "-" + version
			self.Metadata = map[string]string{"version": version}
		}
		self.ID = id
		register(t, reg, id, service, version, serve(t, &node{next: next}, serverOptions(t, graygrpc.WithSelf(self))...))
	}
}

func TestTheRouteOfACall(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			reg := memory.New()
			traceable(t, reg, "stock", nil)
			toStock := dial(t, "gray:///stock", graygrpc.DialOptions(reg)...)
			toPrice := dial(t, "gray:///price", graygrpc.DialOptions(reg)...)
			traceable(t, reg, "order", func(ctx context.Context) error {
				if err := call(ctx, toStock, tag.String(), 2); err != nil {
					return err
				}
				_ = callUnary(ctx, toPrice) // which nobody has registered
				return nil
			})
			conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
			ctx, trace := propagation.TraceRoute(graytag.NewContext(context.Background(), tag))
			defer trace.End()
			require.NoError(t, call(ctx, conn, tag.String(), 2))
			route, more := trace.Hops()
			assert.Zero(t, more)
			assert.Equal(t, []propagation.Hop{
				{Service: "order", Instance: "order-v2.1.0", Wanted: "v2.1.0", Got: "v2.1.0", Outcome: "matched"},
				{Depth: 1, Service: "stock", Instance: "stock-v2.1.0", Wanted: "v2.1.0", Got: "v2.1.0", Outcome: "matched"},
				{Depth: 1, Service: "price", Wanted: "v2.1.0", Outcome: "unavailable", Reason: "missing"},
			}, route)
		})
	}
}

// A client that knows nothing of all that reads it from the trailer.
func TestTheRouteIsInTheTrailer(t *testing.T) {
	n := &node{}
	self := registry.Instance{Service: "order", Address: "10.0.0.1:80"}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithSelf(self))...))
	const want = "depth=0;service=order;instance=10.0.0.1:80;wanted=v2;got=stable;outcome=fallback"
	for _, asked := range []string{"1", "0", ""} {
		ctx := metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "version=v2", "x-gray-trace", asked)
		var trailer metadata.MD
		for _, fail := range []error{nil, status.Error(codes.NotFound, "no")} {
			n.next = func(context.Context) error { return fail }
			_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
			require.Equal(t, status.Code(fail), status.Code(err))
			if asked == "1" {
				assert.Equal(t, []string{want}, trailer.Get("x-gray-route"))
			} else {
				assert.Empty(t, trailer.Get("x-gray-route"))
			}
		}
	}
	// A server that does not know itself is no hop.
	conn = dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t)...))
	var trailer metadata.MD
	_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(metadata.AppendToOutgoingContext(context.Background(), "x-gray-trace", "1"), &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
	require.NoError(t, err)
	assert.Empty(t, trailer.Get("x-gray-route"))
}

// Both tries of a call that was refused are on its route.
func TestTheRouteOfARefusedCall(t *testing.T) {
	for kind, call := range kinds {
		t.Run(kind, func(t *testing.T) {
			reg := memory.New()
			_, liar := rejecting(t, "order", "v3")
			register(t, reg, "g1", "order", "v2.1.0", liar)
			_, stable := rejecting(t, "order", "")
			register(t, reg, "s1", "order", "", stable)
			conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
			ctx, trace := propagation.TraceRoute(graytag.NewContext(context.Background(), tag))
			defer trace.End()
			require.NoError(t, call(ctx, conn, tag.String(), 1))
			route, _ := trace.Hops()
			assert.Equal(t, []propagation.Hop{
				{Service: "order", Instance: "g1", Wanted: "v2.1.0", Got: "v3", Outcome: "misrouted"},
				{Service: "order", Instance: "s1", Wanted: "v2.1.0", Got: "stable", Outcome: "fallback_stable", Reason: "unhealthy"},
			}, route)
		})
	}
	// There is nobody else.
	reg := memory.New()
	_, liar := rejecting(t, "order", "v3")
	register(t, reg, "g1", "order", "v2.1.0", liar)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	ctx, trace := propagation.TraceRoute(graytag.NewContext(context.Background(), tag))
	defer trace.End()
	require.Error(t, callUnary(ctx, conn))
	route, _ := trace.Hops()
	require.Len(t, route, 1)
	assert.Equal(t, "misrouted", route[0].Outcome)
}

// Outside the scope nobody is asked, also where the metadata is a copy of a call
// that was.
func TestTheQuestionStaysInside(t *testing.T) {
	n := &node{}
	addr := serve(t, n)
	outside := dial(t, "passthrough:///api.example.com:443", append(bare(t, silent), toLoopback(addr))...)
	inside := dial(t, "passthrough:///"+addr, bare(t)...)
	ctx, trace := propagation.TraceRoute(metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), tag), "keep", "it", "x-gray-trace", "1"))
	defer trace.End()
	for kind, call := range kinds {
		require.NoError(t, call(ctx, outside, "", 2), kind)
		assert.Empty(t, n.last(t).md.Get("x-gray-trace"), kind)
		assert.Equal(t, []string{"it"}, n.last(t).md.Get("keep"), kind)
		require.NoError(t, call(ctx, inside, "", 2), kind)
		assert.Equal(t, []string{"1"}, n.last(t).md.Get("x-gray-trace"), kind)
	}
	route, _ := trace.Hops()
	assert.Len(t, route, len(kinds))
	for _, h := range route {
		assert.Equal(t, "answered", h.Outcome, "of somebody who says nothing of himself")
	}
	// Set by hand it goes as it is.
	require.NoError(t, callUnary(metadata.AppendToOutgoingContext(context.Background(), "x-gray-trace", "2"), inside))
	assert.Equal(t, []string{"2"}, n.last(t).md.Get("x-gray-trace"))
}

// A handler of an entrance that hands on all that it was answered, as proxies do.
func TestAnEdgeSaysNothingOfTheInside(t *testing.T) {
	reg := memory.New()
	traceable(t, reg, "stock", nil)
	toStock := dial(t, "gray:///stock", graygrpc.DialOptions(reg)...)
	_, liar := rejecting(t, "price", "v3")
	register(t, reg, "p1", "price", "", liar)
	toPrice := dial(t, "gray:///price", graygrpc.DialOptions(reg)...)

	proxy := &careless{unary: func(ctx context.Context) error {
		var trailer metadata.MD
		_, err := testgrpc.NewTestServiceClient(toStock).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
		if err != nil {
			return err
		}
		if err := grpc.SetTrailer(ctx, trailer); err != nil {
			return err
		}
		_, err = testgrpc.NewTestServiceClient(toPrice).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
		_ = grpc.SetTrailer(ctx, trailer)
		return err
	}, stream: func(ss grpc.ServerStream) error {
		ss.SetTrailer(metadata.Pairs("x-gray-route", "depth=0;service=x", "x-gray-misrouted", "price", "theirs", "1"))
		return firstOf(ss.SetHeader(metadata.Pairs("x-gray-route", "x", "theirs", "1")), ss.SendHeader(metadata.Pairs("x-gray-misrouted", "x")))
	}}
	self := registry.Instance{ID: "e1", Service: "shop"}
	for _, c := range []struct {
		name    string
		gateway graygrpc.EdgeOption
		asks    bool
		told    bool
	}{
		{"a stranger asks", nil, true, false},
		{"a trusted gateway does not ask", graygrpc.WithTrustedGateways("127.0.0.1"), false, false},
		{"a trusted gateway asks", graygrpc.WithTrustedGateways("127.0.0.1"), true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, "passthrough:///"+serve(t, proxy, edgeOptions(t, newEngine(t, testers), graygrpc.WithSelf(self), c.gateway)...))
			ctx := context.Background()
			if c.asks {
				ctx = metadata.AppendToOutgoingContext(ctx, "x-gray-trace", "1")
			}
			var trailer, header metadata.MD
			_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
			assert.Equal(t, codes.FailedPrecondition, status.Code(err))
			assert.Empty(t, markerOf(err))
			stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(ctx)
			require.NoError(t, err)
			_, err = stream.Recv()
			require.Equal(t, io.EOF, err)
			header, err = stream.Header()
			require.NoError(t, err)
			assert.Equal(t, []string{"1"}, header.Get("theirs"))
			assert.Equal(t, []string{"1"}, stream.Trailer().Get("theirs"))
			if c.told {
				hops, _, err := propagation.ParseRoute(strings.Join(trailer.Get("x-gray-route"), ","))
				require.NoError(t, err)
				var services []string
				for _, h := range hops {
					services = append(services, h.Service)
				}
				assert.Contains(t, services, "shop")
				assert.Contains(t, services, "stock")
				assert.Contains(t, services, "price")
				return
			}
			for _, md := range []metadata.MD{trailer, header, stream.Trailer()} {
				assert.Empty(t, md.Get("x-gray-route"))
				assert.Empty(t, md.Get("x-gray-misrouted"))
			}
		})
	}
}

type careless struct {
	testgrpc.UnimplementedTestServiceServer
	unary  func(context.Context) error
	stream func(grpc.ServerStream) error
}

func (c *careless) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{}, c.unary(ctx)
}

func (c *careless) FullDuplexCall(ss grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	return c.stream(ss)
}

// An entrance that is a gray instance itself, and refuses, tells its gateways who it
// is, and strangers that it refuses.
func TestTheRefusalOfAnEdge(t *testing.T) {
	for _, c := range []struct {
		gateway graygrpc.EdgeOption
		marked  bool
	}{{nil, false}, {graygrpc.WithTrustedGateways("127.0.0.1"), true}} {
		opts := edgeOptions(t, newEngine(t, testers), graygrpc.WithSelf(instance("v2")), graygrpc.WithRejectMisrouted(), silent, c.gateway)
		conn := dial(t, "passthrough:///"+serve(t, &node{}, opts...))
		var trailer metadata.MD
		_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(context.Background(), &testgrpc.SimpleRequest{}, grpc.Trailer(&trailer))
		assert.Equal(t, codes.FailedPrecondition, status.Code(err))
		assert.Equal(t, c.marked, len(markerOf(err)) > 0)
		assert.Equal(t, c.marked, len(trailer.Get("x-gray-misrouted")) > 0)
		require.NoError(t, callUnary(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "9999"), conn))
	}
}
