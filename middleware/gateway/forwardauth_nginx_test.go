//go:build linux

// Linux, because the clients come from 127.0.0.2, which needs no set-up there, and
// because the kernel ends nginx where a test is killed.

package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// documented returns the first block of code in the documentation of a function of
// forwardauth_proxies.go: what is written there is what is tested.
func documented(t *testing.T, function string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "forwardauth_proxies.go", nil, parser.ParseComments)
	require.NoError(t, err)
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			var p comment.Parser
			for _, block := range p.Parse(f.Doc.Text()).Content {
				if code, ok := block.(*comment.Code); ok {
					return code.Text
				}
			}
		}
	}
	require.Fail(t, "no code in the documentation", function)
	return ""
}

const nginxConfig = `
# One process, which runs as whoever runs the test.
master_process off;
pid nginx.pid;
error_log error.log info;
events { worker_connections 256; }
http {
    access_log off;
    client_body_temp_path client_body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream graylane { server %[2]s; keepalive 8; }
    upstream shop { server %[3]s; }
    server {
        listen %[1]s;
        location = /_up { return 200 %[1]s; }
%[4]s
    }
}
`

// startNginx runs nginx with the documented lines, and returns its address.
func startNginx(t *testing.T, graylane, shop string) (address string) {
	t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		const how = "no nginx on PATH: install it with apt-get install nginx-light (Debian, Ubuntu), or any other nginx with auth_request"
		if os.Getenv("CI") == "true" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	dir := t.TempDir()
	for range 5 { // a free port may not be free any more
		free, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address = free.Addr().String()
		require.NoError(t, free.Close())
		config := fmt.Sprintf(nginxConfig, address, graylane, shop, documented(t, "Nginx"))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nginx.conf"), []byte(config), 0o644))
		if runNginx(t, bin, dir, address) {
			return address
		}
	}
	log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
	t.Fatalf("nginx does not start: %s", log)
	return ""
}

// runNginx starts the program, and tells whether it serves. It ends with the test.
func runNginx(t *testing.T, bin, dir, address string) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, bin, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"), "-g", "daemon off;")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second // then it is killed
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		// Pdeathsig looks at the thread that starts the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if started <- err; err == nil {
			_ = cmd.Wait()
		}
	}()
	require.NoError(t, <-started)
	t.Cleanup(func() {
		cancel()
		<-ended
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "error.log"))
			t.Logf("nginx said: %s\n%s", said.Bytes(), log)
		}
	})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}
	for {
		if resp, err := client.Get("http://" + address + "/_up"); err == nil {
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			return err == nil && string(body) == address
		}
		select {
		case <-ended:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// atShop is what the shop saw of a request.
type atShop struct {
	method, uri, body string
	header            http.Header
	tag               graytag.Tag
}

// behindNginx is nginx, which asks graylane, in front of a shop.
type behindNginx struct {
	address  string
	graylane *httptest.Server
	instead  atomic.Pointer[http.Handler] // of what graylane answers

	mu   sync.Mutex // guards seen
	seen []atShop
}

func newBehindNginx(t *testing.T, rules string) *behindNginx {
	t.Helper()
	n := &behindNginx{}
	shop, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n.mu.Lock()
		n.seen = append(n.seen, atShop{r.Method, r.RequestURI, string(body), r.Header.Clone(), graytag.FromContext(r.Context())})
		n.mu.Unlock()
		w.Header().Set("X-Version", "a shop has no say in that")
		w.Header().Set("X-Canary-Group", "nor in that")
		w.Header().Set("Set-Cookie", "session=1")
		if r.URL.Path == "/missing" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	require.NoError(t, err)
	shopServer := httptest.NewServer(shop)
	t.Cleanup(shopServer.Close)

	decide := authHandler(t, rules, gateway.WithConvention(gateway.Nginx()),
		gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.1"), grayhttp.WithStickyCookie(grayhttp.StickyCookie{})))
	n.graylane = httptest.NewUnstartedServer(nil)
	n.graylane.Config = gateway.NewServer("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := n.instead.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			return
		}
		decide.ServeHTTP(w, r)
	}))
	n.graylane.Start()
	t.Cleanup(n.graylane.Close)
	n.address = startNginx(t, n.graylane.Listener.Addr().String(), shopServer.Listener.Addr().String())
	return n
}

