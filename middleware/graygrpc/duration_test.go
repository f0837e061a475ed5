package graygrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// durations returns a provider and a func that returns how many calls were measured,
// by "version wanted status".
func durations(tb testing.TB) (*sdkmetric.MeterProvider, func() map[string]uint64) {
	reader := sdkmetric.NewManualReader()
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func() map[string]uint64 {
		var rm metricdata.ResourceMetrics
		require.NoError(tb, reader.Collect(context.Background(), &rm))
		all := map[string]uint64{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if m.Name != "graylane.server.duration" {
					continue
				}
				assert.Equal(tb, "s", m.Unit)
				for _, dp := range m.Data.(metricdata.Histogram[float64]).DataPoints {
					label := func(key string) string {
						for _, kv := range dp.Attributes.ToSlice() {
							if string(kv.Key) == key {
								return kv.Value.AsString()
							}
						}
						return ""
					}
					assert.Equal(tb, 3, dp.Attributes.Len())
					all[label("version")+" "+label("wanted")+" "+label("status")] += dp.Count
				}
			}
		}
		return all
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		err    error
		status string
	}{
		{nil, "OK"},
		{status.Error(codes.NotFound, "no"), "NOT_FOUND"},
		{fmt.Errorf("order: %w", status.Error(codes.ResourceExhausted, "no")), "RESOURCE_EXHAUSTED"},
		{errors.New("no"), "UNKNOWN"},
		// A call of the handler's own has run out of time, or was given up, which its
		// client did not do.
		{status.Error(codes.DeadlineExceeded, "upstream"), "DEADLINE_EXCEEDED"},
		{context.DeadlineExceeded, "DEADLINE_EXCEEDED"},
		{context.Canceled, "aborted"},
		{status.Error(codes.Canceled, "upstream"), "aborted"},
		{status.Error(codes.Code(99), "no"), "other"},
	} {
		t.Run(c.status, func(t *testing.T) {
			provider, measured := durations(t)
			n := &node{next: func(context.Context) error { return c.err }}
			conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithMeterProvider(provider))...), bare(t)...)
			for _, call := range kinds {
				err := call(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), conn, "version=v2", 2)
				assert.Equal(t, c.err == nil, err == nil)
			}
			assert.Eventually(t, func() bool { return measured()["v2 v2 "+c.status] == 4 }, 5*time.Second, time.Millisecond)
			assert.Len(t, measured(), 1)
		})
	}
}

func TestDurationsSayWhoWasWanted(t *testing.T) {
	provider, measured := durations(t)
	conn := dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t, graygrpc.WithSelf(instance("")), graygrpc.WithMeterProvider(provider),
		graygrpc.WithExempt(testgrpc.TestService_EmptyCall_FullMethodName))...), bare(t)...)
	for _, sent := range []string{"version=v2", "", "version=v3", "version=v3"} {
		require.NoError(t, callUnary(graytag.NewContext(context.Background(), graytag.MustParse(sent)), conn))
	}
	_, err := testgrpc.NewTestServiceClient(conn).EmptyCall(context.Background(), &testgrpc.Empty{})
	require.NoError(t, err)
	assert.Equal(t, map[string]uint64{"stable v2 OK": 1, "stable stable OK": 1, "stable v3 OK": 2}, measured())

	provider, measured = durations(t)
	_, addr := rejecting(t, "order", "v2", graygrpc.WithMeterProvider(provider))
	require.Error(t, callUnary(context.Background(), dial(t, "passthrough:///"+addr)))
	assert.Equal(t, map[string]uint64{"v2 stable FAILED_PRECONDITION": 1}, measured())

	// Without WithSelf nobody knows the version.
	provider, measured = durations(t)
	require.NoError(t, callUnary(context.Background(), dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t, graygrpc.WithMeterProvider(provider))...))))
	assert.Empty(t, measured())
}

// A stream lasts until its handler ends, and an Edge measures as any server.
func TestDurationsOfStreamsAndEdges(t *testing.T) {
	provider, measured := durations(t)
	opts := edgeOptions(t, newEngine(t, testers), graygrpc.WithSelf(registry.Instance{Service: "order"}), graygrpc.WithMeterProvider(provider))
	conn := dial(t, "passthrough:///"+serve(t, &node{}, opts...))
	stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(context.Background())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
	_, err = stream.Recv()
	require.NoError(t, err)
	assert.Empty(t, measured(), "it goes on")
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
	assert.Equal(t, map[string]uint64{"stable stable OK": 1}, measured())
}

