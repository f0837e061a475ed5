package graygrpc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric"
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

	plain := dial(tb, "passthrough:///"+serve(tb, quiet{}))

	// gray is a client and the instances of a service that both have extra.
	gray := func(provider metric.MeterProvider, client []grpc.DialOption, server ...grpc.ServerOption) *grpc.ClientConn {
		reg := memory.New()
		for _, version := range []string{"", "v2.1.0"} {
			self := registry.Instance{ID: "inventory-" + version, Service: "inventory", Metadata: map[string]string{"version": version}}
			opts := serverOptions(tb, graygrpc.WithSelf(self), graygrpc.WithMeterProvider(provider))
			register(tb, reg, self.ID, "inventory", version, serve(tb, quiet{}, append(opts, server...)...))
		}
		return dial(tb, "gray:///inventory", append(graygrpc.DialOptions(reg, graygrpc.WithMeterProvider(provider)), client...)...)
	}

	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(discarding{}))
	mp := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	otel := []otelgrpc.Option{
		otelgrpc.WithTracerProvider(tp), otelgrpc.WithMeterProvider(mp),
		otelgrpc.WithPropagators(otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})),
	}
	otelClient, otelServer := grpc.WithStatsHandler(otelgrpc.NewClientHandler(otel...)), grpc.StatsHandler(otelgrpc.NewServerHandler(otel...))
	instrumented := dial(tb, "passthrough:///"+serve(tb, quiet{}, otelServer), otelClient)
	plainGray := gray(nil, nil)
	seen := gray(mp, []grpc.DialOption{otelClient}, otelServer)

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
		"plain":                      call(context.Background(), plain),
		"graylane":                   call(tagged, plainGray),
		"graylane_untagged":          call(untagged, plainGray),
		"otelgrpc":                   call(context.Background(), instrumented),
		"otelgrpc+graylane":          call(tagged, seen),
		"otelgrpc+graylane_untagged": call(untagged, seen),
	}
}

func BenchmarkUnary(b *testing.B) {
	cases := unaryCases(b)
	for _, name := range []string{"plain", "graylane", "graylane_untagged", "otelgrpc", "otelgrpc+graylane", "otelgrpc+graylane_untagged"} {
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

	// With metrics and spans on, which all that is added here is seen by.
	tagged, untagged = allocs["otelgrpc+graylane"]-allocs["otelgrpc"], allocs["otelgrpc+graylane_untagged"]-allocs["otelgrpc"]
	t.Logf("added beside otelgrpc, with metrics and spans: tagged %v, untagged %v", tagged, untagged)
	assert.LessOrEqual(t, tagged, otel/2)
	assert.LessOrEqual(t, untagged, otel/2)
}

// discarding takes spans, as an exporter does, and does nothing with them.
type discarding struct{}

func (discarding) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (discarding) OnEnd(sdktrace.ReadOnlySpan)                     {}
func (discarding) Shutdown(context.Context) error                  { return nil }
func (discarding) ForceFlush(context.Context) error                { return nil }
