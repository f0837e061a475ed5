package rollout_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// record is the wiring that the documentation of Recorder shows.
func record(r *rollout.Recorder) gateway.Option {
	return gateway.WithObserver(func(_ context.Context, e gateway.Exchange) {
		r.Record(rollout.Request{
			Service: e.Service, Wanted: e.Wanted, Served: e.Served, Outcome: string(e.Outcome), Status: e.Status,
			GRPCStatus: e.GRPCStatus, Duration: e.Duration, Canceled: e.Canceled, Err: e.Err,
		})
	})
}

// watched is a gateway that a recorder watches; user 1 is gray.
type watched struct {
	*rollout.Recorder
	clock   *clock
	reg     *memory.Registry
	address string
}

func watch(t *testing.T, opts ...gateway.Option) *watched {
	t.Helper()
	w := &watched{clock: newClock(t0), reg: memory.New()}
	w.Recorder = newRecorder(t, w.clock)
	set, err := rule.Parse([]byte(`{"rules": [{"id": "gray", "match": [{"attr": "uid", "op": "equals", "values": ["1"]}], "tag": "version=v2"}]}`))
	require.NoError(t, err)
	engine, err := rule.NewEngine(set)
	require.NoError(t, err)
	gw, err := gateway.New(engine, w.reg, append(opts, record(w.Recorder), gateway.WithLogger(slog.New(slog.DiscardHandler)),
		gateway.WithRoutes(gateway.Route{Service: "order"}))...)
	require.NoError(t, err)
	w.address = serve(t, gw)
	t.Cleanup(func() { require.NoError(t, gw.Close()) })
	return w
}

func serve(t *testing.T, h http.Handler) (address string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config = gateway.NewServer("", h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// instance makes the server at address an instance of order.
func (w *watched) instance(t *testing.T, version, address string) registry.Registration {
	t.Helper()
	i := registry.Instance{ID: "order-" + version, Service: "order", Address: address}
	if version != "" {
		i.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	reg, err := w.reg.Register(context.Background(), i)
	require.NoError(t, err)
	return reg
}

// visit sends a request, and returns the status.
func (w *watched) visit(t *testing.T, user, path string) int {
	t.Helper()
	resp, err := w.get(context.Background(), t, user, path)
	require.NoError(t, err)
	_, _ = io.Copy(io.Discard, resp.Body)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func (w *watched) get(ctx context.Context, t *testing.T, user, path string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.address+path, nil)
	require.NoError(t, err)
	req.Header.Set("X-User-ID", user)
	return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}).Do(req)
}

// want waits for the samples that there have to be: an exchange is told when the
// client has its answer already.
func (w *watched) want(t *testing.T, want counts) {
	t.Helper()
	w.clock.advance(10 * time.Second)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		w.clock.advance(time.Second)
		assert.Equal(c, want, samples(t, w, "order", "v2", t0, w.clock.now()))
	}, 20*time.Second, 10*time.Millisecond)
}

func TestRecorderBehindAGateway(t *testing.T) {
	w := watch(t)
	gone := make(chan struct{})
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fault":
			rw.WriteHeader(http.StatusInternalServerError)
		case "/missing":
			rw.WriteHeader(http.StatusNotFound)
		case "/half":
			rw.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(rw, "half")
			_ = http.NewResponseController(rw).Flush()
			panic(http.ErrAbortHandler)
		case "/hang":
			close(gone)
			<-r.Context().Done()
		}
	})
	gray := serve(t, handler)
	w.instance(t, "", serve(t, handler))
	v2 := w.instance(t, "v2", gray)

	for range 3 {
		assert.Equal(t, 200, w.visit(t, "1", "/"))
		assert.Equal(t, 200, w.visit(t, "2", "/"))
	}
	assert.Equal(t, 404, w.visit(t, "1", "/missing"))
	assert.Equal(t, 500, w.visit(t, "1", "/fault"))
	if resp, err := w.get(context.Background(), t, "1", "/half"); err == nil {
		_, err = io.ReadAll(resp.Body)
		require.Error(t, err)
		require.NoError(t, resp.Body.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-gone; cancel() }()
	_, err := w.get(ctx, t, "1", "/hang")
	require.ErrorIs(t, err, context.Canceled)
	w.want(t, counts{{"", ""}: {3, 0}, {"v2", "v2"}: {6, 2}})

	// A gray that is not there falls back.
	require.NoError(t, v2.Deregister(context.Background()))
	until(t, func() bool {
		return w.visit(t, "1", "/") == http.StatusOK && w.count(t, "v2", "")[0] > 0
	})

	// One that hangs up gives no answer.
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-done })
	w.instance(t, "v2", lis.Addr().String())
	until(t, func() bool {
		w.visit(t, "1", "/")
		n := w.count(t, "v2", "v2")
		return n[0] > 6 && n[1]-2 == n[0]-6
	})
}

