package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const wait = 20 * time.Second

// openRegistry connects to agent with a short TTL, so that a test does not wait
// for the beat of the keepalive.
func openRegistry(t *testing.T, agent *consultest.Agent) *consul.Registry {
	t.Helper()
	r, err := consul.New(agent.Config(), consul.WithTTL(3*time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// visit is one request as the instance that served it saw it.
type visit struct {
	instance string
	tag      string // of the context
	header   http.Header
}

// log collects visits by service.
type log struct {
	mu     sync.Mutex
	visits map[string][]visit
}

func (l *log) add(service string, v visit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.visits == nil {
		l.visits = map[string][]visit{}
	}
	l.visits[service] = append(l.visits[service], v)
}

func (l *log) of(service string) []visit {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.visits[service])
}

// instances returns how many requests each instance of a service served.
func (l *log) instances(service string) map[string]int {
	n := map[string]int{}
	for _, v := range l.of(service) {
		n[v.instance]++
	}
	return n
}

// call goes on to the next service of a chain.
type call func(ctx context.Context) error

// instance is a running one.
type instance struct {
	registry.Registration
	id   string
	stop func()
}

func start(t *testing.T, reg registry.Registrar, service, version string, n int, serve func(net.Listener) error, stop func()) *instance {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(lis)
	}()
	self := registry.Instance{ID: fmt.Sprintf("%s-%s%d", service, version, n), Service: service, Address: lis.Addr().String()}
	if version != "" {
		self.Metadata = map[string]string{"version": version}
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	registration, err := reg.Register(ctx, self)
	require.NoError(t, err)
	i := &instance{Registration: registration, id: self.ID, stop: sync.OnceFunc(func() { stop(); <-done })}
	t.Cleanup(i.stop)
	return i
}

// startHTTP runs an instance that serves any path and then calls next.
func startHTTP(t *testing.T, reg registry.Registrar, l *log, service, version string, n int, next call) *instance {
	t.Helper()
	id := fmt.Sprintf("%s-%s%d", service, version, n)
	h, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.add(service, visit{id, graytag.FromContext(r.Context()).String(), r.Header.Clone()})
		if next != nil {
			if err := next(r.Context()); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
		}
		fmt.Fprint(w, id)
	}))
	require.NoError(t, err)
	srv := &http.Server{Handler: h}
	return start(t, reg, service, version, n, srv.Serve, func() { _ = srv.Close() })
}

type node struct {
	testgrpc.UnimplementedTestServiceServer
	id, service string
	log         *log
	next        call
}

func (n *node) arrive(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	h := http.Header{}
	for k, v := range md {
		h[http.CanonicalHeaderKey(k)] = v
	}
	n.log.add(n.service, visit{n.id, graytag.FromContext(ctx).String(), h})
	if n.next == nil {
		return nil
	}
	return n.next(ctx)
}

func (n *node) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{ServerId: n.id}, n.arrive(ctx)
}

// FullDuplexCall answers each message, and calls next at the last one.
func (n *node) FullDuplexCall(s grpc.BidiStreamingServer[testgrpc.StreamingOutputCallRequest, testgrpc.StreamingOutputCallResponse]) error {
	for {
		_, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return n.arrive(s.Context())
		}
		if err != nil {
			return err
		}
		if err := s.Send(&testgrpc.StreamingOutputCallResponse{Payload: &testgrpc.Payload{Body: []byte(n.id)}}); err != nil {
			return err
		}
	}
}

func startGRPC(t *testing.T, reg registry.Registrar, l *log, service, version string, n int, next call) *instance {
	t.Helper()
	opts, err := graygrpc.ServerOptions()
	require.NoError(t, err)
	srv := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(srv, &node{id: fmt.Sprintf("%s-%s%d", service, version, n), service: service, log: l, next: next})
	return start(t, reg, service, version, n, srv.Serve, srv.Stop)
}

// visible waits until the catalog that disc reads has n instances of order:
// Register returns when the agent knows an instance, the servers are told after.
func visible(t *testing.T, disc registry.Discovery, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	for set, err := range disc.Watch(ctx, "order") {
		if err == nil && len(set) == n {
			return
		}
	}
	require.Fail(t, "instances do not become visible", "want %d", n)
}

