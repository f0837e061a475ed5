package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry/memory"
)

// connect returns a connection to the server at url that no test waits on for ever.
func connect(t *testing.T, url string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	return conn.(*net.TCPConn)
}

// TestABodyHoldsNoRequest has clients that send the rest of a body when its answer is
// there, and in it what looks like a request. A proxy in front of the gateway takes it
// for a body, and its answer would be the answer to somebody else.
func TestABodyHoldsNoRequest(t *testing.T) {
	const inside = "GET /inside HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, h2c := range []bool{false, true} {
		reg := memory.New()
		upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.NotEqual(t, "/inside", r.URL.Path)
			_ = http.NewResponseController(w).EnableFullDuplex()
			_, _ = io.ReadFull(r.Body, make([]byte, 4))
			if r.URL.Path == "/stuck" {
				_, _ = io.Copy(io.Discard, r.Body) // of which there is no more
			}
			w.Header().Set("Content-Length", "2")
			_, _ = io.WriteString(w, "ok")
		}))
		url := "http://" + serve(t, newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(
			gateway.Route{Service: "order", H2C: h2c},
			gateway.Route{Prefix: "/stuck", Service: "order", H2C: h2c, Timeout: 50 * time.Millisecond},
			gateway.Route{Prefix: "/none", Service: "none"},
		)))
		for path, status := range map[string]int{"/": 200, "/stuck": 504, "/none": 503} {
			for begin, rest := range map[string]string{
				"Content-Length: 1000\r\n\r\nbody":                inside,
				"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n": fmt.Sprintf("%x\r\n%s\r\n", len(inside), inside),
				"Transfer-Encoding: chunked\r\n\r\n4\r\nbody":     "\r\nno chunk\r\n\r\n" + inside,
			} {
				what := fmt.Sprintf("h2c %v, %s, %q", h2c, path, begin)
				conn := connect(t, url)
				_, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: x\r\n"+begin)
				require.NoError(t, err)
				r := bufio.NewReader(conn)
				resp, err := http.ReadResponse(r, nil)
				require.NoError(t, err, "%s: although the client is silent", what)
				assert.Equal(t, status, resp.StatusCode, what)
				assert.True(t, resp.Close, what)
				_, err = io.Copy(io.Discard, resp.Body)
				require.NoError(t, err, what)
				_, _ = io.WriteString(conn, rest)
				_ = conn.CloseWrite()
				more, _ := io.ReadAll(r)
				assert.Empty(t, string(more), what)
			}
		}
	}
}

// TestConnectionsAreKept where a body was read to its end.
func TestConnectionsAreKept(t *testing.T) {
	reg, _ := orders(t)
	peers := make(map[string]bool)
	for _, h2c := range []bool{false, true} {
		g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order", H2C: h2c}))
		url := "http://" + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			peers[r.RemoteAddr] = true
			g.ServeHTTP(w, r)
		}))
		client := newClient(t, "")
		for i := range 100 {
			body := io.Reader(strings.NewReader(strings.Repeat("x", 100*i)))
			if i%2 == 0 {
				body = io.MultiReader(body) // chunked
			}
			req, err := http.NewRequest(http.MethodPost, url, body)
			require.NoError(t, err)
			send(t, client, req)
		}
	}
	assert.Len(t, peers, 2, "one for each gateway")
}

func TestWithMaxBody(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.NotEqual(t, "/announced", r.URL.Path)
		if r.URL.Path == "/early" {
			_ = http.NewResponseController(w).EnableFullDuplex()
			_, _ = io.ReadFull(r.Body, make([]byte, 900))
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	url := start(t, reg, gateway.WithMaxBody(1000))
	for name, client := range protocols(t) {
		for _, size := range []int{1000, 1001, 5000} {
			for path, body := range map[string]io.Reader{
				"/": io.MultiReader(strings.NewReader(strings.Repeat("x", size))), "/announced": strings.NewReader(strings.Repeat("x", size)),
			} {
				if size == 1000 {
					path = "/fits"
				}
				req, err := http.NewRequest(http.MethodPost, url+path, body)
				require.NoError(t, err)
				resp, answer := send(t, client, req)
				what := fmt.Sprint(name, path, size)
				if size == 1000 {
					assert.Equal(t, "1000", answer, what)
					continue
				}
				assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode, what)
				assert.Equal(t, gateway.ReasonTooLarge, resp.Header.Get(gateway.ReasonHeader), what)
			}
		}
	}
	// While an answer is on its way, which is for the race detector to judge.
	for range 50 {
		conn := connect(t, url)
		_, err := io.WriteString(conn, "POST /early HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n384\r\n"+strings.Repeat("x", 900)+"\r\n")
		require.NoError(t, err)
		_, _ = io.WriteString(conn, "384\r\n"+strings.Repeat("x", 900)+"\r\n0\r\n\r\n")
		_, _ = io.Copy(io.Discard, conn)
	}
	_, err := gateway.New(engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}), gateway.WithMaxBody(-1))
	assert.EqualError(t, err, "gateway: body of at most -1 bytes, want 0 for any, or more")
}