// until asks often; the clock of the recorder goes on with it.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for range 350 { // of 10 s are less than it keeps
		if ok() {
			return
		}
		runtime.Gosched()
	}
	require.Fail(t, "it never came")
}

// count returns requests and errors until now.
func (w *watched) count(t *testing.T, wanted, served string) [2]uint64 {
	t.Helper()
	w.clock.advance(10 * time.Second)
	from := w.clock.now().Add(-time.Hour)
	if from.Before(t0) {
		from = t0
	}
	return samples(t, w, "order", "v2", from, w.clock.now())[[2]string{wanted, served}]
}

func TestRecorderOfRequestsThatNobodyServes(t *testing.T) {
	w := watch(t)
	w.instance(t, "v3", serve(t, http.NotFoundHandler())) // which nobody wants
	assert.Equal(t, http.StatusServiceUnavailable, w.visit(t, "1", "/"))
	assert.Equal(t, http.StatusServiceUnavailable, w.visit(t, "2", "/"))
	w.want(t, counts{{"", rollout.ServedNone}: {1, 1}, {"v2", rollout.ServedNone}: {1, 1}})
}

// calls is a gRPC service that answers with the code it is asked for.
type calls struct {
	testgrpc.UnimplementedTestServiceServer
}

func (calls) UnaryCall(_ context.Context, in *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{}, status.Error(codes.Code(in.ResponseSize), "as you like it")
}

func TestRecorderOfGRPC(t *testing.T) {
	w := watch(t)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	srv := grpc.NewServer()
	testgrpc.RegisterTestServiceServer(srv, calls{})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	w.instance(t, "v2", lis.Addr().String())

	conn, err := grpc.NewClient(w.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "1")
	for code := range codes.Code(17) {
		_, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{ResponseSize: int32(code)})
		require.Equal(t, code, status.Code(err))
	}
	w.want(t, counts{{"v2", "v2"}: {16, 6}}) // Canceled is left out
}

// lookAtOrder judges what the recorder saw since t0; the clock goes on to the end of
// the slot.
func (w *watched) lookAtOrder(t *testing.T) rollout.Report {
	t.Helper()
	w.clock.advance(10 * time.Second)
	doc, _, err := rollout.Change([]byte(`{
		"rules": [{"id": "order", "services": ["order"], "percent": 0, "salt": "lane", "tag": "version=v2"}],
		"plans": {"lane": {"rules": ["order"], "stages": [{"percent": 50}, {"percent": 100}], "analysis": {"latency": {"off": true}}}}
	}`), "lane", rollout.CommandStart, note(t0))
	require.NoError(t, err)
	plans, err := rollout.ParseDocument(doc)
	require.NoError(t, err)
	return plans["lane"].Look(context.Background(), w, w.clock.now())
}

func TestAFaultyGrayBehindAGateway(t *testing.T) {
	w := watch(t)
	w.instance(t, "", serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	w.instance(t, "v2", serve(t, http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(500) })))
	for range 120 {
		require.Equal(t, 200, w.visit(t, "2", "/"))
	}
	assert.Equal(t, rollout.VerdictInconclusive, w.lookAtOrder(t).Verdict, "nobody wanted gray")
	for range 120 {
		require.Equal(t, 500, w.visit(t, "1", "/"))
	}
	assert.Equal(t, rollout.VerdictFail, w.lookAtOrder(t).Verdict)
}

func TestO8_AGrayThatIsDownFromTheStart(t *testing.T) {
	w := watch(t)
	w.instance(t, "", serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	for range 120 {
		require.Equal(t, 200, w.visit(t, "1", "/"))
		require.Equal(t, 200, w.visit(t, "2", "/"))
	}
	report := w.lookAtOrder(t)
	assert.Equal(t, rollout.VerdictInconclusive, report.Verdict)
	for _, c := range report.Checks {
		if c.Name == rollout.CheckMatched {
			assert.Zero(t, c.Gray, c.Why)
			assert.Contains(t, c.Why, "gray served 0 of the 1")
		}
	}
}