// send sends bytes as they stand to nginx, from 127.0.0.2: a stranger. It returns
// the answer and what the shop saw.
func (n *behindNginx) send(t *testing.T, lines ...string) (*http.Response, atShop) {
	t.Helper()
	stranger := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	conn, err := stranger.Dial("tcp", n.address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	request, body := lines, ""
	if i := len(lines) - 1; strings.HasPrefix(lines[0], "POST") {
		request, body = lines[:i], lines[i]
		request = append(request, fmt.Sprintf("Content-Length: %d", len(body)))
	}
	_, err = io.WriteString(conn, strings.Join(append(request, "Connection: close", "", ""), "\r\n")+body)
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())

	n.mu.Lock()
	defer n.mu.Unlock()
	require.Len(t, n.seen, 1, "status %d", resp.StatusCode)
	seen := n.seen[0]
	n.seen = nil
	return resp, seen
}

// isUntagged checks that nothing of a tag has come to the shop.
func (s *atShop) isUntagged(t *testing.T) {
	t.Helper()
	assert.True(t, s.tag.IsZero(), s.tag)
	assert.NotContains(t, s.header, "X-Gray-Tag")
	assert.NotContains(t, s.header, "X-Gray-Trace")
	assert.NotContains(t, strings.ToLower(strings.Join(s.header["Baggage"], ",")), "gray")
}

func members(h http.Header) (all []string) {
	for _, line := range h["Baggage"] {
		for m := range strings.SplitSeq(line, ",") {
			all = append(all, strings.TrimSpace(m))
		}
	}
	return all
}

