package grayhttp_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// lockedBuffer is a log that many write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) lines() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(b.buf.String(), "\n"), "\n")
}

func logTo(level slog.Level) (*slog.Logger, *lockedBuffer) {
	b := &lockedBuffer{}
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level})), b
}

func TestMisroutedRequestsAreRefused(t *testing.T) {
	counted, sum := meter(t)
	measured, collect := histogram(t)
	logger, log := logTo(slog.LevelInfo)
	var rec recorder
	url := "http://" + serve(t, &rec, grayhttp.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"version": "v2"}}),
		grayhttp.WithRejectMisrouted(), grayhttp.WithExempt("/healthz"), grayhttp.WithMeterProvider(counted), grayhttp.WithLogger(logger))
	also := "http://" + serve(t, &rec, self("v2"), grayhttp.WithRejectMisrouted(), grayhttp.WithMeterProvider(measured), quiet)

	client := &http.Client{Transport: plain(t)}
	ask := func(url, tag string) *http.Response {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("body"))
		require.NoError(t, err)
		if tag != "" {
			req.Header.Set(graytag.Header, tag)
		}
		resp, err := client.Do(req)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Less(t, len(body), 200)
		assert.NotContains(t, string(body), strings.TrimPrefix(url, "http://"))
		return resp
	}
	for _, tag := range []string{"", "version=v3"} {
		resp := ask(url, tag)
		assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
		assert.Equal(t, "order", resp.Header.Get(grayhttp.MisroutedHeader))
		assert.Empty(t, resp.Header.Get("X-Gray-Route"), "nobody asked")
	}
	assert.Empty(t, rec.take(), "the handler never ran")
	resp := ask(url, "version=v2")
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Empty(t, resp.Header.Get(grayhttp.MisroutedHeader))
	assert.Equal(t, http.StatusOK, ask(url+"/healthz", "").StatusCode)
	assert.Len(t, rec.take(), 2)
	assert.Equal(t, map[string]int64{"stable misrouted": 1, "v3 misrouted": 1, "v2 matched": 1}, sum("graylane.server.requests", "wanted", "outcome"))

	ask(also, "version=v3")
	ask(also, "version=v2")
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v2 v3 421": 1, "v2 v2 200": 1}, counts)

	lines := log.lines()
	require.Len(t, lines, 2)
	for _, part := range []string{"level=WARN", "service=order", "version=v2", "wanted=stable", "path=/", "refused=true"} {
		assert.Contains(t, lines[0], part)
	}
	assert.Contains(t, lines[1], "wanted=v3")
}

func TestMisroutedLogIsBounded(t *testing.T) {
	logger, log := logTo(slog.LevelInfo)
	var rec recorder
	url := "http://" + serve(t, &rec, self("v2"), grayhttp.WithLogger(logger))
	client := &http.Client{Transport: plain(t)}
	for i := range 1000 {
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("%s/%s", url, strings.Repeat("x", 10*i%2000)), nil)
		require.NoError(t, err)
		req.Header.Set(graytag.Header, fmt.Sprintf("uid=u%d;version=%s", i, strings.Repeat("v", 200)))
		require.NoError(t, send(client, req))
	}
	assert.Len(t, rec.take(), 1000, "logged, and served")
	lines := log.lines()
	assert.NotEmpty(t, lines)
	assert.LessOrEqual(t, len(lines), 16)
	for _, l := range lines {
		assert.Less(t, len(l), 700)
		assert.NotContains(t, l, "uid")
		assert.NotContains(t, l, "u1")
	}
}

func TestUIDIsNoLabelAndInNoLog(t *testing.T) {
	byUID := subset.Policy{Key: "uid", Fallback: []string{"any"}}
	strict := subset.Policy{Key: "uid", Strict: true}
	counted, sum := meter(t)
	measured, collect := histogram(t)
	logger, log := logTo(slog.LevelInfo)
	own := grayhttp.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"uid": "10086"}})
	var rec recorder
	reg := memory.New()
	for id, opts := range map[string][]grayhttp.HandlerOption{
		"a": {own, grayhttp.WithPolicy(strict), grayhttp.WithMeterProvider(counted), grayhttp.WithLogger(logger)},
		"b": {own, grayhttp.WithPolicy(strict), grayhttp.WithMeterProvider(measured), quiet},
	} {
		_, err := reg.Register(context.Background(), registry.Instance{ID: id, Service: id, Address: serve(t, &rec, opts...), Metadata: map[string]string{"uid": "10086"}})
		require.NoError(t, err)
	}
	client := newClient(t, reg, grayhttp.WithPolicy(byUID), grayhttp.WithMeterProvider(counted))
	for _, service := range []string{"a", "b"} {
		for _, tag := range []string{"uid=10086", "uid=777", ""} {
			ctx := graytag.NewContext(context.Background(), graytag.MustParse(tag))
			require.NoError(t, get(ctx, client, "http://"+service+"/"))
		}
	}
	assert.Equal(t, map[string]int64{
		"a other other matched": 1, "a other other fallback_any": 1, "a stable other fallback_any": 1,
		"b other other matched": 1, "b other other fallback_any": 1, "b stable other fallback_any": 1,
	}, sum("graylane.route.decisions", "service", "wanted", "served", "outcome"))
	assert.Equal(t, map[string]int64{"other matched": 1, "other misrouted": 1, "stable misrouted": 1}, sum("graylane.server.requests", "wanted", "outcome"))
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"other other 200": 2, "other stable 200": 1}, counts)
	require.Len(t, log.lines(), 2)
	assert.NotContains(t, strings.Join(log.lines(), ""), "777")
	assert.NotContains(t, strings.Join(log.lines(), ""), "10086")
}

