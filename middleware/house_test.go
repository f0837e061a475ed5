package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const wait = 20 * time.Second

// gray is a context of a request that wants v2.
func gray() context.Context {
	return graytag.NewContext(context.Background(), graytag.MustParse("version=v2"))
}

// untagged is the context of a request that is known to want stable.
func untagged() context.Context { return graytag.NewContext(context.Background(), graytag.Tag{}) }

// as is the context of a request of a user.
func as(uid string) context.Context {
	return graytag.NewContext(context.Background(), graytag.MustParse("version=v2;uid="+uid))
}

func instance(service, version string) registry.Instance {
	i := registry.Instance{ID: service + "-stable", Service: service}
	if version != "" {
		i.ID, i.Metadata = service+"-"+version, map[string]string{registry.MetadataVersion: version}
	}
	return i
}

// node is one running instance and what is seen of it.
type node struct {
	*seen
	self registry.Instance
	url  string // of one that speaks HTTP
	stop func()
}

// register makes n known in reg, as what it says it is unless i says otherwise.
func (n *node) register(t testing.TB, reg registry.Registrar, i ...registry.Instance) registry.Registration {
	t.Helper()
	known := n.self
	if len(i) > 0 {
		known = i[0]
		known.Address = n.self.Address
	}
	r, err := reg.Register(context.Background(), known)
	require.NoError(t, err)
	return r
}

func listen(t testing.TB, self registry.Instance, s *seen, serve func(net.Listener) error, stop func()) *node {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	self.Address = lis.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(lis) // ends with stop
	}()
	n := &node{seen: s, self: self, url: "http://" + self.Address, stop: sync.OnceFunc(func() { stop(); <-done })}
	t.Cleanup(n.stop)
	return n
}

var traceContext = propagation.TraceContext{}

// serveHTTP runs an instance that answers with its ID where f has written nothing.
func serveHTTP(t testing.TB, self registry.Instance, f http.HandlerFunc, opts ...grayhttp.HandlerOption) *node {
	t.Helper()
	s := newSeen(t)
	h, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.logger.InfoContext(r.Context(), "served", "user", r.Header.Get("X-User-ID"))
		if f != nil {
			f(w, r)
			return
		}
		fmt.Fprint(w, self.ID)
	}), append([]grayhttp.HandlerOption{grayhttp.WithSelf(self), grayhttp.WithMeterProvider(s.meter), grayhttp.WithLogger(s.logger)}, opts...)...)
	require.NoError(t, err)
	h = otelhttp.NewHandler(h, self.Service, otelhttp.WithTracerProvider(s.tracer), otelhttp.WithMeterProvider(s.meter), otelhttp.WithPropagators(traceContext))
	srv := &http.Server{Handler: h}
	return listen(t, self, s, srv.Serve, func() { _ = srv.Close() })
}

// service is a gRPC service that answers with its ID where f returns no error.
type service struct {
	testgrpc.UnimplementedTestServiceServer
	self registry.Instance
	seen *seen
	f    func(context.Context) error
}

func (s *service) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	s.seen.logger.InfoContext(ctx, "served")
	if s.f != nil {
		if err := s.f(ctx); err != nil {
			return nil, err
		}
	}
	return &testgrpc.SimpleResponse{ServerId: s.self.ID}, nil
}

func serveGRPC(t testing.TB, self registry.Instance, f func(context.Context) error, opts ...graygrpc.ServerOption) *node {
	t.Helper()
	s := newSeen(t)
	options, err := graygrpc.ServerOptions(append([]graygrpc.ServerOption{graygrpc.WithSelf(self), graygrpc.WithMeterProvider(s.meter), graygrpc.WithLogger(s.logger)}, opts...)...)
	require.NoError(t, err)
	srv := grpc.NewServer(append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(s.tracer), otelgrpc.WithMeterProvider(s.meter), otelgrpc.WithPropagators(traceContext))))...)
	testgrpc.RegisterTestServiceServer(srv, &service{self: self, seen: s, f: f})
	healthgrpc.RegisterHealthServer(srv, health.NewServer())
	return listen(t, self, s, srv.Serve, srv.Stop)
}

