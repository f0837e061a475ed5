package grayhttp_test

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	cases := roundTripCases(b)
	for _, name := range []string{"plain", "graylane", "graylane_untagged", "otelhttp"} {
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
}
