package grayhttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

// histogram is a provider, and a func that counts what was measured of
// graylane.server.duration by version, wanted and status, and adds up the seconds.
func histogram(t testing.TB) (*sdkmetric.MeterProvider, func() (counts map[string]uint64, seconds map[string]float64)) {
	reader := sdkmetric.NewManualReader()
	return sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), func() (map[string]uint64, map[string]float64) {
		t.Helper()
		var rm metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &rm))
		counts, seconds := map[string]uint64{}, map[string]float64{}
		for _, sm := range rm.ScopeMetrics {
			for _, m := range sm.Metrics {
				if m.Name != "graylane.server.duration" {
					continue
				}
				require.Equal(t, "s", m.Unit)
				for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
					var labels []string
					for _, key := range []string{"version", "wanted", "status"} {
						v, ok := p.Attributes.Value(attribute.Key(key))
						require.True(t, ok, key)
						labels = append(labels, v.AsString())
					}
					require.Equal(t, 3, p.Attributes.Len())
					counts[strings.Join(labels, " ")] += p.Count
					seconds[strings.Join(labels, " ")] += p.Sum
				}
			}
		}
		return counts, seconds
	}
}

// server starts a server that speaks HTTP/1.1 and h2c, and says nothing.
func server(t testing.TB, h http.Handler) *httptest.Server {
	srv := unstarted(h)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv
}

func unstarted(h http.Handler) *httptest.Server {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

func h2c(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// failing fails where it is read.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("upstream broke") }

func TestDurations(t *testing.T) {
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		status  string
		only    int // a major version of HTTP, 0 for both
	}{
		"says nothing":    {func(http.ResponseWriter, *http.Request) {}, "200", 0},
		"writes":          {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, "200", 0},
		"an empty write":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(nil); w.WriteHeader(500) }, "200", 0},
		"flushes":         {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); w.WriteHeader(500) }, "200", 0},
		"created":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(500) }, "201", 0},
		"fails":           {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) }, "503", 0},
		"deadline":        {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "upstream", http.StatusGatewayTimeout) }, "504", 0},
		"nothing to copy": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, failing{}); w.WriteHeader(502) }, "502", 0},
		"copies": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(strings.NewReader("hello"), 5))
		}, "200", 0},
		"early hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusNotFound)
		}, "404", 0},
		"panics":              {func(http.ResponseWriter, *http.Request) { panic("bug") }, "500", 0},
		"panics after hints":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(103); panic("bug") }, "500", 0},
		"panics in its body":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic("bug") }, "aborted", 0},
		"aborts":              {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "aborted", 0},
		"aborts in its body":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200); panic(http.ErrAbortHandler) }, "aborted", 0},
		"no status of HTTP's": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(799) }, "other", 0},
		"takes the connection": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}, "hijacked", 1},
	} {
		for _, major := range []int{1, 2} {
			if c.only != 0 && c.only != major {
				continue
			}
			t.Run(fmt.Sprint(name, " over HTTP/", major), func(t *testing.T) {
				provider, collect := histogram(t)
				srv := server(t, mustHandler(t, c.handler, self("v2"), grayhttp.WithMeterProvider(provider), grayhttp.WithExempt("/healthz"), quiet))
				client := srv.Client()
				if major == 2 {
					client = h2c(t)
				}
				for _, path := range []string{"/", "/healthz"} {
					req, err := http.NewRequest(http.MethodGet, srv.URL+path, nil)
					require.NoError(t, err)
					req.Header.Set(graytag.Header, "version=v2")
					_ = send(client, req) // some answers break off
				}
				srv.Close()
				counts, _ := collect()
				assert.Equal(t, map[string]uint64{"v2 v2 " + c.status: 1}, counts)
			})
		}
	}
}

// A tunnel is measured until it begins, and recorded then: it may last for days.
func TestDurationOfATunnel(t *testing.T) {
	provider, collect := histogram(t)
	done := make(chan struct{})
	srv := server(t, mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "echo")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = rw.Flush()
		<-done
	}), self(""), grayhttp.WithMeterProvider(provider)))
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: order\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	require.Eventually(t, func() bool {
		counts, _ := collect()
		return counts["stable stable 101"] == 1
	}, 5*time.Second, 5*time.Millisecond)
	close(done)
	srv.Close()
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"stable stable 101": 1}, counts)
}