// client calls services over HTTP, by name, and is seen through s.
func client(t testing.TB, disc registry.Discovery, s *seen, opts ...grayhttp.ClientOption) *http.Client {
	t.Helper()
	c, err := grayhttp.NewClient(disc, append([]grayhttp.ClientOption{grayhttp.WithMeterProvider(s.meter), grayhttp.WithLogger(s.logger)}, opts...)...)
	require.NoError(t, err)
	inner := c.Transport
	t.Cleanup(func() {
		c.CloseIdleConnections()
		_ = inner.(io.Closer).Close()
	})
	c.Transport = otelhttp.NewTransport(inner, otelhttp.WithTracerProvider(s.tracer), otelhttp.WithMeterProvider(s.meter), otelhttp.WithPropagators(traceContext))
	return c
}

// get returns what was answered, and an error where that is no 200.
func get(ctx context.Context, c *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	_, body, err := do(c, req)
	return body, err
}

func do(c *http.Client, req *http.Request) (*http.Response, string, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, body)
	}
	return resp, string(body), err
}

// dial returns a client of a service over gRPC that is seen through s.
func dial(t testing.TB, disc registry.Discovery, service string, s *seen, opts ...graygrpc.DialOption) testgrpc.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("gray:///"+service, append(
		graygrpc.DialOptions(disc, append([]graygrpc.DialOption{graygrpc.WithMeterProvider(s.meter), graygrpc.WithLogger(s.logger)}, opts...)...),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(s.tracer), otelgrpc.WithMeterProvider(s.meter), otelgrpc.WithPropagators(traceContext))),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}

// call returns the ID of the instance that answered.
func call(ctx context.Context, c testgrpc.TestServiceClient) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	reply, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
	return reply.GetServerId(), err
}

// entrance runs a gateway in front of the service order. Its span is outside.
func entrance(t testing.TB, engine *rule.Engine, disc registry.Discovery, s *seen, opts ...gateway.Option) *node {
	t.Helper()
	gw, err := gateway.New(engine, disc, append([]gateway.Option{
		gateway.WithRoutes(gateway.Route{Prefix: "/", Service: "order"}),
		gateway.WithMeterProvider(s.meter), gateway.WithLogger(s.logger)}, opts...)...)
	require.NoError(t, err)
	h := otelhttp.NewHandler(gw, "entrance", otelhttp.WithTracerProvider(s.tracer), otelhttp.WithMeterProvider(s.meter), otelhttp.WithPropagators(traceContext))
	srv := gateway.NewServer("", h)
	return listen(t, registry.Instance{ID: "entrance", Service: "entrance"}, s, srv.Serve, func() { _, _ = srv.Close(), gw.Close() })
}

// engine decides by rules, and is seen through s.
func engine(t testing.TB, s *seen, rules string) *rule.Engine {
	t.Helper()
	set, err := rule.Parse([]byte(rules))
	require.NoError(t, err)
	e, err := rule.NewEngine(set, rule.WithMeterProvider(s.meter), rule.WithLogger(s.logger))
	require.NoError(t, err)
	return e
}

// follow makes e follow store until the test ends.
func follow(t testing.TB, e *rule.Engine, store rule.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Follow(ctx, store) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("follow: %v", err)
		}
	})
}

// put writes rules, and returns the revision.
func put(t testing.TB, store rule.Store, rules string, before uint64) uint64 {
	t.Helper()
	revision, err := store.Put(context.Background(), rule.Document{Data: []byte(rules)}, before)
	require.NoError(t, err)
	return revision
}

func inForce(t testing.TB, e *rule.Engine, revision uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return e.Status().Revision == revision }, wait, time.Millisecond)
}

// outage is a discovery that is cut off from what it knows when cut ends.
type outage struct {
	registry.Discovery
	cut context.Context
}

func (o *outage) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		upstream, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(o.cut, cancel)()
		for set, err := range o.Discovery.Watch(upstream, service) {
			if !yield(set, err) {
				return
			}
		}
		if ctx.Err() == nil && yield(nil, errors.New("connection refused")) {
			<-ctx.Done()
		}
	}
}