// A handler that panics is measured, and panics on.
func TestAPanicIsMeasured(t *testing.T) {
	provider, measured := durations(t)
	recovered := make(chan any, 4)
	unary := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer func() {
			recovered <- recover()
			err = status.Error(codes.Internal, "panic")
		}()
		return next(ctx, req)
	})
	streams := grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer func() {
			recovered <- recover()
			err = status.Error(codes.Internal, "panic")
		}()
		return next(srv, ss)
	})
	n := &node{next: func(context.Context) error { panic("ouch") }}
	opts := append([]grpc.ServerOption{unary, streams}, serverOptions(t, graygrpc.WithSelf(instance("")), graygrpc.WithMeterProvider(provider))...)
	conn := dial(t, "passthrough:///"+serve(t, n, opts...))
	for kind, call := range kinds {
		assert.Equal(t, codes.Internal, status.Code(call(context.Background(), conn, "", 1)), kind)
		assert.Equal(t, "ouch", <-recovered)
	}
	assert.Equal(t, map[string]uint64{"stable stable INTERNAL": 4}, measured())
}

// 100 gray requests of which 40 clients hang up are 60 requests without an error.
func TestHangUps_CountNothingAgainstTheVersion(t *testing.T) {
	provider, measured := durations(t)
	arrived, hungUp := make(chan struct{}), make(chan struct{})
	n := &node{next: func(ctx context.Context) error {
		if graytag.FromContext(ctx).Get("uid") != "gone" {
			return nil
		}
		arrived <- struct{}{}
		<-ctx.Done()
		<-hungUp
		return nil // whatever it says
	}}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithMeterProvider(provider))...), bare(t)...)
	for kind, call := range kinds {
		for range 15 {
			require.NoError(t, call(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), conn, "version=v2", 2), kind)
		}
		var gone sync.WaitGroup
		for i := range 10 {
			// Some have a deadline that is far away.
			ctx, cancel := context.WithCancel(graytag.NewContext(context.Background(), graytag.MustParse("version=v2;uid=gone")))
			if i%2 == 0 {
				var stop context.CancelFunc
				ctx, stop = context.WithTimeout(ctx, time.Hour)
				defer stop()
			}
			gone.Go(func() {
				assert.Equal(t, codes.Canceled, status.Code(call(ctx, conn, "", 2)))
			})
			<-arrived
			cancel()
			gone.Wait()
			hungUp <- struct{}{}
		}
	}
	assert.Eventually(t, func() bool { return measured()["v2 v2 CANCELLED"] == 40 }, 10*time.Second, time.Millisecond)
	assert.Equal(t, map[string]uint64{"v2 v2 OK": 60, "v2 v2 CANCELLED": 40}, measured())
}

// A version that takes longer than its clients wait is no version without errors.
func TestHangUps_ADeadlineThatPassesCounts(t *testing.T) {
	provider, measured := durations(t)
	n := &node{next: func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithMeterProvider(provider))...), bare(t)...)
	var all sync.WaitGroup
	for kind, call := range kinds {
		for range 5 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), 500*time.Millisecond)
				defer cancel()
				// Where the clocks of a busy machine let it, the client has its answer in time.
				if err := call(ctx, conn, "version=v2", 2); err != nil {
					assert.Equal(t, codes.DeadlineExceeded, status.Code(err), kind)
				}
			})
		}
	}
	all.Wait()
	assert.Eventually(t, func() bool { return measured()["v2 v2 DEADLINE_EXCEEDED"] == 20 }, 10*time.Second, time.Millisecond)
	assert.Len(t, measured(), 1)
}