// A version that is too slow for the server's own limit is not excused by it: that
// net/http gives the connection up is none of the client's doing.
func TestWritesThatAreTooLateAreNoHangUps(t *testing.T) {
	provider, collect := histogram(t)
	srv := httptest.NewUnstartedServer(mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
		_, err := io.CopyN(w, endless{}, 1<<20)
		assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
		assert.Error(t, r.Context().Err())
	}), self("v2"), grayhttp.WithMeterProvider(provider), quiet))
	srv.Start()
	t.Cleanup(srv.Close)
	_ = get(context.Background(), srv.Client(), srv.URL)
	srv.Close()
	counts, _ := collect()
	assert.Equal(t, map[string]uint64{"v2 stable aborted": 1}, counts)
}

// Nor do other limits of the server's excuse it: what its client gets is no answer of
// the handler.
func TestLimitsOfTheServerAreNoHangUps(t *testing.T) {
	wait := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	slow := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(250 * time.Millisecond):
		}
		_, _ = io.WriteString(w, "late")
	}
	within := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, 10*time.Millisecond, "too slow") }
	cancelling := func(h http.Handler) http.Handler { // as routers have it
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), 10*time.Millisecond)
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
			w.WriteHeader(http.StatusGatewayTimeout)
		})
	}
	for name, c := range map[string]struct {
		outside func(http.Handler) http.Handler
		handler http.HandlerFunc
		limit   time.Duration
		status  string
	}{
		"TimeoutHandler":            {within, wait, 0, "aborted"},
		"TimeoutHandler, late":      {within, func(w http.ResponseWriter, _ *http.Request) { writeUntilItFails(w) }, 0, "aborted"},
		"deadline":                  {cancelling, wait, 0, "aborted"},
		"deadline, the handler's":   {cancelling, func(w http.ResponseWriter, r *http.Request) { wait(w, r); w.WriteHeader(503) }, 0, "503"},
		"WriteTimeout":              {nil, slow, 150 * time.Millisecond, "aborted"},
		"WriteTimeout, unlimited":   {nil, unlimited(time.Time{}, slow), 150 * time.Millisecond, "200"},
		"WriteTimeout, more time":   {nil, unlimited(time.Now().Add(time.Hour), slow), 150 * time.Millisecond, "200"},
		"WriteTimeout, enough time": {nil, slow, time.Hour, "200"},
	} {
		for _, client := range []*http.Client{{Transport: plain(t)}, h2c(t)} {
			provider, collect := histogram(t)
			h := mustHandler(t, c.handler, self(""), grayhttp.WithMeterProvider(provider))
			if c.outside != nil {
				h = c.outside(h)
			}
			srv := unstarted(h)
			srv.Config.WriteTimeout = c.limit
			srv.Start()
			_ = get(context.Background(), client, srv.URL)
			require.Eventually(t, func() bool { counts, _ := collect(); return len(counts) > 0 }, 5*time.Second, time.Millisecond, name)
			srv.Close()
			counts, _ := collect()
			assert.Equal(t, map[string]uint64{"stable stable " + c.status: 1}, counts, name)
		}
	}
}

func writeUntilItFails(w io.Writer) {
	for {
		if _, err := io.WriteString(w, "x"); err != nil {
			return
		}
	}
}

func unlimited(until time.Time, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(until)
		h(w, r)
	}
}