// newClient returns an HTTP client that finds services through disc.
func newClient(t *testing.T, disc registry.Discovery) *http.Client {
	t.Helper()
	c, err := grayhttp.NewClient(disc)
	require.NoError(t, err)
	t.Cleanup(func() {
		c.CloseIdleConnections()
		_ = c.Transport.(io.Closer).Close()
	})
	return c
}

// overHTTP calls a service by GET.
func overHTTP(client *http.Client, service string) call {
	return func(ctx context.Context) error {
		_, err := ask(ctx, client, service)
		return err
	}
}

// ask returns the instance that answered.
func ask(ctx context.Context, client *http.Client, service string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+service+"/x", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", resp.Status, body)
	}
	return string(body), nil
}

func dial(t *testing.T, disc registry.Discovery, service string) testgrpc.TestServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("gray:///"+service, append(graygrpc.DialOptions(disc), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return testgrpc.NewTestServiceClient(conn)
}

func overUnary(c testgrpc.TestServiceClient) call {
	return func(ctx context.Context) error {
		_, err := c.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		return err
	}
}

// overBidi exchanges ten messages and ends the stream.
func overBidi(c testgrpc.TestServiceClient) call {
	return func(ctx context.Context) error {
		s, err := c.FullDuplexCall(ctx)
		if err != nil {
			return err
		}
		for range 10 {
			if err := s.Send(&testgrpc.StreamingOutputCallRequest{}); err != nil {
				return err
			}
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
		if _, err := s.Recv(); !errors.Is(err, io.EOF) {
			return err
		}
		return nil
	}
}

// load runs requests until it is stopped and fails the test at the first that
// fails or is answered by an instance that may not answer it.
type load struct {
	t      *testing.T
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	by   map[string]map[string]int // tag -> instance -> answers
	errs []error
}

// startLoad sends requests of each tag from workers of their own; allowed says
// whether an instance may answer a tag.
func startLoad(t *testing.T, tags []string, allowed func(tag, instance string) bool, do func(ctx context.Context) (string, error)) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{t: t, cancel: cancel, by: map[string]map[string]int{}}
	for _, tag := range tags {
		l.by[tag] = map[string]int{}
		tagged := graytag.NewContext(ctx, graytag.MustParse(tag))
		for range 2 {
			l.wg.Go(func() {
				for ctx.Err() == nil {
					rpc, end := context.WithTimeout(tagged, wait)
					instance, err := do(rpc)
					end()
					if ctx.Err() != nil {
						return
					}
					l.mu.Lock()
					if err == nil && !allowed(tag, instance) {
						err = fmt.Errorf("tag %q was answered by %s", tag, instance)
					}
					if err != nil {
						l.errs = append(l.errs, err)
					}
					l.by[tag][instance]++
					l.mu.Unlock()
					select { // some hundred a second are load enough for two cores
					case <-ctx.Done():
					case <-time.After(2 * time.Millisecond):
					}
				}
			})
		}
	}
	t.Cleanup(l.end)
	return l
}

// answers returns how often an instance has answered a tag.
func (l *load) answers(tag, instance string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[tag][instance]
}

// until waits until an instance has answered a tag some times more.
func (l *load) until(tag, instance string) {
	l.t.Helper()
	before := l.answers(tag, instance)
	require.Eventually(l.t, func() bool { return l.answers(tag, instance) >= before+20 }, wait, 10*time.Millisecond,
		"%s answers no request with tag %q", instance, tag)
}

// never waits until an instance answers a tag no more, and checks that it stays
// so while others answer.
func (l *load) never(tag, instance string) {
	l.t.Helper()
	require.Eventually(l.t, func() bool {
		n, all := l.answers(tag, instance), l.total(tag)
		require.Eventually(l.t, func() bool { return l.total(tag) >= all+50 }, wait, 5*time.Millisecond)
		return l.answers(tag, instance) == n
	}, wait, time.Millisecond, "%s still answers tag %q", instance, tag)
}

func (l *load) total(tag string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.by[tag] {
		n += c
	}
	return n
}

func (l *load) end() {
	l.cancel()
	l.wg.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.errs) > 0 {
		assert.Fail(l.t, "requests failed", "%d, the first: %v", len(l.errs), l.errs[0])
		l.errs = nil
	}
	l.t.Logf("answers: %v", maps.Collect(maps.All(l.by)))
}
