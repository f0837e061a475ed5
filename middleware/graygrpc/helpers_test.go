package graygrpc_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tag is the TAG of the cases.
var tag = graytag.MustParse("uid=10086;channel=app;version=v2.1.0")

// visit is one RPC as its handler saw it.
type visit struct {
	method  string
	tag     string
	scoped  bool
	md      metadata.MD
	baggage baggage.Baggage
	arrival graygrpc.Arrival
	known   bool // the arrival
}

// node is a service with all four kinds of RPC. It answers with the tags that
// it sees, message by message, and calls next once per RPC.
type node struct {
	testgrpc.UnimplementedTestServiceServer
	name string
	next func(ctx context.Context) error

	mu     sync.Mutex // of visits
	visits []visit
}

func (n *node) arrive(ctx context.Context) error {
	v := visit{tag: graytag.FromContext(ctx).String(), scoped: graytag.InScope(ctx), baggage: baggage.FromContext(ctx)}
	v.method, _ = grpc.Method(ctx)
	v.md, _ = metadata.FromIncomingContext(ctx)
	v.arrival, v.known = graygrpc.ArrivalFromContext(ctx)
	n.mu.Lock()
	n.visits = append(n.visits, v)
	n.mu.Unlock()
	if n.next == nil {
		return nil
	}
	return n.next(ctx)
}

func (n *node) seen() []visit {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]visit(nil), n.visits...)
}

// last returns the newest visit.
func (n *node) last(tb testing.TB) visit {
	tb.Helper()
	all := n.seen()
	require.NotEmpty(tb, all, "nobody came to %s", n.name)
	return all[len(all)-1]
}

func (n *node) EmptyCall(ctx context.Context, in *testgrpc.Empty) (*testgrpc.Empty, error) {
	return in, n.arrive(ctx)
}

func (n *node) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	err := n.arrive(ctx)
	return &testgrpc.SimpleResponse{ServerId: n.name, Username: graytag.FromContext(ctx).String()}, err
}

func (n *node) StreamingOutputCall(in *testgrpc.StreamingOutputCallRequest, stream grpc.ServerStreamingServer[testgrpc.StreamingOutputCallResponse]) error {
	if err := n.arrive(stream.Context()); err != nil {
		return err
	}
	for range in.ResponseParameters {
		if err := stream.Send(n.answer(stream.Context())); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) StreamingInputCall(stream grpc.ClientStreamingServer[testgrpc.StreamingInputCallRequest, testgrpc.StreamingInputCallResponse]) error {
	if err := n.arrive(stream.Context()); err != nil {
		return err
	}
	right := int32(0)
	for {
		in, err := stream.Recv()
		if err == io.EOF {
			return stream.SendAndClose(&testgrpc.StreamingInputCallResponse{AggregatedPayloadSize: right})
		}
		if err != nil {
			return err
		}
		if string(in.Payload.GetBody()) == graytag.FromContext(stream.Context()).String() {
			right++
		}
	}
}

func (n *node) FullDuplexCall(stream grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	if err := n.arrive(stream.Context()); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := stream.Send(n.answer(stream.Context())); err != nil {
			return err
		}
	}
}

func (n *node) answer(ctx context.Context) *testgrpc.StreamingOutputCallResponse {
	return &testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: []byte(graytag.FromContext(ctx).String())}}
}

// kinds are the four kinds of RPC. Each sends or receives n messages and fails
// where one of them met another tag than want in the handler.
var kinds = map[string]func(ctx context.Context, conn *grpc.ClientConn, want string, n int) error{
	"unary": func(ctx context.Context, conn *grpc.ClientConn, want string, n int) error {
		out, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
		return firstOf(err, differ(want, out.GetUsername()))
	},
	"server stream": func(ctx context.Context, conn *grpc.ClientConn, want string, n int) error {
		stream, err := testgrpc.NewTestServiceClient(conn).StreamingOutputCall(ctx, &testgrpc.StreamingOutputCallRequest{
			ResponseParameters: make([]*testgrpc.ResponseParameters, n),
		})
		if err != nil {
			return err
		}
		for range n {
			out, err := stream.Recv()
			if err := firstOf(err, differ(want, string(out.GetPayload().GetBody()))); err != nil {
				return err
			}
		}
		if _, err := stream.Recv(); err != io.EOF {
			return fmt.Errorf("the stream goes on: %v", err)
		}
		return nil
	},
	"client stream": func(ctx context.Context, conn *grpc.ClientConn, want string, n int) error {
		stream, err := testgrpc.NewTestServiceClient(conn).StreamingInputCall(ctx)
		if err != nil {
			return err
		}
		for range n {
			if err := stream.Send(&testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: []byte(want)}}); err != nil {
				break // CloseAndRecv says why
			}
		}
		out, err := stream.CloseAndRecv()
		return firstOf(err, differ(fmt.Sprint(n), fmt.Sprint(out.GetAggregatedPayloadSize())))
	},
	"bidi": func(ctx context.Context, conn *grpc.ClientConn, want string, n int) error {
		stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		for range n {
			if err := stream.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
				_, err = stream.Recv()
				return err
			}
			out, err := stream.Recv()
			if err := firstOf(err, differ(want, string(out.GetPayload().GetBody()))); err != nil {
				return err
			}
		}
		if err := stream.CloseSend(); err != nil {
			return err
		}
		if _, err := stream.Recv(); err != io.EOF {
			return fmt.Errorf("the stream goes on: %v", err)
		}
		return nil
	},
}

