package grayhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// grayAttributes are those of ours in a span, or in its events.
func grayAttributes(s tracetest.SpanStub) (own map[string]string, events []map[string]string) {
	own = map[string]string{}
	for _, kv := range s.Attributes {
		if strings.HasPrefix(string(kv.Key), "gray.") {
			own[string(kv.Key)] = kv.Value.AsString()
		}
	}
	for _, e := range s.Events {
		if e.Name == "gray.decision" {
			m := map[string]string{}
			for _, kv := range e.Attributes {
				m[string(kv.Key)] = kv.Value.AsString()
			}
			events = append(events, m)
		}
	}
	return own, events
}

func TestSpansAreMarked(t *testing.T) {
	exporter := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	opts := append([]otelhttp.Option{}, otelOptions...)
	opts = append(opts, otelhttp.WithTracerProvider(tracer))
	reg := memory.New()
	inventory := registry.Instance{ID: "i1", Service: "inventory"}
	srv := server(t, otelhttp.NewHandler(mustHandler(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), grayhttp.WithSelf(inventory)), "inventory", opts...))
	inventory.Address = srv.Listener.Addr().String()
	_, err := reg.Register(context.Background(), inventory)
	require.NoError(t, err)

	spans := func(client *http.Client, url string) map[string]tracetest.SpanStub {
		exporter.Reset()
		ctx, span := tracer.Tracer("test").Start(v2(), "job")
		_ = get(ctx, client, url)
		span.End()
		got := map[string]tracetest.SpanStub{}
		require.Eventually(t, func() bool { // the server's span ends after the answer
			for _, s := range exporter.GetSpans() {
				got[s.SpanKind.String()] = s
			}
			return strings.Contains(url, "nobody") || len(got) == 3 || len(got) == 2 && got["client"].Name == ""
		}, 5*time.Second, time.Millisecond)
		return got
	}
	decision := map[string]string{
		"gray.service": "inventory", "gray.version": "v2", "gray.served": "stable", "gray.outcome": "fallback_stable", "gray.reason": "missing",
	}
	arrival := map[string]string{"gray.version": "v2", "gray.served": "stable", "gray.outcome": "fallback"}

	// otelhttp outside ours: the client span is that of the call.
	client := newClient(t, reg)
	got := spans(&http.Client{Transport: otelhttp.NewTransport(client.Transport, opts...)}, "http://inventory/")
	own, events := grayAttributes(got["client"])
	assert.Equal(t, decision, own)
	assert.Empty(t, events)
	own, events = grayAttributes(got["server"])
	assert.Equal(t, arrival, own)
	assert.Empty(t, events)
	own, events = grayAttributes(got["internal"])
	assert.Empty(t, own)
	assert.Empty(t, events)

	// Without a client span, or with one inside ours, it is an event of the caller's.
	got = spans(client, "http://inventory/")
	own, events = grayAttributes(got["internal"])
	assert.Empty(t, own)
	assert.Equal(t, []map[string]string{decision}, events)

	inside := newClient(t, reg, grayhttp.WithBalancer(httplb.WithBase(otelhttp.NewTransport(plain(t), opts...))))
	got = spans(inside, "http://inventory/")
	_, events = grayAttributes(got["internal"])
	assert.Equal(t, []map[string]string{decision}, events)

	// Nobody served.
	got = spans(client, "http://nobody/")
	_, events = grayAttributes(got["internal"])
	assert.Equal(t, []map[string]string{{"gray.service": "nobody", "gray.version": "v2", "gray.outcome": "unavailable", "gray.reason": "missing"}}, events)
}

// here is the label of the line after that of its call.
func here(after int) string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("grayhttp/seeing_test.go:%d", line+after)
}

func TestOrphansAreCountedByCallSite(t *testing.T) {
	provider, sum := meter(t)
	logger, log := logTo(slog.LevelDebug)
	var rec recorder
	reg := memory.New()
	register(t, reg, "order", "o1", "", serve(t, &rec))
	client, err := grayhttp.NewClient(reg, grayhttp.WithLogger(logger), grayhttp.WithMeterProvider(provider), grayhttp.WithExempt("/healthz"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Transport.(*grayhttp.Transport).Close() })
	require.NoError(t, get(graytag.NewContext(context.Background(), graytag.Tag{}), client, "http://order/"))
	require.NoError(t, get(context.Background(), client, "http://order/healthz"))
	assert.Empty(t, sum("graylane.propagation.orphans"), "neither is an orphan")

	want := map[string]int64{}
	closeBody := func(resp *http.Response, err error) {
		require.NoError(t, err)
		_ = resp.Body.Close()
	}
	want[here(2)] = 10_000
	for range 10_000 {
		closeBody(client.Get("http://order/"))
	}
	otel := &http.Client{Transport: otelTransport(client.Transport)}
	want[here(1)] = 1
	closeBody(otel.Get("http://order/"))
	req, err := http.NewRequest(http.MethodGet, "http://order/", nil)
	require.NoError(t, err)
	want[here(1)] = 1
	closeBody(client.Transport.RoundTrip(req))
	done := make(chan struct{})
	want[here(2)] = 1
	go func() {
		closeBody(client.Post("http://order/", "text/plain", strings.NewReader("x")))
		close(done)
	}()
	<-done
	assert.Equal(t, want, sum("graylane.propagation.orphans", "site"))

	lines := log.lines()
	assert.Len(t, lines, len(want), "one per site")
	for site := range want {
		line := site[strings.LastIndexByte(site, ':')+1:]
		assert.Regexp(t, regexp.MustCompile(`level=DEBUG .*file=\S*/seeing_test.go line=`+line+` function=\S*TestOrphansAreCountedByCallSite\S* to=order`), strings.Join(lines, "\n"))
	}
}

