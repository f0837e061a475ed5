package httplb_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is a registry and the servers that are in it.
type cluster struct {
	t       testing.TB
	reg     *memory.Registry
	mu      sync.Mutex
	hits    map[string]int
	handler http.HandlerFunc // after the ID is written; may be nil
}

func newCluster(t testing.TB) *cluster {
	return &cluster{t: t, reg: memory.New(), hits: map[string]int{}}
}

func (c *cluster) serve(id string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.hits[id]++
		c.mu.Unlock()
		w.Header().Set("Instance", id)
		w.Header().Set("Host-Seen", r.Host)
		if c.handler != nil {
			c.handler(w, r)
			return
		}
		_, _ = io.Copy(w, r.Body)
	})
}

func (c *cluster) hit(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hits[id]
}

// up starts a server and registers it.
func (c *cluster) up(service, id, version string) registry.Registration {
	srv := httptest.NewServer(c.serve(id))
	c.t.Cleanup(srv.Close)
	return c.register(instance(service, id, version, srv.Listener.Addr().String()))
}

// down registers an address at which nobody listens, and returns it.
func (c *cluster) down(service, id, version string) string {
	address := closedPort(c.t)
	c.register(instance(service, id, version, address))
	return address
}

func (c *cluster) register(i registry.Instance) registry.Registration {
	r, err := c.reg.Register(context.Background(), i)
	require.NoError(c.t, err)
	return r
}

func instance(service, id, version, address string) registry.Instance {
	i := registry.Instance{ID: id, Service: service, Address: address}
	if version != "" {
		i.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	return i
}

// closedPort returns an address at which nobody listens. An open connection of its
// own port keeps it from being given to somebody else meanwhile.
func closedPort(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	held, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	t.Cleanup(func() {
		_ = client.Close()
		_ = held.Close()
	})
	return l.Addr().String()
}

// listenAt serves h at a closed port.
func listenAt(t testing.TB, address string, h http.Handler) {
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	srv.Start()
	t.Cleanup(srv.Close)
}

var quiet = slog.New(slog.DiscardHandler)

// balancer makes a balancer that ends with the test.
func (c *cluster) balancer(opts ...httplb.Option) *httplb.Balancer {
	return newBalancer(c.t, c.reg, opts...)
}

func newBalancer(t testing.TB, disc registry.Discovery, opts ...httplb.Option) *httplb.Balancer {
	lb, err := httplb.New(disc, append([]httplb.Option{httplb.WithLogger(quiet)}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lb.Close()) })
	return lb
}

func tagged(tag string) context.Context {
	return graytag.NewContext(context.Background(), graytag.MustParse(tag))
}

// get sends a GET and returns the ID of the instance that answered.
func get(ctx context.Context, rt http.RoundTripper, url string) (string, error) {
	return do(ctx, rt, http.MethodGet, url, nil)
}

func do(ctx context.Context, rt http.RoundTripper, method, url string, body io.Reader) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return "", err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %s", resp.Status)
	}
	return resp.Header.Get("Instance"), nil
}

// decisions records what a balancer decided.
type decisions struct {
	mu  sync.Mutex
	all []httplb.Decision
}

func (d *decisions) option() httplb.Option {
	return httplb.WithObserver(func(_ context.Context, got httplb.Decision) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.all = append(d.all, got)
	})
}

func (d *decisions) last(t testing.TB) httplb.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	require.NotEmpty(t, d.all)
	return d.all[len(d.all)-1]
}

// trackedBody is a body that exists once and knows whether it was closed.
type trackedBody struct {
	io.Reader
	closed atomic.Int32
}

func newTrackedBody(s string) *trackedBody { return &trackedBody{Reader: strings.NewReader(s)} }
func (b *trackedBody) Close() error        { b.closed.Add(1); return nil }

// roundTripper is a base that is no *http.Transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
