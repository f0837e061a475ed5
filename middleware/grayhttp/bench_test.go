package grayhttp_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/metric"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// roundTripCases are what BenchmarkRoundTrip and the guard below compare: one GET
// over a real connection, client and server together.
func roundTripCases(tb testing.TB) map[string]func() {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})

	reg := memory.New()
	for id, version := range map[string]string{"i1": "v2.1.0", "i2": ""} {
		self := registry.Instance{Service: "inventory", Metadata: map[string]string{"version": version}}
		register(tb, reg, "inventory", id, version, serve(tb, hello, grayhttp.WithSelf(self)))
	}
	gray := newClient(tb, reg)

	// The same, seen by a real SDK, inside otelhttp on both sides.
	opts, provider := sdkOptions(tb)
	seenReg := memory.New()
	for id, version := range map[string]string{"i1": "v2.1.0", "i2": ""} {
		self := registry.Instance{Service: "inventory", Metadata: map[string]string{"version": version}}
		h := mustHandler(tb, hello, grayhttp.WithSelf(self), grayhttp.WithMeterProvider(provider))
		register(tb, seenReg, "inventory", id, version, serveBare(tb, otelhttp.NewHandler(h, "test", opts...)))
	}
	graySeen := newClient(tb, seenReg, grayhttp.WithMeterProvider(provider))
	graySeen.Transport = otelhttp.NewTransport(graySeen.Transport, opts...)

	call := func(ctx context.Context, client *http.Client, url string) func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(tb, err)
		one := func() {
			if err := send(client, req); err != nil {
				tb.Fatal(err)
			}
		}
		for range 100 { // connections and caches
			one()
		}
		return one
	}
	return map[string]func(){
		"plain":             call(context.Background(), &http.Client{Transport: plain(tb)}, "http://"+serveBare(tb, hello)+"/"),
		"graylane":          call(tagged(), gray, "http://inventory/"),
		"graylane_untagged": call(untagged, gray, "http://inventory/"),
		"otelhttp":          call(context.Background(), &http.Client{Transport: otelTransport(plain(tb))}, "http://"+serveBare(tb, otelHandler(hello))+"/"),
		"otelhttp_seen": call(context.Background(), &http.Client{Transport: otelhttp.NewTransport(plain(tb), opts...)},
			"http://"+serveBare(tb, otelhttp.NewHandler(hello, "test", opts...))+"/"),
		"graylane_seen":          call(tagged(), graySeen, "http://inventory/"),
		"graylane_untagged_seen": call(untagged, graySeen, "http://inventory/"),
	}
}

// discarded takes spans and forgets them.
type discarded struct{}

func (discarded) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
func (discarded) Shutdown(context.Context) error                             { return nil }

// sdkOptions are a real meter and a real tracer. OTel carries no baggage here: it
// would carry the members of the tag once more, with or without us.
func sdkOptions(tb testing.TB) ([]otelhttp.Option, metric.MeterProvider) {
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(discarded{}))
	tb.Cleanup(func() { _ = tracer.Shutdown(context.Background()) })
	return []otelhttp.Option{
		otelhttp.WithPropagators(otelprop.TraceContext{}), otelhttp.WithTracerProvider(tracer), otelhttp.WithMeterProvider(provider),
	}, provider
}

func BenchmarkRoundTrip(b *testing.B) {
	cases := roundTripCases(b)
	for _, name := range []string{"plain", "graylane", "graylane_untagged", "otelhttp", "otelhttp_seen", "graylane_seen", "graylane_untagged_seen"} {
		one := cases[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

func TestRoundTripAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	allocs := map[string]float64{}
	for name, one := range roundTripCases(t) {
		allocs[name] = testing.AllocsPerRun(2000, one)
	}
	base := allocs["plain"]
	tagged, untagged, otel := allocs["graylane"]-base, allocs["graylane_untagged"]-base, allocs["otelhttp"]-base
	t.Logf("added to the %v of net/http: tagged %v, untagged %v, otelhttp %v", base, tagged, untagged, otel)
	assert.LessOrEqual(t, tagged, otel/3)
	assert.LessOrEqual(t, untagged, 4.0)

	otelSeen := allocs["otelhttp_seen"]
	taggedSeen, untaggedSeen := allocs["graylane_seen"]-otelSeen, allocs["graylane_untagged_seen"]-otelSeen
	t.Logf("seen by a real SDK: otelhttp adds %v, graylane adds %v tagged and %v untagged to that", otelSeen-base, taggedSeen, untaggedSeen)
	assert.LessOrEqual(t, taggedSeen, (otelSeen-base)/2)
	assert.LessOrEqual(t, untaggedSeen, (otelSeen-base)/2)
}