// burn keeps a core busy until it is told otherwise.
//
//go:noinline
func burn(until <-chan struct{}) (n int) {
	for {
		select {
		case <-until:
			return n
		default:
			for i := range 10_000 {
				n += i * i
			}
		}
	}
}

func TestProfilesTellVersions(t *testing.T) {
	stop := make(chan struct{})
	labels := make(chan [2]string, 8)
	handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/own":
			burn(stop)
		case "/goroutine":
			done := make(chan struct{})
			go func() { burn(stop); close(done) }()
			<-done
		case "/labels", "/exempt":
			version, _ := pprof.Label(r.Context(), "gray.version")
			outer, _ := pprof.Label(r.Context(), "outer")
			labels <- [2]string{version, outer}
		}
	})
	ours := mustHandler(t, handler, self("v2"), grayhttp.WithProfileLabels(), grayhttp.WithExempt("/exempt"), quiet)
	after := make(chan string, 8)
	srv := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pprof.Do(r.Context(), pprof.Labels("outer", "yes"), func(ctx context.Context) {
			ours.ServeHTTP(w, r.WithContext(ctx))
			if r.URL.Path == "/labels" {
				after <- goroutineLabels(t)
			}
		})
	}))
	client := srv.Client()
	ask := func(path, tag string) {
		req, err := http.NewRequest(http.MethodGet, srv.URL+path, nil)
		require.NoError(t, err)
		req.Header.Set(graytag.Header, tag)
		assert.NoError(t, send(client, req))
	}
	for tag, version := range map[string]string{"": "stable", "version=v2": "v2", "version=v1;version.order=v3": "v3"} {
		ask("/labels", tag)
		assert.Equal(t, [2]string{version, "yes"}, <-labels)
		assert.Contains(t, <-after, `"outer":"yes"`)
	}
	ask("/exempt", "version=v2")
	assert.Equal(t, [2]string{"", "yes"}, <-labels)
	for i := range 1000 {
		ask("/labels", fmt.Sprint("version=w", i))
		version := (<-labels)[0]
		<-after
		if i > 200 {
			require.Equal(t, "other", version)
		}
	}

	var buf bytes.Buffer
	require.NoError(t, pprof.StartCPUProfile(&buf))
	done := make(chan struct{}, 2)
	for path, tag := range map[string]string{"/own": "version=v2", "/goroutine": "version=v3"} {
		go func() { ask(path, tag); done <- struct{}{} }()
	}
	<-time.After(500 * time.Millisecond) // of a profile that takes a hundred samples a second
	close(stop)
	<-done
	<-done
	pprof.StopCPUProfile()
	p, err := profile.Parse(&buf)
	require.NoError(t, err)
	samples := map[string]int64{}
	for _, s := range p.Sample {
		for _, l := range s.Location {
			for _, line := range l.Line {
				if strings.HasSuffix(line.Function.Name, "grayhttp_test.burn") {
					samples[strings.Join(s.Label["gray.version"], "+")] += s.Value[0]
				}
			}
		}
	}
	assert.Positive(t, samples["v2"], "in the handler")
	assert.Positive(t, samples["v3"], "in a goroutine of its own")
	assert.Zero(t, samples[""])
}

// goroutineLabels returns what the goroutine profile says of the labels of the caller.
func goroutineLabels(t testing.TB) string {
	var buf bytes.Buffer
	assert.NoError(t, pprof.Lookup("goroutine").WriteTo(&buf, 1))
	for block := range strings.SplitSeq(buf.String(), "\n\n") {
		if strings.Contains(block, "goroutineLabels") {
			for line := range strings.SplitSeq(block, "\n") {
				if strings.HasPrefix(line, "# labels:") {
					return line
				}
			}
		}
	}
	return ""
}

// What the first request to a service starts, its watch and connections, serves
// others, too, and burns in nobody's name.
func TestProfilesOfRequestsAlone(t *testing.T) {
	reg := memory.New()
	srv := server(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	register(t, reg, "user", "u1", "", srv.Listener.Addr().String())
	for _, base := range []*http.Transport{{}, h2c(t).Transport.(*http.Transport)} {
		client := newClient(t, reg, grayhttp.WithBalancer(httplb.WithBase(base)))
		entrance := server(t, mustHandler(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.NoError(t, get(r.Context(), client, "http://user/"))
		}), self("v2"), grayhttp.WithProfileLabels(), quiet))
		require.NoError(t, get(context.Background(), &http.Client{Transport: plain(t)}, entrance.URL))
		entrance.Close()
		var buf bytes.Buffer
		require.NoError(t, pprof.Lookup("goroutine").WriteTo(&buf, 1))
		assert.Contains(t, buf.String(), "httplb.(*service).run")
		assert.NotContains(t, buf.String(), "gray.version")
	}
}

// Without a service that is known, the version is the one for all.
func TestProfilesWithoutSelf(t *testing.T) {
	labels := make(chan string, 1)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		version, _ := pprof.Label(r.Context(), "gray.version")
		labels <- version
	})
	for key, want := range map[string]string{"": "v2.1.0", "uid": "other"} {
		url := "http://" + serve(t, h, grayhttp.WithProfileLabels(), grayhttp.WithPolicy(subset.Policy{Key: key}))
		require.NoError(t, get(tagged(), &http.Client{Transport: newTransport(t)}, url))
		assert.Equal(t, want, <-labels)
	}
	_, err := grayhttp.NewHandler(h, grayhttp.WithProfileLabels(), grayhttp.WithPolicy(subset.Policy{Key: "a b"}))
	require.Error(t, err)
}