func TestRejectMisroutedTakesSelf(t *testing.T) {
	_, err := grayhttp.NewHandler(http.NotFoundHandler(), grayhttp.WithRejectMisrouted())
	require.ErrorContains(t, err, "grayhttp: WithRejectMisrouted without WithSelf")
	_, err = grayhttp.Edge(newEngine(t, testers), grayhttp.WithRejectMisrouted())
	require.ErrorContains(t, err, "grayhttp: WithRejectMisrouted without WithSelf")
}

// An instance that has become gray while the client thinks it is stable refuses, and
// the client goes elsewhere, whatever the method.
func TestRefusedRequestsGoElsewhere(t *testing.T) {
	reg := memory.New()
	recs := map[string]*recorder{"wrong": {}, "right": {}}
	reject := grayhttp.WithRejectMisrouted()
	_, err := reg.Register(context.Background(), registry.Instance{ID: "wrong", Service: "order", Weight: 1000, Address: serve(t, recs["wrong"], self("v2"), reject, quiet)})
	require.NoError(t, err)
	register(t, reg, "order", "right", "", serve(t, recs["right"], self(""), reject, quiet))
	var mu sync.Mutex
	var decisions []httplb.Decision
	client := newClient(t, reg, grayhttp.WithBalancer(httplb.WithObserver(func(_ context.Context, d httplb.Decision) {
		mu.Lock()
		defer mu.Unlock()
		decisions = append(decisions, d)
	})))
	for range 20 {
		req, err := http.NewRequestWithContext(graytag.NewContext(context.Background(), graytag.Tag{}), http.MethodPost, "http://order/", strings.NewReader("body"))
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	assert.Empty(t, recs["wrong"].take())
	assert.Len(t, recs["right"].take(), 20)
	assert.Len(t, decisions, 20)
	refused := 0
	for _, d := range decisions {
		assert.Equal(t, "right", d.Instance.ID)
		assert.Equal(t, subset.Stable, d.Outcome)
		if d.Refused {
			refused++
			assert.Equal(t, 2, d.Attempts)
		}
	}
	assert.Greater(t, refused, 10)
}

// The health check of an instance that rejects is no traffic where its path is exempt.
func TestS1_HealthChecksOfAnInstanceThatRejects(t *testing.T) {
	var rec recorder
	url := "http://" + serve(t, &rec, self("v2"), grayhttp.WithRejectMisrouted(), grayhttp.WithExempt("/healthz"), quiet)
	client := &http.Client{Transport: plain(t)}
	status := func(path string) int {
		resp, err := client.Get(url + path)
		require.NoError(t, err)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	assert.Equal(t, http.StatusOK, status("/healthz"))
	assert.Equal(t, http.StatusMisdirectedRequest, status("/healthz/deep"))
	assert.Equal(t, http.StatusMisdirectedRequest, status("/"))
}

// fixed is a discovery that knows one instance, and checks nothing.
type fixed registry.Instance

func (f fixed) Watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		if yield([]registry.Instance{registry.Instance(f)}, nil) {
			<-ctx.Done()
		}
	}
}

