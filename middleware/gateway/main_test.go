package gateway_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// whitelist sends user 10086 to v2.1.0, wherever he is named, and whoever
// comes from 203.0.113.0/24 to v3.0.0.
const whitelist = `{"rules": [
	{"id": "users", "priority": 2, "match": [{"attr": "uid", "op": "equals", "values": ["10086"]}], "tag": "channel=app;version=v2.1.0"},
	{"id": "network", "priority": 1, "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v3.0.0"}
]}`

const grayTag = "channel=app;version=v2.1.0"

func engine(t testing.TB, document string) *rule.Engine {
	t.Helper()
	set, err := rule.Parse([]byte(document))
	require.NoError(t, err)
	e, err := rule.NewEngine(set)
	require.NoError(t, err)
	return e
}

// quiet keeps what the tests provoke out of their output.
var quiet = gateway.WithLogger(slog.New(slog.DiscardHandler))

// register makes the server at address an instance of a service.
func register(t testing.TB, reg *memory.Registry, service, version, address string) {
	t.Helper()
	i := registry.Instance{ID: service + "-" + version + "-" + address, Service: service, Address: address}
	if version != "" {
		i.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	_, err := reg.Register(context.Background(), i)
	require.NoError(t, err)
}

// serve starts a server that speaks HTTP/1.1 and h2c.
func serve(t testing.TB, h http.Handler) (address string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config = gateway.NewServer("", h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// upstream starts an instance of a service.
func upstream(t testing.TB, reg *memory.Registry, service, version string, h http.Handler) (address string) {
	t.Helper()
	address = serve(t, h)
	register(t, reg, service, version, address)
	return address
}

// newGateway makes a gateway that ends with the test; everything goes to the
// service order unless routes say otherwise.
func newGateway(t testing.TB, e *rule.Engine, reg registry.Discovery, opts ...gateway.Option) *gateway.Gateway {
	t.Helper()
	g, err := gateway.New(e, reg, append([]gateway.Option{quiet}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	return g
}

// start serves a gateway in front of the service order.
func start(t testing.TB, reg registry.Discovery, opts ...gateway.Option) (url string) {
	t.Helper()
	opts = append([]gateway.Option{gateway.WithRoutes(gateway.Route{Service: "order"})}, opts...)
	return "http://" + serve(t, newGateway(t, engine(t, whitelist), reg, opts...))
}

// seen is what an instance saw of a request.
type seen struct {
	*http.Request
	version string // of the instance
	tag     graytag.Tag
	body    string
}

// recorder remembers the requests that came to instances.
type recorder struct {
	mu  sync.Mutex
	all []seen
}

// instance returns the handler of an instance: it answers with its version.
func (r *recorder) instance(version string) http.Handler {
	record := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.all = append(r.all, seen{req.Clone(context.Background()), version, graytag.FromContext(req.Context()), string(body)})
		r.mu.Unlock()
		_, _ = io.WriteString(w, version)
	})
	h, err := grayhttp.NewHandler(record)
	if err != nil {
		panic(err)
	}
	return h
}

// one returns the only request since the last call.
func (r *recorder) one(t testing.TB) seen {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Len(t, r.all, 1)
	all := r.all
	r.all = nil
	return all[0]
}

// orders starts the service order: stable, v2.1.0 and v3.0.0.
func orders(t testing.TB) (*memory.Registry, *recorder) {
	t.Helper()
	reg, rec := memory.New(), &recorder{}
	for _, version := range []string{"", "v2.1.0", "v3.0.0"} {
		upstream(t, reg, "order", version, rec.instance(version))
	}
	return reg, rec
}

// newClient makes a client without a proxy whose connections end with the test;
// from is its address, "" for any.
func newClient(t testing.TB, from string) *http.Client {
	dialer := &net.Dialer{}
	if from != "" {
		dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	tr := &http.Transport{DialContext: dialer.DialContext, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// newH2C makes a client that speaks HTTP/2 without TLS.
func newH2C(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// get asks for url with headers, given in pairs.
func get(t testing.TB, c *http.Client, url string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return send(t, c, req)
}

func send(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(body)
}

// raw sends bytes, and returns the answer of one request up to its end.
func raw(t testing.TB, url, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(answer)
}
