package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

// journal is a log that tests read while it is written.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.String()
}

func (j *journal) option(level slog.Level) gateway.EntranceOption {
	return gateway.WithLogger(slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: level})))
}

// closedAddress is an address where nobody listens.
func closedAddress(t *testing.T) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close()
	return lis.Addr().String()
}

func TestNoInstance(t *testing.T) {
	reg := memory.New()
	gone := closedAddress(t)
	register(t, reg, "cart", "", gone)
	upstream(t, reg, "order", "v3.0.0", http.NotFoundHandler())
	var log journal
	g := newGateway(t, engine(t, whitelist), reg, log.option(slog.LevelWarn),
		gateway.WithRoutes(gateway.Route{Prefix: "/order", Service: "order"}, gateway.Route{Prefix: "/cart", Service: "cart"}, gateway.Route{Prefix: "/none", Service: "none"}),
		gateway.WithClient(grayhttp.WithPolicyFor("order", subset.Policy{Strict: true})))
	url := "http://" + serve(t, g)
	for name, client := range protocols(t) {
		for path, reason := range map[string]string{"/order": "missing", "/none": "missing", "/cart": "unhealthy"} {
			user, version := "10086", "v2.1.0"
			if path == "/cart" {
				user, version = "1", "stable"
			}
			resp, body := get(t, client, url+path, "X-User-ID", user)
			what := name + " " + path
			assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode, what)
			assert.Equal(t, reason, resp.Header.Get(gateway.ReasonHeader), what)
			assert.Equal(t, "503 Service Unavailable: "+reason+"\n", body, what)
			assert.Equal(t, version, resp.Header.Get("X-Version"), what)
			everything := body + fmt.Sprint(resp.Header)
			assert.NotContains(t, everything, "127.0.0.1", what)
			assert.NotContains(t, everything, "v3.0.0", "nor what else there is: "+what)
		}
	}
	assert.Contains(t, log.String(), gone, "who runs it learns the address")
}

func TestAFloodOfFailuresIsNoFloodOfLogs(t *testing.T) {
	var log journal
	url := start(t, memory.New(), log.option(slog.LevelInfo))
	client := newClient(t, "")
	for range 50 {
		get(t, client, url)
	}
	assert.LessOrEqual(t, strings.Count(log.String(), "gateway: request failed"), 10)
	assert.Contains(t, log.String(), "gateway: request failed")
}

func TestNoRoute(t *testing.T) {
	reg, _ := orders(t)
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Prefix: "/order", Service: "order"}))
	url := "http://" + serve(t, g)
	resp, body := get(t, newClient(t, ""), url+"/ordersheet")
	assert.Equal(t, http.StatusNotFound, resp.StatusCode)
	assert.Equal(t, gateway.ReasonNoRoute, resp.Header.Get(gateway.ReasonHeader))
	assert.Equal(t, "404 Not Found: no_route\n", body)
	for request, status := range map[string]string{
		"CONNECT order:80 HTTP/1.1\r\nHost: order:80\r\n": "405 Method Not Allowed",
		"CONNECT /order HTTP/1.1\r\nHost: order\r\n":      "405 Method Not Allowed",
		"GET urn:x HTTP/1.1\r\nHost: order\r\n":           "404 Not Found",
	} {
		assert.Contains(t, raw(t, url, request+"Connection: close\r\n\r\n"), "HTTP/1.1 "+status, request)
	}
}

// dying starts an instance that sends a piece of an answer and is gone.
func dying(t *testing.T, head string) (address string) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, head)
				}
			})
		}
	})
	t.Cleanup(func() { _ = lis.Close(); wg.Wait() })
	return lis.Addr().String()
}

func TestAnUpstreamThatDies(t *testing.T) {
	for name, head := range map[string]string{
		"with a length": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
		"chunked":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"an event":      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
	} {
		reg := memory.New()
		register(t, reg, "order", "", dying(t, head))
		var log journal
		url := start(t, reg, log.option(slog.LevelInfo))
		for protocol, client := range protocols(t) {
			what := name + ", " + protocol
			resp, err := client.Get(url)
			if err != nil {
				continue // not even a header has come through
			}
			body, err := io.ReadAll(resp.Body)
			assert.Error(t, err, "%s: a broken body must not look complete", what)
			assert.Equal(t, "half", string(body), what)
			require.NoError(t, resp.Body.Close())
		}
		assert.Contains(t, log.String(), "gateway: answer broke off", name)
		assert.Contains(t, log.String(), "service=order", name)
	}
}