func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func differ(want, got string) error {
	if want != got {
		return fmt.Errorf("want %q, got %q", want, got)
	}
	return nil
}

// serve runs n on a loopback socket until the test ends.
func serve(tb testing.TB, n testgrpc.TestServiceServer, opts ...grpc.ServerOption) (addr string) {
	tb.Helper()
	server := grpc.NewServer(opts...)
	registerNode(server, n)
	return run(tb, server)
}

func registerNode(server *grpc.Server, n testgrpc.TestServiceServer) {
	testgrpc.RegisterTestServiceServer(server, n)
}

func run(tb testing.TB, server *grpc.Server) (addr string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
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

func dial(tb testing.TB, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	tb.Helper()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return conn
}

// bare returns the interceptors of a client as dial options.
func bare(tb testing.TB, opts ...graygrpc.ClientOption) []grpc.DialOption {
	tb.Helper()
	unary, err := graygrpc.UnaryClientInterceptor(opts...)
	require.NoError(tb, err)
	stream, err := graygrpc.StreamClientInterceptor(opts...)
	require.NoError(tb, err)
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(stream)}
}

func serverOptions(tb testing.TB, opts ...graygrpc.ServerOption) []grpc.ServerOption {
	tb.Helper()
	o, err := graygrpc.ServerOptions(opts...)
	require.NoError(tb, err)
	return o
}

func register(tb testing.TB, reg registry.Registrar, id, service, version, addr string) registry.Registration {
	tb.Helper()
	i := registry.Instance{ID: id, Service: service, Address: addr}
	if version != "" {
		i.Metadata = map[string]string{"version": version}
	}
	r, err := reg.Register(context.Background(), i)
	require.NoError(tb, err)
	return r
}

// w3c are the propagators of a service that knows nothing of graylane.
var w3c = otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})

func otelServer() grpc.ServerOption {
	return grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithPropagators(w3c)))
}

func otelClient() grpc.DialOption {
	return grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithPropagators(w3c)))
}

// meter returns a provider and a func that sums up one of its counters, of the
// points with these attributes ("key=value").
func meter(tb testing.TB) (*sdkmetric.MeterProvider, func(name string, with ...string) int64) {
	reader := sdkmetric.NewManualReader()
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func(name string, with ...string) (sum int64) {
		var rm metricdata.ResourceMetrics
		require.NoError(tb, reader.Collect(context.Background(), &rm))
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if m.Name != name {
					continue
				}
			points:
				for _, dp := range m.Data.(metricdata.Sum[int64]).DataPoints {
					for _, w := range with {
						key, value, _ := strings.Cut(w, "=")
						if got, _ := dp.Attributes.Value(attribute.Key(key)); got.AsString() != value {
							continue points
						}
					}
					sum += dp.Value
				}
			}
		}
		return sum
	}
}

// withBaggage puts members "key=value" into the baggage of ctx.
func withBaggage(tb testing.TB, ctx context.Context, kv ...string) context.Context {
	tb.Helper()
	bag := baggage.FromContext(ctx)
	for _, s := range kv {
		key, value, _ := strings.Cut(s, "=")
		m, err := baggage.NewMemberRaw(key, value)
		require.NoError(tb, err)
		bag, err = bag.SetMember(m)
		require.NoError(tb, err)
	}
	return baggage.ContextWithBaggage(ctx, bag)
}

// memberLines returns the list-members of all baggage values of md.
func memberLines(md metadata.MD) []string {
	var lines []string
	for _, v := range md.Get("baggage") {
		lines = append(lines, strings.Split(v, ",")...)
	}
	return lines
}
