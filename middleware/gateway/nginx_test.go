package gateway_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// documented returns the configuration of nginx that forward-auth.md shows, with
// other addresses.
func documented(t *testing.T, endpoint, service string, port int) string {
	t.Helper()
	doc, err := os.ReadFile("forward-auth.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```nginx\n(.*?)```").FindSubmatch(doc)
	require.Len(t, block, 2, "the documentation holds a configuration")
	config := string(block[1])
	for from, to := range map[string]string{
		"server 127.0.0.1:9100;": "server " + endpoint + ";",
		"server 127.0.0.1:8080;": "server " + service + ";",
		"listen 80;":             fmt.Sprintf("listen 127.0.0.1:%d;", port),
	} {
		require.Equal(t, 1, strings.Count(config, from))
		config = strings.Replace(config, from, to, 1)
	}
	return config
}

// startNginx starts a real nginx with a configuration for its http block, and
// returns its URL. It ends with the test.
func startNginx(t *testing.T, server func(port int) string) (url string) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx") // where Debian has it, and not every user looks
	}
	if err != nil {
		const how = "nginx is not on PATH; this test runs behind a real one: apt-get install nginx-light"
		if os.Getenv("CI") == "true" {
			require.Fail(t, how)
		}
		t.Skip(how)
	}
	dir := t.TempDir()
	var log bytes.Buffer
	for range 5 { // another process may take the port in between
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := lis.Addr().(*net.TCPAddr).Port
		require.NoError(t, lis.Close())
		config := "pid nginx.pid;\nerror_log stderr warn;\nevents {}\nhttp {\naccess_log off;\n"
		for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			config += fmt.Sprintf("%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
		}
		config += server(port) + "}\n"
		file := filepath.Join(dir, "nginx.conf")
		require.NoError(t, os.WriteFile(file, []byte(config), 0o600))
		log.Reset()
		cmd := exec.Command(path, "-e", "stderr", "-p", dir, "-c", file, "-g", "daemon off; master_process off;")
		cmd.Stderr = &log
		require.NoError(t, cmd.Start())
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		if listens(port, ended) {
			t.Cleanup(func() {
				_ = cmd.Process.Signal(syscall.SIGTERM)
				<-ended
				if t.Failed() {
					t.Log("nginx says:", log.String())
				}
			})
			return fmt.Sprintf("http://127.0.0.1:%d", port)
		}
		if !strings.Contains(log.String(), "Address already in use") {
			break
		}
	}
	require.Fail(t, "nginx does not start", log.String())
	return ""
}

// listens waits until somebody listens on the port, or the process has ended.
func listens(port int, ended chan error) bool {
	for range 400 {
		select {
		case err := <-ended:
			ended <- err
			return false
		case <-time.After(25 * time.Millisecond):
		}
		if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}

// TestForwardAuthBehindNginx runs the documented configuration: nginx asks about
// every request, and what it is told is all that the service learns of tags.
func TestForwardAuthBehindNginx(t *testing.T) {
	const rules = `{"rules": [
		{"id": "users", "priority": 3, "match": [{"attr": "uid", "op": "equals", "values": ["10086"]}], "tag": "channel=app;version=v2.1.0"},
		{"id": "method", "priority": 2, "match": [{"attr": "method", "op": "equals", "values": ["DELETE"]}, {"attr": "path", "op": "prefix", "values": ["/orders/"]}, {"attr": "query:page", "op": "equals", "values": ["2"]}, {"attr": "host", "op": "equals", "values": ["shop.example"]}], "tag": "version=v7"},
		{"id": "network", "priority": 1, "match": [{"attr": "ip", "op": "cidr", "values": ["127.0.0.77"]}], "tag": "version=v3.0.0"},
		{"id": "sticky", "match": [{"attr": "path", "op": "equals", "values": ["/sticky"]}], "percent": 50, "hashBy": ["group"], "tag": "version=v4"}
	]}`
	var rec recorder
	instance := rec.instance("the service")
	service := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Version", "v9")
		w.Header().Set("X-Canary-Group", "mine")
		instance.ServeHTTP(w, r)
	}))
	auth := strings.TrimPrefix(endpoint(t, rules, gateway.WithConvention(gateway.Nginx()),
		gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.1"), grayhttp.WithStickyCookie(grayhttp.StickyCookie{}))), "http://")
	url := startNginx(t, func(port int) string { return documented(t, auth, service, port) })
	client := newClient(t, "127.0.0.2")

	for claim, headers := range claims {
		resp, _ := get(t, client, url+"/orders", append([]string{"X-User-ID", "10086", "Connection", "close, X-Gray-Tag, Baggage"}, headers...)...)
		s := rec.one(t)
		assert.Equal(t, []string{grayTag}, s.Header[graytag.Header], claim)
		assert.Equal(t, grayTag, s.tag.String(), claim)
		assert.Equal(t, []string{"v2.1.0"}, resp.Header["X-Version"], claim)
		assert.NotContains(t, resp.Header, "X-Canary-Group", claim)

		resp, _ = get(t, client, url+"/orders", append([]string{"X-Original-URI", "/sticky", "X-Forwarded-For", "127.0.0.77"}, headers...)...)
		s = rec.one(t)
		assert.NotContains(t, s.Header, graytag.Header, claim)
		assert.NotContains(t, s.Header, "X-Gray-Trace", claim)
		lines := strings.ToLower(strings.Join(s.Header["Baggage"], ","))
		assert.NotContains(t, lines, "gray.", claim)
		assert.NotContains(t, lines, "%61", claim)
		if strings.Contains(strings.Join(headers, " "), "tenant") {
			assert.Equal(t, "tenant=7", lines, claim)
		}
		assert.True(t, s.tag.IsZero(), claim)
		assert.Equal(t, []string{"stable"}, resp.Header["X-Version"], claim)
	}

	// What nginx tells of the request: its method, URI, host and address.
	req, err := http.NewRequest(http.MethodDelete, url+"/orders/a%20b?page=2", strings.NewReader("body"))
	require.NoError(t, err)
	req.Host = "shop.example:81"
	resp, _ := send(t, client, req)
	assert.Equal(t, "v7", resp.Header.Get("X-Version"))
	assert.Equal(t, "body", rec.one(t).body)
	resp, _ = get(t, newClient(t, "127.0.0.77"), url)
	assert.Equal(t, "v3.0.0", resp.Header.Get("X-Version"))
	rec.one(t)

	// The sticky cookie comes through, and back.
	resp, _ = get(t, client, url+"/sticky")
	rec.one(t)
	require.Len(t, resp.Cookies(), 1)
	cookie := resp.Cookies()[0]
	assert.Equal(t, []string{cookie.Value}, resp.Header["X-Canary-Group"])
	again, _ := get(t, client, url+"/sticky", "Cookie", cookie.Name+"="+cookie.Value)
	assert.Equal(t, resp.Header["X-Version"], again.Header["X-Version"])
	assert.Empty(t, again.Cookies())
	assert.Equal(t, resp.Header.Get("X-Version") == "v4", rec.one(t).tag.Get("version") == "v4")
}