func TestAnUpstreamThatGivesNoAnswer(t *testing.T) {
	for name, head := range map[string]string{"nothing": "", "nonsense": "hello\r\n\r\n", "half a header": "HTTP/1.1 200 OK\r\nContent-Le"} {
		reg := memory.New()
		register(t, reg, "order", "", dying(t, head))
		resp, body := get(t, newClient(t, ""), start(t, reg))
		assert.Equal(t, http.StatusBadGateway, resp.StatusCode, name)
		assert.Equal(t, "502 Bad Gateway: upstream\n", body, name)
		assert.Equal(t, gateway.ReasonUpstream, resp.Header.Get(gateway.ReasonHeader), name)
	}
}

// stuck starts an instance that answers when the test ends, or the request.
func stuck(t *testing.T, reg *memory.Registry, head bool) (arrived chan struct{}) {
	arrived = make(chan struct{}, 100)
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if head {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	return arrived
}

func TestTimeout(t *testing.T) {
	reg := memory.New()
	arrived := stuck(t, reg, false)
	routes := gateway.WithRoutes(
		gateway.Route{Prefix: "/default", Service: "order"},
		gateway.Route{Prefix: "/own", Service: "order", Timeout: 20 * time.Millisecond},
		gateway.Route{Prefix: "/none", Service: "order", Timeout: -1},
	)
	url := "http://" + serve(t, newGateway(t, engine(t, whitelist), reg, routes, gateway.WithTimeout(50*time.Millisecond)))
	for protocol, client := range protocols(t) {
		for _, path := range []string{"/default", "/own"} {
			resp, body := get(t, client, url+path)
			assert.Equal(t, http.StatusGatewayTimeout, resp.StatusCode, protocol)
			assert.Equal(t, "504 Gateway Timeout: timeout\n", body, protocol)
			assert.Equal(t, gateway.ReasonTimeout, resp.Header.Get(gateway.ReasonHeader), protocol)
		}
	}
	for len(arrived) > 0 {
		<-arrived
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/none", nil)
	require.NoError(t, err)
	_, err = newClient(t, "").Do(req)
	assert.ErrorIs(t, err, context.DeadlineExceeded)

	// The time ends with the header.
	slow := memory.New()
	upstream(t, slow, "order", "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-time.After(150 * time.Millisecond)
		_, _ = io.WriteString(w, "late")
	}))
	_, body := get(t, newClient(t, ""), start(t, slow, gateway.WithTimeout(100*time.Millisecond)))
	assert.Equal(t, "late", body)
}

// TestTimeoutOfTheTransport is one that the user's transport has.
func TestTimeoutOfTheTransport(t *testing.T) {
	reg := memory.New()
	stuck(t, reg, false)
	url := start(t, reg, gateway.WithTransport(&http.Transport{ResponseHeaderTimeout: 20 * time.Millisecond}))
	resp, _ := get(t, newClient(t, ""), url)
	assert.Equal(t, http.StatusGatewayTimeout, resp.StatusCode)
}

func TestAClientThatIsGone(t *testing.T) {
	for _, inBody := range []bool{false, true} {
		reg := memory.New()
		arrived := stuck(t, reg, inBody)
		var log journal
		failures := make(chan gateway.Failure, 10)
		url := start(t, reg, log.option(slog.LevelInfo), gateway.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, f gateway.Failure) {
			gateway.WriteFailure(w, r, f)
			failures <- f
		}))
		for protocol, client := range protocols(t) {
			ctx, cancel := context.WithCancel(context.Background())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() {
				resp, err := client.Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				ended <- err
			}()
			<-arrived
			cancel()
			assert.Error(t, <-ended, protocol)
			if !inBody {
				f := <-failures
				assert.Equal(t, gateway.ReasonClosed, f.Reason, protocol)
				assert.Equal(t, 499, f.Status, protocol)
			}
		}
		assert.Empty(t, log.String(), "nothing is wrong with the service")
	}
}

