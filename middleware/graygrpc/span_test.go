package graygrpc_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// recording is otelgrpc of a client whose spans go to r.
func recording(r *tracetest.SpanRecorder) grpc.DialOption {
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(r))
	return grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(tp), otelgrpc.WithPropagators(w3c)))
}

func grayAttributes(attrs []attribute.KeyValue) map[string]string {
	gray := map[string]string{}
	for _, a := range attrs {
		if len(a.Key) > 5 && a.Key[:5] == "gray." {
			gray[string(a.Key)] = a.Value.AsString()
		}
	}
	return gray
}

// ended waits for n spans and returns them.
func ended(t *testing.T, r *tracetest.SpanRecorder, n int) []sdktrace.ReadOnlySpan {
	t.Helper()
	require.Eventually(t, func() bool { return len(r.Ended()) >= n }, 10*time.Second, time.Millisecond)
	require.Len(t, r.Ended(), n)
	return r.Ended()
}

func TestSpansSayWhichVersionServed(t *testing.T) {
	for _, c := range []struct {
		tag            string
		policy         subset.Policy
		client, server map[string]string
	}{
		{"version=v2.1.0", subset.Policy{},
			map[string]string{"gray.service": "order", "gray.version": "v2.1.0", "gray.served": "v2.1.0", "gray.outcome": "matched"},
			map[string]string{"gray.version": "v2.1.0", "gray.served": "v2.1.0", "gray.outcome": "matched"}},
		{"uid=1", subset.Policy{},
			map[string]string{"gray.service": "order", "gray.version": "stable", "gray.served": "stable", "gray.outcome": "stable"},
			map[string]string{"gray.version": "stable", "gray.served": "stable", "gray.outcome": "stable"}},
		{"version=v9", subset.Policy{},
			map[string]string{"gray.service": "order", "gray.version": "v9", "gray.served": "stable", "gray.outcome": "fallback_stable", "gray.reason": "missing"},
			map[string]string{"gray.version": "v9", "gray.served": "stable", "gray.outcome": "fallback"}},
		{"version=v9", subset.Policy{Strict: true},
			map[string]string{"gray.service": "order", "gray.version": "v9", "gray.outcome": "unavailable", "gray.reason": "missing"}, nil},
	} {
		t.Run(c.tag, func(t *testing.T) {
			reg := memory.New()
			clients, servers := tracetest.NewSpanRecorder(), tracetest.NewSpanRecorder()
			tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(servers))
			for _, version := range []string{"", "v2.1.0"} {
				self := registry.Instance{Service: "order", Metadata: map[string]string{"version": version}}
				opts := append(serverOptions(t, graygrpc.WithSelf(self)), grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(tp), otelgrpc.WithPropagators(w3c))))
				register(t, reg, "order-"+version, "order", version, serve(t, &node{}, opts...))
			}
			conn := dial(t, "gray:///order", append(graygrpc.DialOptions(reg, graygrpc.WithPolicy(c.policy)), recording(clients))...)
			sent := graytag.MustParse(c.tag)
			for kind, call := range kinds {
				err := call(graytag.NewContext(context.Background(), sent), conn, sent.String(), 2)
				if c.server == nil {
					require.Equal(t, codes.Unavailable, status.Code(err), kind)
				} else {
					require.NoError(t, err, kind)
				}
			}
			for _, s := range ended(t, clients, len(kinds)) {
				assert.Equal(t, trace.SpanKindClient, s.SpanKind())
				assert.Equal(t, c.client, grayAttributes(s.Attributes()))
				assert.Empty(t, grayEvents(s))
			}
			if c.server == nil {
				return
			}
			for _, s := range ended(t, servers, len(kinds)) {
				assert.Equal(t, c.server, grayAttributes(s.Attributes()))
			}
		})
	}
}

func grayEvents(s sdktrace.ReadOnlySpan) (events []sdktrace.Event) {
	for _, e := range s.Events() {
		if e.Name == "gray.decision" {
			events = append(events, e)
		}
	}
	return events
}

// Where a call has no span of its own, that of who makes it tells of it; also when
// the client has seen thousands of calls without any.
func TestSpansOfThoseWhoCall(t *testing.T) {
	reg := memory.New()
	register(t, reg, "s1", "order", "", serve(t, quiet{}))
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	spans := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	plain := graytag.NewContext(context.Background(), tag)
	call := func(ctx context.Context) {
		t.Helper()
		require.NoError(t, callEmpty(ctx, conn))
	}
	ctx, span := tracer.Start(plain, "job")
	call(ctx)
	call(ctx)
	span.End()
	events := grayEvents(ended(t, spans, 1)[0])
	require.Len(t, events, 2)
	assert.Equal(t, map[string]string{"gray.service": "order", "gray.version": "v2.1.0", "gray.served": "stable", "gray.outcome": "fallback_stable", "gray.reason": "missing"},
		grayAttributes(events[0].Attributes))

	for range 1200 {
		call(plain)
	}
	spans.Reset()
	ctx, span = tracer.Start(plain, "job")
	for range 200 {
		call(ctx)
	}
	span.End()
	// At most one of the looks is missed before it looks at every call again.
	assert.GreaterOrEqual(t, len(grayEvents(ended(t, spans, 1)[0]))+ended(t, spans, 1)[0].DroppedEvents(), 200-64)
}

func callEmpty(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := testgrpc.NewTestServiceClient(conn).EmptyCall(ctx, &testgrpc.Empty{})
	return err
}