// Of a long deadline no more than the last second counts: who hangs up before has not
// waited to its end.
func TestHangUps_LongDeadlines(t *testing.T) {
	for waited, want := range map[time.Duration]string{50 * time.Second: "CANCELLED", 58 * time.Second: "CANCELLED", 59500 * time.Millisecond: "DEADLINE_EXCEEDED"} {
		synctest.Test(t, func(t *testing.T) {
			provider, measured := durations(t)
			serve, err := graygrpc.UnaryServerInterceptor(graygrpc.WithSelf(instance("")), graygrpc.WithMeterProvider(provider))
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			time.AfterFunc(waited, cancel)
			_, _ = serve(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Order/Get"}, func(ctx context.Context, _ any) (any, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
			assert.Equal(t, map[string]uint64{"stable stable " + want: 1}, measured())
		})
	}
}

// An interceptor of ours within another counts nothing twice, and tells the route
// once.
func TestInterceptorsWithinOthers(t *testing.T) {
	provider, measured := durations(t)
	counted, count := meter(t)
	next := dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t, graygrpc.WithSelf(registry.Instance{ID: "n", Service: "next"}))...), bare(t)...)
	n := &node{next: func(ctx context.Context) error { return callUnary(ctx, next) }}
	for _, p := range []*sdkmetric.MeterProvider{provider, counted} {
		var opts []grpc.ServerOption
		for range 3 {
			opts = append(opts, serverOptions(t, graygrpc.WithSelf(registry.Instance{ID: "me", Service: "order"}), graygrpc.WithMeterProvider(p))...)
		}
		conn := dial(t, "passthrough:///"+serve(t, n, opts...), bare(t)...)
		ctx, trace := propagation.TraceRoute(graytag.NewContext(context.Background(), graytag.Tag{}))
		for kind, call := range kinds {
			require.NoError(t, call(ctx, conn, "", 1), kind)
		}
		trace.End()
		route, _ := trace.Hops()
		var way []string
		for _, h := range route {
			way = append(way, fmt.Sprint(h.Depth, h.Instance))
		}
		assert.Equal(t, []string{"0me", "1n", "0me", "1n", "0me", "1n", "0me", "1n"}, way)
	}
	assert.Eventually(t, func() bool { return measured()["stable stable OK"] == 4 }, 5*time.Second, time.Millisecond)
	assert.EqualValues(t, 4, count("graylane.server.requests"))
}

// listed is a registry that somebody else has written: it checks nothing.
type listed []registry.Instance

func (l listed) Watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		if yield(l, nil) {
			<-ctx.Done()
		}
	}
}

func TestM1_AVersionThatIsNoText(t *testing.T) {
	provider, count := meter(t)
	spans := tracetest.NewSpanRecorder()
	disc := listed{{ID: "i", Service: "inventory", Address: serve(t, &node{}), Metadata: map[string]string{"version": "v\xff"}}}
	conn := dial(t, "gray:///inventory", append(graygrpc.DialOptions(disc, graygrpc.WithMeterProvider(provider), graygrpc.WithPolicy(subset.Policy{Fallback: []string{"any"}})),
		recording(spans))...)
	ctx, route := propagation.TraceRoute(graytag.NewContext(context.Background(), graytag.Tag{}))
	defer route.End()
	for kind, call := range kinds {
		require.NoError(t, call(ctx, conn, "", 2), kind)
	}
	assert.EqualValues(t, len(kinds), count("graylane.route.decisions", "served=other", "wanted=stable", "outcome=fallback_any"))
	for _, s := range spans.Ended() {
		for _, a := range s.Attributes() {
			assert.True(t, utf8.ValidString(a.Value.String()))
		}
	}
	hops, _ := route.Hops()
	assert.Len(t, hops, len(kinds))
}

func TestM2_UsersAreInNoMetric(t *testing.T) {
	provider, measured := durations(t)
	byUser := graygrpc.WithPolicy(subset.Policy{Key: "uid"})
	self := registry.Instance{Service: "inventory", Metadata: map[string]string{"uid": "10086"}}
	conn := dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t, graygrpc.WithSelf(self), byUser, graygrpc.WithMeterProvider(provider), silent)...), bare(t)...)
	for _, sent := range []string{"uid=10086", "uid=10087", ""} {
		require.NoError(t, callUnary(graytag.NewContext(context.Background(), graytag.MustParse(sent)), conn))
	}
	assert.Equal(t, map[string]uint64{"other other OK": 2, "other stable OK": 1}, measured())

	// Nor in those of a client.
	clients, count := meter(t)
	reg := memory.New()
	_, err := reg.Register(context.Background(), registry.Instance{ID: "g1", Service: "inventory", Address: serve(t, &node{}), Metadata: map[string]string{"uid": "10086"}})
	require.NoError(t, err)
	conn = dial(t, "gray:///inventory", graygrpc.DialOptions(reg, byUser, graygrpc.WithMeterProvider(clients))...)
	require.NoError(t, callUnary(graytag.NewContext(context.Background(), graytag.MustParse("uid=10086")), conn))
	require.Error(t, callUnary(graytag.NewContext(context.Background(), graytag.MustParse("uid=10087")), conn))
	assert.EqualValues(t, 1, count("graylane.route.decisions", "wanted=other", "served=other", "outcome=matched"))
	assert.EqualValues(t, 1, count("graylane.route.decisions", "wanted=other", "served=none", "outcome=unavailable"))
}