func TestForwardAuthBehindNginx(t *testing.T) {
	n := newBehindNginx(t, `{"rules": [
		{"id": "user", "match": [{"attr": "uid", "op": "equals", "values": ["10086"]}], "tag": "lane=a;version=v2"},
		{"id": "here", "match": [{"attr": "ip", "op": "cidr", "values": ["127.0.0.2"]}, {"attr": "path", "op": "equals", "values": ["/here"]}], "tag": "version=v3"},
		{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v4"},
		{"id": "all", "tag": "version=v5", "match": [
			{"attr": "method", "op": "equals", "values": ["POST"]}, {"attr": "host", "op": "equals", "values": ["shop.example.com"]},
			{"attr": "path", "op": "equals", "values": ["/a b/1"]}, {"attr": "query:color", "op": "equals", "values": ["red & blue"]},
			{"attr": "cookie:theme", "op": "equals", "values": ["dark"]}, {"attr": "header:User-Agent", "op": "prefix", "values": ["shop/"]}]},
		{"id": "half", "match": [{"attr": "path", "op": "equals", "values": ["/sticky"]}], "percent": 50, "hashBy": ["group"], "tag": "version=v6"}
	]}`)
	const host = "Host: shop.example.com"

	t.Run("nobody in particular", func(t *testing.T) {
		resp, seen := n.send(t, "GET /orders?a=b HTTP/1.1", host)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		seen.isUntagged(t)
		assert.NotContains(t, seen.header, "Baggage")
		assert.Equal(t, "/orders?a=b", seen.uri)
		assert.Equal(t, []string{"stable"}, resp.Header["X-Version"])
		assert.NotContains(t, resp.Header, "X-Canary-Group")
		assert.Equal(t, []string{"session=1"}, resp.Header["Set-Cookie"])
	})
	t.Run("W1: a forged tag", func(t *testing.T) {
		resp, seen := n.send(t, append([]string{"GET / HTTP/1.1", host}, authClaims...)...)
		seen.isUntagged(t)
		assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold;p=1"}, members(seen.header))
		assert.Equal(t, []string{"stable"}, resp.Header["X-Version"])
	})
	t.Run("a user of the whitelist, with a forged tag", func(t *testing.T) {
		resp, seen := n.send(t, append(append([]string{"POST /orders HTTP/1.1", host, "Cookie: user_id=10086"}, authClaims...), "two apples")...)
		assert.Equal(t, "lane=a;version=v2", seen.tag.String())
		assert.Equal(t, []string{"lane=a;version=v2"}, seen.header["X-Gray-Tag"])
		assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold;p=1", "gray.lane=a", "gray.version=v2"}, members(seen.header))
		assert.NotContains(t, seen.header, "X-Gray-Trace")
		assert.Equal(t, "POST", seen.method)
		assert.Equal(t, "two apples", seen.body)
		assert.Equal(t, []string{"v2"}, resp.Header["X-Version"])
	})
	t.Run("W2: Connection names our headers", func(t *testing.T) {
		_, seen := n.send(t, "GET / HTTP/1.1", host, "Connection: X-Gray-Tag, Baggage", "X-User-ID: 10086")
		assert.Equal(t, "lane=a;version=v2", seen.tag.String())
		assert.ElementsMatch(t, []string{"gray.lane=a", "gray.version=v2"}, members(seen.header))
	})
	t.Run("W3: the address of the client", func(t *testing.T) {
		_, seen := n.send(t, "GET /here HTTP/1.1", host, "X-Forwarded-For: 203.0.113.7")
		assert.Equal(t, "version=v3", seen.tag.String())
		_, seen = n.send(t, "GET / HTTP/1.1", host, "X-Forwarded-For: 203.0.113.7", "X-Forwarded-For: 203.0.113.7")
		seen.isUntagged(t)
	})
	t.Run("all that rules look at", func(t *testing.T) {
		request := []string{"POST /a%20b/1?color=red+%26%20blue HTTP/1.1", "Host: Shop.Example.com:8080", "Cookie: a=b; theme=dark", "User-Agent: shop/1.0", "x"}
		_, seen := n.send(t, request...)
		assert.Equal(t, "version=v5", seen.tag.String())
		// The client's own word on any of it does not count.
		_, seen = n.send(t, "GET / HTTP/1.1", host, "X-Original-Method: POST", "X-Original-URI: /a%20b/1?color=red+%26%20blue",
			"X-Forwarded-Uri: /here", "Cookie: theme=dark", "User-Agent: shop/1.0")
		seen.isUntagged(t)
		// In absolute form, as to a forward proxy, and from before there were hosts.
		_, seen = n.send(t, "GET http://shop.example.com/here HTTP/1.1", host)
		assert.Equal(t, "version=v3", seen.tag.String())
		_, seen = n.send(t, "GET /here HTTP/1.0")
		seen.isUntagged(t)
	})
	t.Run("the sticky cookie", func(t *testing.T) {
		resp, seen := n.send(t, "GET /sticky HTTP/1.1", host)
		cookies := resp.Cookies()
		require.Len(t, cookies, 2)
		group := cookies[0]
		if group.Name == "session" {
			group = cookies[1]
		}
		assert.Equal(t, "gray_group", group.Name)
		assert.Equal(t, []string{group.Value}, resp.Header["X-Canary-Group"])
		again, seenAgain := n.send(t, "GET /sticky HTTP/1.1", host, "Cookie: gray_group="+group.Value)
		assert.Len(t, again.Cookies(), 1)
		assert.Equal(t, resp.Header["X-Version"], again.Header["X-Version"])
		assert.True(t, seen.tag.Equal(seenAgain.tag))
	})
	t.Run("an answer that is no good", func(t *testing.T) {
		resp, _ := n.send(t, "GET /missing HTTP/1.1", host, "X-User-ID: 10086")
		assert.Equal(t, http.StatusNotFound, resp.StatusCode)
		assert.Equal(t, []string{"v2"}, resp.Header["X-Version"])
	})
	t.Run("all the baggage that nginx takes", func(t *testing.T) {
		big := strings.Repeat("x", 7000)
		resp, seen := n.send(t, "GET / HTTP/1.1", host, "X-User-ID: 10086",
			"Baggage: a="+big+",gray.version=v9", "baggage: b="+big, "BAGGAGE: gray.uid=1,c="+big)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, "lane=a;version=v2", seen.tag.String())
		got := members(seen.header)
		assert.Subset(t, got, []string{"a=" + big, "b=" + big, "c=" + big})
		assert.NotContains(t, got, "gray.version=v9")
		assert.NotContains(t, got, "gray.uid=1")
	})

	// Whatever happens to graylane, the request goes on, as a stable one.
	for name, h := range map[string]http.HandlerFunc{
		"graylane fails":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"graylane breaks": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"graylane hangs":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"graylane floods": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Gray-Tag", strings.Repeat("x", 128<<10))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var instead http.Handler = h
			n.instead.Store(&instead)
			defer n.instead.Store(nil)
			resp, seen := n.send(t, append([]string{"POST / HTTP/1.1", host, "X-User-ID: 10086"}, append(authClaims, "two apples")...)...)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, "two apples", seen.body)
			seen.isUntagged(t)
		})
	}
	t.Run("graylane is away", func(t *testing.T) {
		n.graylane.Close()
		resp, seen := n.send(t, append([]string{"GET / HTTP/1.1", host, "X-User-ID: 10086"}, authClaims...)...)
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		seen.isUntagged(t)
		assert.NotContains(t, resp.Header, "X-Version")
	})
}