// What a client was told before it hung up stays an error.
func TestAnErrorThatWasToldStays(t *testing.T) {
	for _, client := range []*http.Client{{Transport: plain(t)}, h2c(t)} {
		for code, want := range map[int]string{500: "500", 503: "503", 200: "CANCELLED", 404: "CANCELLED"} {
			provider, collect := histogram(t)
			srv := server(t, mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(code)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}), self(""), grayhttp.WithMeterProvider(provider)))
			resp, err := client.Get(srv.URL)
			require.NoError(t, err)
			_ = resp.Body.Close()
			require.Eventually(t, func() bool { counts, _ := collect(); return counts["stable stable "+want] == 1 }, 5*time.Second, time.Millisecond)
		}
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A hundred gray requests, of which forty clients hang up, are sixty without an
// error; an upstream that is too slow is an error of the version.
func TestHangUps_OverHTTP(t *testing.T) {
	for name, client := range map[string]func(testing.TB) *http.Client{
		"HTTP/1": func(t testing.TB) *http.Client { return &http.Client{Transport: plain(t)} },
		"HTTP/2": h2c,
	} {
		t.Run(name, func(t *testing.T) {
			provider, collect := histogram(t)
			slow := server(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			upstream := &http.Client{Transport: plain(t)}
			var waiting atomic.Int32
			srv := server(t, mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/patient":
					_, _ = io.WriteString(w, "hello")
				case "/impatient":
					waiting.Add(1)
					<-r.Context().Done()
					w.WriteHeader(http.StatusBadGateway) // whatever the handler makes of it
				case "/slow":
					ctx, cancel := context.WithTimeout(r.Context(), 20*time.Millisecond)
					defer cancel()
					if err := get(ctx, upstream, slow.URL); errors.Is(err, context.DeadlineExceeded) {
						w.WriteHeader(http.StatusGatewayTimeout)
					}
				}
			}), self("v2"), grayhttp.WithMeterProvider(provider)))

			one := func(ctx context.Context, c *http.Client, path string) error {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL+path, nil)
				require.NoError(t, err)
				req.Header.Set(graytag.Header, "version=v2")
				return send(c, req)
			}
			c := client(t)
			ctx, hangUp := context.WithCancel(context.Background())
			gone := make(chan error, 40)
			for i := range 100 {
				if i%5 < 2 {
					go func() { gone <- one(ctx, c, "/impatient") }()
					continue
				}
				require.NoError(t, one(context.Background(), c, "/patient"))
			}
			require.Eventually(t, func() bool { return waiting.Load() == 40 }, 10*time.Second, time.Millisecond)
			hangUp()
			for range 40 {
				require.ErrorIs(t, <-gone, context.Canceled)
			}
			require.NoError(t, one(context.Background(), c, "/slow"))
			srv.Close()
			counts, _ := collect()
			assert.Equal(t, map[string]uint64{"v2 v2 200": 60, "v2 v2 CANCELLED": 40, "v2 v2 504": 1}, counts)
		})
	}
}

// The seconds are those of the whole answer.
func TestDurationIsThatOfTheAnswer(t *testing.T) {
	provider, collect := histogram(t)
	half := make(chan struct{})
	srv := server(t, mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "he")
		_ = http.NewResponseController(w).Flush()
		<-half
		_, _ = io.WriteString(w, "llo")
	}), self(""), grayhttp.WithMeterProvider(provider)))
	began := time.Now()
	resp, err := srv.Client().Get(srv.URL)
	require.NoError(t, err)
	defer resp.Body.Close()
	headed := time.Now()
	for time.Since(headed) < 50*time.Millisecond {
		counts, _ := collect()
		require.Empty(t, counts)
	}
	close(half)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	srv.Close()
	took := time.Since(began)
	counts, seconds := collect()
	assert.Equal(t, map[string]uint64{"stable stable 200": 1}, counts)
	assert.GreaterOrEqual(t, seconds["stable stable 200"], 0.05)
	assert.LessOrEqual(t, seconds["stable stable 200"], took.Seconds())
}

// Nothing is measured of a handler that does not know who it is.
func TestDurationTakesSelf(t *testing.T) {
	provider, collect := histogram(t)
	srv := server(t, mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, ok := w.(interface{ Unwrap() http.ResponseWriter })
		assert.False(t, ok, "not wrapped")
	}), grayhttp.WithMeterProvider(provider)))
	require.NoError(t, get(tagged(), &http.Client{Transport: newTransport(t)}, srv.URL))
	srv.Close()
	counts, _ := collect()
	assert.Empty(t, counts)
}