// TestABrokenRequest has clients that promise more than they send.
func TestABrokenRequest(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	var log journal
	failures := make(chan gateway.Failure, 1)
	url := start(t, reg, log.option(slog.LevelInfo), gateway.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, f gateway.Failure) { failures <- f }))
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	assert.Contains(t, []string{gateway.ReasonBody, gateway.ReasonClosed}, (<-failures).Reason)
	assert.Empty(t, log.String())
}

func TestErrorHandler(t *testing.T) {
	failures := make(chan gateway.Failure, 1)
	url := start(t, memory.New(), gateway.WithErrorHandler(func(w http.ResponseWriter, r *http.Request, f gateway.Failure) {
		assert.Equal(t, "shop.example", r.Host, "the client's request")
		assert.Equal(t, "/x", r.URL.Path)
		assert.Equal(t, grayTag, graytag.FromContext(r.Context()).String())
		failures <- f
		w.WriteHeader(http.StatusTeapot)
	}))
	req, err := http.NewRequest(http.MethodGet, url+"/x", nil)
	require.NoError(t, err)
	req.Host = "shop.example"
	req.Header.Set("X-User-ID", "10086")
	resp, _ := send(t, newClient(t, ""), req)
	assert.Equal(t, http.StatusTeapot, resp.StatusCode)
	assert.Equal(t, "v2.1.0", resp.Header.Get("X-Version"))
	f := <-failures
	assert.Equal(t, "order", f.Service)
	assert.Equal(t, http.StatusServiceUnavailable, f.Status)
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, f.Err, &unavailable)
	assert.Equal(t, "v2.1.0", unavailable.Wanted)
}

func TestClose(t *testing.T) {
	reg, _ := orders(t)
	failures := make(chan gateway.Failure, 1)
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}),
		gateway.WithErrorHandler(func(_ http.ResponseWriter, _ *http.Request, f gateway.Failure) { failures <- f }))
	url := "http://" + serve(t, g)
	get(t, newClient(t, ""), url)
	require.NoError(t, g.Close())
	get(t, newClient(t, ""), url)
	f := <-failures
	assert.Equal(t, gateway.ReasonShutdown, f.Reason)
	assert.True(t, errors.Is(f.Err, httplb.ErrClosed))
}

type connKey struct{}

// TestAnUpstreamThatDiesWhileTheClientIsSilent is in the middle of both bodies. The
// client has to hear of it although it has nothing to say.
func TestAnUpstreamThatDiesWhileTheClientIsSilent(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		for protocol, client := range protocols(t) {
			what := fmt.Sprintf("%s, h2c to the service %v", protocol, h2c)
			reg := memory.New()
			die := make(chan struct{})
			srv := httptest.NewUnstartedServer(nil)
			srv.Config = gateway.NewServer("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).EnableFullDuplex()
				_, _ = io.ReadFull(r.Body, make([]byte, 5))
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				<-die
				_ = r.Context().Value(connKey{}).(net.Conn).Close()
			}))
			srv.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
			srv.Start()
			register(t, reg, "order", "", srv.Listener.Addr().String())
			url := start(t, reg, gateway.WithRoutes(gateway.Route{Prefix: "/h2c", Service: "order", H2C: true}))
			if h2c {
				url += "/h2c"
			}
			url = strings.TrimSuffix(url, "/")
			body, pipe := io.Pipe()
			req, err := http.NewRequest(http.MethodPost, url, body)
			require.NoError(t, err)
			go func() { _, _ = io.WriteString(pipe, "hello") }()
			resp, err := client.Do(req)
			require.NoError(t, err, what)
			half := make([]byte, 4)
			_, err = io.ReadFull(resp.Body, half)
			require.NoError(t, err, what)
			close(die)
			_, err = io.ReadAll(resp.Body)
			assert.Error(t, err, what)
			require.NoError(t, resp.Body.Close())
			require.NoError(t, pipe.Close())
			srv.Close()
		}
	}
}
