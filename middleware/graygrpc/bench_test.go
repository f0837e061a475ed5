package graygrpc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// quiet answers and does nothing else.
type quiet struct {
	testgrpc.UnimplementedTestServiceServer
}

func (quiet) EmptyCall(_ context.Context, in *testgrpc.Empty) (*testgrpc.Empty, error) {
	return in, nil
}

// unaryCases are what BenchmarkUnary and the guard below compare: one unary
// RPC over a real connection, client and server together.
func unaryCases(tb testing.TB) map[string]func() {
	tagged := graytag.NewContext(context.Background(), tag)
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})

	addr := serve(tb, quiet{})
	plain := dial(tb, "passthrough:///"+addr)

	reg := memory.New()
	for _, version := range []string{"", "v2.1.0"} {
		self := registry.Instance{Service: "inventory", Metadata: map[string]string{"version": version}}
		opts := serverOptions(tb, graygrpc.WithSelf(self))
		register(tb, reg, "inventory-"+version, "inventory", version, serve(tb, quiet{}, opts...))
	}
	gray := dial(tb, "gray:///inventory", graygrpc.DialOptions(reg)...)

	tp := sdktrace.NewTracerProvider()
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	otel := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tp), otelgrpc.WithMeterProvider(mp),
		otelgrpc.WithPropagators(otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})),
	}
	otelAddr := serve(tb, quiet{}, grpc.StatsHandler(otelgrpc.NewServerHandler(otel...)))
	instrumented := dial(tb, "passthrough:///"+otelAddr, grpc.WithStatsHandler(otelgrpc.NewClientHandler(otel...)))

	call := func(ctx context.Context, conn *grpc.ClientConn) func() {
		client := testgrpc.NewTestServiceClient(conn)
		one := func() {
			if _, err := client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
				tb.Fatal(err)
			}
		}
		for range 100 { // connections, caches, tables of header compression
			one()
		}
		return one
	}
	return map[string]func(){
		"plain":             call(context.Background(), plain),
		"graylane":          call(tagged, gray),
		"graylane_untagged": call(untagged, gray),
		"otelgrpc":          call(context.Background(), instrumented),
	}
}

func BenchmarkUnary(b *testing.B) {
	cases := unaryCases(b)
	for _, name := range []string{"plain", "graylane", "graylane_untagged", "otelgrpc"} {
		one := cases[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

func TestUnaryAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	allocs := map[string]float64{}
	for name, one := range unaryCases(t) {
		allocs[name] = testing.AllocsPerRun(2000, one)
	}
	plain := allocs["plain"]
	tagged, untagged, otel := allocs["graylane"]-plain, allocs["graylane_untagged"]-plain, allocs["otelgrpc"]-plain
	t.Logf("added to the %v of plain gRPC: tagged %v, untagged %v, otelgrpc %v", plain, tagged, untagged, otel)
	assert.LessOrEqual(t, tagged, otel/3)
	assert.LessOrEqual(t, untagged, 4.0)
}
