package grayhttp_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/baggage"
	otelprop "go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tag = graytag.MustParse("uid=10086;channel=app;version=v2.1.0")

// quiet keeps what the tests provoke out of their output.
var quiet = grayhttp.WithLogger(slog.New(slog.DiscardHandler))

func tagged() context.Context { return graytag.NewContext(context.Background(), tag) }

// seen is what one hop saw of a request.
type seen struct {
	header http.Header
	host   string
	tag    graytag.Tag
	scope  bool
	ctx    context.Context
}

// recorder remembers what it saw, in order.
type recorder struct {
	mu  sync.Mutex
	all []seen
}

func (r *recorder) record(req *http.Request) {
	ctx := req.Context()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, seen{req.Header.Clone(), req.Host, graytag.FromContext(ctx), graytag.InScope(ctx), ctx})
}

func (r *recorder) ServeHTTP(_ http.ResponseWriter, req *http.Request) { r.record(req) }

func (r *recorder) take() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

func (r *recorder) one(t testing.TB) seen {
	t.Helper()
	all := r.take()
	require.Len(t, all, 1)
	return all[0]
}

// serve starts a server, its handler wrapped unless bare.
func serve(t testing.TB, h http.Handler, opts ...grayhttp.HandlerOption) string {
	t.Helper()
	wrapped, err := grayhttp.NewHandler(h, opts...)
	require.NoError(t, err)
	return serveBare(t, wrapped)
}

func serveBare(t testing.TB, h http.Handler) string {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func register(t testing.TB, reg *memory.Registry, service, id, version, address string) {
	t.Helper()
	i := registry.Instance{ID: id, Service: service, Address: address}
	if version != "" {
		i.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	_, err := reg.Register(context.Background(), i)
	require.NoError(t, err)
}

// newClient makes a client that ends with the test.
func newClient(t testing.TB, reg registry.Discovery, opts ...grayhttp.ClientOption) *http.Client {
	t.Helper()
	client, err := grayhttp.NewClient(reg, append([]grayhttp.ClientOption{quiet}, opts...)...)
	require.NoError(t, err)
	transport := client.Transport.(*grayhttp.Transport)
	t.Cleanup(func() { require.NoError(t, transport.Close()) })
	return client
}

// newTransport makes a transport over connections of its own.
func newTransport(t testing.TB, opts ...grayhttp.TransportOption) *grayhttp.Transport {
	t.Helper()
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return wrap(t, base, opts...)
}

func wrap(t testing.TB, base http.RoundTripper, opts ...grayhttp.TransportOption) *grayhttp.Transport {
	t.Helper()
	transport, err := grayhttp.NewTransport(base, append([]grayhttp.TransportOption{quiet}, opts...)...)
	require.NoError(t, err)
	return transport
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return send(client, req)
}

func send(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// members parses the lines of a baggage header.
func members(t testing.TB, lines []string) map[string]string {
	t.Helper()
	got := map[string]string{}
	for _, line := range lines {
		b, err := baggage.Parse(line)
		require.NoError(t, err, line)
		for _, m := range b.Members() {
			require.NotContains(t, got, m.Key(), "one member per key")
			got[m.Key()] = m.Value()
		}
	}
	return got
}

func tagMembers(t graytag.Tag) map[string]string {
	got := map[string]string{}
	for k, v := range t.All() {
		got[graytag.MemberPrefix+k] = v
	}
	return got
}

func with(m map[string]string, kv ...string) map[string]string {
	m = maps.Clone(m)
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	return m
}

// withMember adds a baggage member that is not ours.
func withMember(t testing.TB, ctx context.Context, key, value string) context.Context {
	t.Helper()
	m, err := baggage.NewMemberRaw(key, value)
	require.NoError(t, err)
	b, err := baggage.FromContext(ctx).SetMember(m)
	require.NoError(t, err)
	return baggage.ContextWithBaggage(ctx, b)
}

var otelOptions = []otelhttp.Option{
	otelhttp.WithPropagators(otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{})),
	otelhttp.WithTracerProvider(sdktrace.NewTracerProvider()),
	otelhttp.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))),
}

func otelHandler(h http.Handler) http.Handler { return otelhttp.NewHandler(h, "test", otelOptions...) }
func otelTransport(rt http.RoundTripper) http.RoundTripper {
	return otelhttp.NewTransport(rt, otelOptions...)
}

// meter is a provider, and a func that sums up one of its counters per value of
// a label ("" where it has none).
func meter(t testing.TB) (*sdkmetric.MeterProvider, func(name string, labels ...string) map[string]int64) {
	reader := sdkmetric.NewManualReader()
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func(name string, labels ...string) map[string]int64 {
		t.Helper()
		var rm metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &rm))
		got := map[string]int64{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if m.Name != name {
					continue
				}
				for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
					var values []string
					for _, l := range labels {
						for _, kv := range p.Attributes.ToSlice() {
							if string(kv.Key) == l {
								values = append(values, kv.Value.AsString())
							}
						}
					}
					got[strings.Join(values, " ")] += p.Value
				}
			}
		}
		return got
	}
}

func textLogger() (*slog.Logger, *bytes.Buffer) {
	var buf bytes.Buffer
	return slog.New(slog.NewTextHandler(&buf, nil)), &buf
}