// What a handler can do with its ResponseWriter is what the server lets it do.
func TestWritersKeepTheirMethods(t *testing.T) {
	methods := func(w http.ResponseWriter) (has []string) {
		add := func(name string, ok bool) {
			if ok {
				has = append(has, name)
			}
		}
		_, ok := w.(http.Flusher)
		add("Flush", ok)
		_, ok = w.(http.Hijacker)
		add("Hijack", ok)
		_, ok = w.(http.Pusher)
		add("Push", ok)
		_, ok = w.(io.ReaderFrom)
		add("ReadFrom", ok)
		//lint:ignore SA1019 deprecated, and some still ask for it
		_, ok = w.(http.CloseNotifier)
		add("CloseNotify", ok)
		c := http.NewResponseController(w)
		add("deadline", c.SetReadDeadline(time.Time{}) == nil && c.SetWriteDeadline(time.Time{}) == nil)
		add("full duplex", c.EnableFullDuplex() == nil)
		_, err := io.WriteString(w, "x")
		add("WriteString", err == nil)
		add("FlushError", c.Flush() == nil)
		return has
	}
	type mine struct{ http.ResponseWriter } // of a user, who has forgotten everything
	type flushing struct {
		http.ResponseWriter
		http.Flusher
	}
	for name, outside := range map[string]func(http.Handler) http.Handler{
		"nothing": func(h http.Handler) http.Handler { return h },
		"otel":    otelHandler,
		"a wrapper without methods": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(mine{w}, r) })
		},
		"a wrapper with one": func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.ServeHTTP(flushing{w, w.(http.Flusher)}, r)
			})
		},
	} {
		for _, client := range []*http.Client{{Transport: plain(t)}, h2c(t)} {
			var got [2][]string
			note := func(i int) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { got[i] = methods(w) })
			}
			provider, collect := histogram(t)
			bare := server(t, outside(note(0)))
			ours := server(t, outside(mustHandler(t, note(1), self(""), grayhttp.WithMeterProvider(provider))))
			require.NoError(t, get(context.Background(), client, bare.URL))
			require.NoError(t, get(context.Background(), client, ours.URL))
			bare.Close()
			ours.Close()
			require.NotEmpty(t, got[0])
			assert.Equal(t, got[0], got[1], name)
			counts, _ := collect()
			assert.Equal(t, map[string]uint64{"stable stable 200": 1}, counts, name)
		}
	}
}

// What the SDK holds is bounded on both sides, and so is the memory, whatever comes; a
// uid is in no metric.
func TestM2_SeriesAreBounded(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	seen := grayhttp.WithMeterProvider(provider)
	reg := memory.New()
	empty := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	register(t, reg, "order", "s1", "", serveBare(t, mustHandler(t, empty, quiet, self(""), seen)))
	address := serveBare(t, mustHandler(t, empty, quiet, self("v2"), seen))
	client, direct := newClient(t, reg, seen), &http.Client{Transport: newTransport(t)}

	var at [2]uint64
	for i := range 10_000 {
		ctx := graytag.NewContext(context.Background(), graytag.MustParse(fmt.Sprintf("uid=u%d;version=v%d", i, i)))
		require.NoError(t, get(ctx, client, "http://order/"))
		require.NoError(t, get(ctx, direct, "http://"+address))
		if i == 1000 {
			at[0] = heap()
		}
	}
	at[1] = heap()
	assert.Less(t, at[1], at[0]+1<<20, "9,000 more users and versions")

	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	series, total := map[string]int{}, map[string]int64{}
	noUser := func(set attribute.Set) {
		for _, kv := range set.ToSlice() {
			require.NotRegexp(t, `u\d`, kv.Value.AsString(), "%s", kv.Key)
		}
	}
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				series[m.Name] = len(d.DataPoints)
				for _, p := range d.DataPoints {
					noUser(p.Attributes)
					total[m.Name] += p.Value
				}
			case metricdata.Histogram[float64]:
				series[m.Name] = len(d.DataPoints)
				for _, p := range d.DataPoints {
					noUser(p.Attributes)
					total[m.Name] += int64(p.Count)
				}
			}
		}
	}
	// The two instances, and the client, have labels of their own.
	assert.Equal(t, map[string]int64{"graylane.server.duration": 20_000, "graylane.server.requests": 20_000, "graylane.route.decisions": 10_000}, total)
	for name, n := range series {
		assert.LessOrEqual(t, n, 2*(2*telemetry.DistinctValues+3), name)
	}
}

// heap is what is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