// Bytes that are no UTF-8 come from a registry that checks nothing, or over the wire.
func TestM1_InvalidUTF8(t *testing.T) {
	_, err := grayhttp.NewHandler(http.NotFoundHandler(), self("v\xff"))
	require.ErrorContains(t, err, "UTF-8")

	measured, collect := histogram(t)
	counted, sum := meter(t)
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	url := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), self("v2"), grayhttp.WithMeterProvider(measured), quiet)
	client := newClient(t, fixed{ID: "o1", Service: "order", Address: url, Metadata: map[string]string{"version": "v\xff"}},
		grayhttp.WithPolicy(subset.Policy{Fallback: []string{"any"}}), grayhttp.WithMeterProvider(counted))
	ctx, span := tracer.Tracer("test").Start(graytag.NewContext(context.Background(), graytag.Tag{}), "work")
	require.NoError(t, get(ctx, client, "http://order/"))
	span.End()
	assert.Equal(t, map[string]int64{"stable other": 1}, sum("graylane.route.decisions", "wanted", "served"))
	require.Len(t, spans.GetSpans(), 1)
	assert.Contains(t, fmt.Sprintf("%+v", spans.GetSpans()[0].Events), "v\uFFFD")

	raw, err := http.NewRequest(http.MethodGet, "http://"+url, nil)
	require.NoError(t, err)
	raw.Header.Set(graytag.Header, "version=v%ff")
	require.NoError(t, send(&http.Client{Transport: plain(t)}, raw))
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v2 stable 200": 2}, counts, "refused as a tag, and served")
}

// An entrance that is an instance itself may refuse, too. The marker is for a gateway
// further out alone.
func TestAnEdgeThatRefuses(t *testing.T) {
	measured, collect := histogram(t)
	opts := []grayhttp.EdgeOption{self("v9"), grayhttp.WithRejectMisrouted(), grayhttp.WithMeterProvider(measured), quiet}
	for trusted, marker := range map[string]string{"127.0.0.1": "order", "10.0.0.0/8": ""} {
		var rec recorder
		url := "http://" + serveBare(t, enter(t, newEngine(t, testers), &rec, append(opts, grayhttp.WithTrustedGateways(trusted))...))
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header.Set("X-User-ID", "9999")
		req.Header.Set("X-Gray-Trace", "1")
		resp, err := (&http.Client{Transport: plain(t)}).Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode)
		assert.Equal(t, marker, resp.Header.Get("X-Gray-Misrouted"))
		assert.Equal(t, marker != "", resp.Header.Get("X-Gray-Route") != "")
		assert.Empty(t, rec.take())
	}
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v9 v2 421": 2}, counts)
}

// An Edge does all that the inbound middleware does.
func TestAnEdgeSeesWhatAHandlerSees(t *testing.T) {
	measured, collect := histogram(t)
	labels := make(chan string, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version, _ := pprof.Label(r.Context(), "gray.version")
		labels <- version
		w.WriteHeader(http.StatusTeapot)
	})
	srv := server(t, enter(t, newEngine(t, testers), h, self("v2"), grayhttp.WithProfileLabels(), grayhttp.WithMeterProvider(measured)))
	req, err := http.NewRequest(http.MethodGet, srv.URL, nil)
	require.NoError(t, err)
	req.Header.Set("X-User-ID", "9999")
	require.NoError(t, send(srv.Client(), req))
	assert.Equal(t, "v2", <-labels)
	srv.Close()
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v2 v2 418": 1}, counts)
}

// What a handler hands on of a refusal is none of its own, and no reason to run it
// again elsewhere, also where the names are the same.
func TestARefusalThatIsHandedOn(t *testing.T) {
	further := memory.New()
	register(t, further, "order", "far", "", serve(t, &recorder{}, self("v9"), grayhttp.WithRejectMisrouted(), quiet))
	for name, transport := range map[string]http.RoundTripper{
		"balanced": newClient(t, further).Transport,
		"direct":   newTransport(t),
	} {
		var ran, other recorder
		proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
			ran.record(p.In)
			host := "order"
			if name == "direct" {
				host = find(t, further, "order", "far")
			}
			p.SetURL(&url.URL{Scheme: "http", Host: host})
		}, Transport: transport}
		reg := memory.New()
		_, err := reg.Register(context.Background(), registry.Instance{ID: "near", Service: "order", Weight: 1 << 16, Address: serve(t, proxy, self(""))})
		require.NoError(t, err)
		register(t, reg, "order", "other", "", serve(t, &other, self("")))
		ctx := graytag.NewContext(context.Background(), graytag.Tag{})
		client := newClient(t, reg)
		for ran.count() == 0 { // most go there
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://order/", nil)
			require.NoError(t, err)
			other.take()
			resp, err := client.Do(req)
			require.NoError(t, err)
			_ = resp.Body.Close()
			if ran.count() > 0 {
				assert.Equal(t, http.StatusMisdirectedRequest, resp.StatusCode, name)
			}
		}
		assert.Len(t, ran.take(), 1, name)
		assert.Empty(t, other.take(), name)
	}
}
