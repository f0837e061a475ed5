package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry/memory"
)

// websocketEcho accepts WebSockets (RFC 6455, section 4.2.2) and returns every byte.
func websocketEcho(t *testing.T, rec *recorder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec.instance("").ServeHTTP(httptestWriter{}, r)
		if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			w.WriteHeader(http.StatusUpgradeRequired)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Version: v9\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(sum[:]))
		assert.NoError(t, rw.Flush())
		_, _ = io.Copy(conn, rw)
	})
}

// httptestWriter forgets what is written to it.
type httptestWriter struct{}

func (httptestWriter) Header() http.Header         { return http.Header{} }
func (httptestWriter) Write(p []byte) (int, error) { return len(p), nil }
func (httptestWriter) WriteHeader(int)             {}

func TestW4_WebSocket(t *testing.T) {
	reg, rec := memory.New(), &recorder{}
	upstream(t, reg, "order", "v2.1.0", websocketEcho(t, rec))
	url := start(t, reg, gateway.WithTimeout(300*time.Millisecond))
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /chat HTTP/1.1\r\nHost: shop.example\r\nX-User-ID: 10086\r\nX-Gray-Tag: version=v3.0.0\r\n"+
		"Connection: keep-alive, Upgrade, X-Gray-Tag\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	assert.Equal(t, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", resp.Header.Get("Sec-WebSocket-Accept"))
	assert.Equal(t, []string{"v2.1.0"}, resp.Header["X-Version"])
	assert.Equal(t, grayTag, rec.one(t).tag.String())

	<-time.After(400 * time.Millisecond) // longer than an answer may take
	frame := []byte("\x81\x85\x01\x02\x03\x04\x69\x67\x6f\x68\x6e")
	for range 3 {
		_, err = conn.Write(frame)
		require.NoError(t, err)
		back := make([]byte, len(frame))
		_, err = io.ReadFull(r, back)
		require.NoError(t, err)
		assert.Equal(t, frame, back)
	}
}

func TestW4_ServerSentEvents(t *testing.T) {
	reg := memory.New()
	more := make(chan struct{})
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "18")
		}
		for i := range 2 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			assert.NoError(t, http.NewResponseController(w).Flush())
			select {
			case <-more:
			case <-r.Context().Done():
				return
			}
		}
	}))
	url := start(t, reg)
	var asked []func() (*http.Response, error)
	for _, client := range protocols(t) {
		for _, path := range []string{"/", "/length"} {
			asked = append(asked, func() (*http.Response, error) { return client.Get(url + path) })
		}
	}
	for _, ask := range asked {
		resp, err := ask()
		require.NoError(t, err)
		name := resp.Proto + " " + resp.Request.URL.Path
		assert.Equal(t, []string{"text/event-stream"}, resp.Header["Content-Type"], name)
		r := bufio.NewReader(resp.Body)
		for i := range 2 {
			// The event is here although the next one is 700 ms away, or will
			// never come: the service waits until it was read.
			line, err := r.ReadString('\n')
			require.NoError(t, err, name)
			assert.Equal(t, fmt.Sprintf("data: %d\n", i), line, name)
			_, err = r.ReadString('\n')
			require.NoError(t, err, name)
			more <- struct{}{}
		}
		_, err = r.ReadByte()
		assert.Equal(t, io.EOF, err, name)
		require.NoError(t, resp.Body.Close())
	}
}

// TestRollbackWhileAStreamIsOpen: who asks again is stable, what is open goes on.
func TestRollbackWhileAStreamIsOpen(t *testing.T) {
	reg := memory.New()
	more := make(chan struct{})
	upstream(t, reg, "order", "v2.1.0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "v2.1.0")
		assert.NoError(t, http.NewResponseController(w).Flush())
		<-more
		fmt.Fprintln(w, "v2.1.0 still")
	}))
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "stable") }))
	store, e := rule.NewMemoryStore(), engine(t, `{}`)
	first, err := store.Put(t.Context(), rule.Document{Data: []byte(whitelist)}, 0)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = e.Follow(ctx, store) })
	defer func() { cancel(); wg.Wait() }()
	url := "http://" + serve(t, newGateway(t, e, reg, gateway.WithRoutes(gateway.Route{Service: "order"})))
	require.Eventually(t, func() bool { return e.Status().Revision == first }, 30*time.Second, time.Millisecond)

	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("X-User-ID", "10086")
	open, err := newClient(t, "").Do(req)
	require.NoError(t, err)
	defer open.Body.Close()
	second, err := store.Put(t.Context(), rule.Document{Data: []byte(`{"stop": true}`)}, first)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.Status().Revision == second }, 30*time.Second, time.Millisecond)
	resp, body := get(t, newClient(t, ""), url, "X-User-ID", "10086")
	assert.Equal(t, "stable", resp.Header.Get("X-Version"))
	assert.Equal(t, "stable\n", body)
	close(more)
	rest, err := io.ReadAll(open.Body)
	require.NoError(t, err)
	assert.Equal(t, "v2.1.0\nv2.1.0 still\n", string(rest))
}

// TestTunnelsCarryNoRequests asks for an upgrade to HTTP/2 without TLS. A service
// that agrees would take requests that no rule has seen.
func TestTunnelsCarryNoRequests(t *testing.T) {
	reg := memory.New()
	asked := make(chan http.Header, 1)
	upstream(t, reg, "order", "", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Clone() }))
	url := start(t, reg)
	for _, protocol := range []string{"h2c", "H2C", "TLS/1.0", "spdy/3.1", "websocket, h2c"} {
		answer := raw(t, url, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade, HTTP2-Settings\r\nUpgrade: "+protocol+"\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n")
		assert.Contains(t, answer, "HTTP/1.1 200 OK", protocol)
		h := <-asked
		assert.NotContains(t, h, "Upgrade", protocol)
		assert.NotContains(t, h, "Connection", protocol)
		assert.NotContains(t, h, "Http2-Settings", protocol)
	}
	for _, protocol := range []string{"h2c", "HTTP/2.0", "TLS/1.0", ""} {
		_, err := gateway.New(engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}), gateway.WithUpgrades(protocol))
		assert.ErrorContains(t, err, fmt.Sprintf("gateway: upgrade to %q", protocol))
	}
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}), gateway.WithUpgrades("spdy/3.1"))
	raw(t, "http://"+serve(t, g), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
	assert.Equal(t, "SPDY/3.1", (<-asked).Get("Upgrade"))
}

// protocols are clients that speak HTTP/1.1 and HTTP/2.
func protocols(t *testing.T) map[string]*http.Client {
	return map[string]*http.Client{"HTTP/1.1": newClient(t, ""), "HTTP/2": newH2C(t)}
}

func TestLargeBodies(t *testing.T) {
	const size = 24 << 20
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, err := io.Copy(sum, r.Body)
		assert.NoError(t, err)
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", n, sum.Sum(nil)))
		_, _ = io.CopyN(w, zeroes{}, size)
	}))
	content := make([]byte, size)
	_, err := rand.Read(content)
	require.NoError(t, err)
	want := fmt.Sprintf("%d %x", size, sha256.Sum256(content))
	url := start(t, reg)
	for name, client := range protocols(t) {
		for kind, body := range map[string]io.Reader{"length": bytes.NewReader(content), "chunked": io.MultiReader(bytes.NewReader(content))} {
			req, err := http.NewRequest(http.MethodPost, url, body)
			require.NoError(t, err)
			resp, err := client.Do(req)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, int64(size), n)
			assert.Equal(t, want, resp.Header.Get("X-Sum"), name+" "+kind)
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestStreamsBothWays sends the next line when the answer to the last is there.
func TestStreamsBothWays(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		_ = rc.Flush()
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintln(w, "echo", lines.Text())
			_ = rc.Flush()
		}
		assert.NoError(t, lines.Err())
	}))
	for _, h2c := range []bool{false, true} {
		g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order", H2C: h2c}))
		url := "http://" + serve(t, g)
		for name, client := range protocols(t) {
			what := fmt.Sprintf("%s, h2c to the service %v", name, h2c)
			body, pipe := io.Pipe()
			req, err := http.NewRequest(http.MethodPost, url, body)
			require.NoError(t, err)
			resp, err := client.Do(req)
			require.NoError(t, err)
			r := bufio.NewReader(resp.Body)
			for i := range 20 {
				_, err := fmt.Fprintln(pipe, i)
				require.NoError(t, err, what)
				line, err := r.ReadString('\n')
				require.NoError(t, err, what)
				assert.Equal(t, fmt.Sprintf("echo %d\n", i), line, what)
			}
			require.NoError(t, pipe.Close())
			_, err = r.ReadByte()
			assert.Equal(t, io.EOF, err, what)
			require.NoError(t, resp.Body.Close())
		}
	}
}

func TestTrailers(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		w.Header().Set("Trailer", "X-Announced")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Announced", r.Trailer.Get("X-Checksum"))
		w.Header().Set(http.TrailerPrefix+"X-Surprise", "yes")
	}))
	for _, h2c := range []bool{false, true} {
		g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order", H2C: h2c}))
		url := "http://" + serve(t, g)
		for name, client := range protocols(t) {
			what := fmt.Sprintf("%s, h2c to the service %v", name, h2c)
			req, err := http.NewRequest(http.MethodPost, url, io.MultiReader(strings.NewReader("body")))
			require.NoError(t, err)
			req.Trailer = http.Header{"X-Checksum": {"12"}}
			resp, body := send(t, client, req)
			assert.Equal(t, "body", body, what)
			assert.Equal(t, "12", resp.Trailer.Get("X-Announced"), what)
			assert.Equal(t, "yes", resp.Trailer.Get("X-Surprise"), what)
		}
	}
}

// TestTrailersOfARequestWithALength come over HTTP/2 alone; on HTTP/1.1 there are none.
func TestTrailersOfARequestWithALength(t *testing.T) {
	reg := memory.New()
	sum := make(chan string, 1)
	upstream(t, reg, "order", "", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sum <- r.Trailer.Get("X-Checksum")
	}))
	req, err := http.NewRequest(http.MethodPost, start(t, reg), strings.NewReader("body"))
	require.NoError(t, err)
	req.Trailer = http.Header{"X-Checksum": {"12"}}
	send(t, newH2C(t), req)
	assert.Equal(t, "12", <-sum)
}

// TestTrailersThatAreHeadersToo are kept apart, and those that the gateway has the say
// in are dropped, announced and not.
func TestTrailersThatAreHeadersToo(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Server-Timing", "header")
		h["Trailer"] = []string{"Server-Timing"}
		if r.URL.Path == "/announced" {
			h["Trailer"] = []string{"X-Version, Server-Timing", "X-Canary-Group, X-Gray-Reason"}
		}
		_, _ = io.WriteString(w, "body")
		h.Set("Server-Timing", "trailer")
		for _, prefix := range []string{"", http.TrailerPrefix} {
			h.Set(prefix+"X-Version", "v9")
			h.Set(prefix+"X-Canary-Group", "theirs")
			h.Set(prefix+gateway.ReasonHeader, "missing")
		}
	}))
	for _, h2c := range []bool{false, true} {
		g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order", H2C: h2c}))
		url := "http://" + serve(t, g)
		for name, client := range protocols(t) {
			for _, path := range []string{"/announced", "/"} {
				resp, _ := get(t, client, url+path)
				what := fmt.Sprintf("%s, h2c to the service %v, %s", name, h2c, path)
				assert.Equal(t, []string{"header"}, resp.Header["Server-Timing"], what)
				assert.Equal(t, []string{"stable"}, resp.Header["X-Version"], what)
				assert.Equal(t, http.Header{"Server-Timing": {"trailer"}}, resp.Trailer, what)
			}
		}
	}
}

func TestInformationalAnswers(t *testing.T) {
	reg := memory.New()
	upstream(t, reg, "order", "v2.1.0", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("X-Version", "v9")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		w.Header().Add("Set-Cookie", "theirs=1")
		_, _ = io.WriteString(w, "body")
	}))
	g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}))
	url := "http://" + serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Strict-Transport-Security", "max-age=1")
		w.Header().Set("Set-Cookie", "outside=1")
		g.ServeHTTP(w, r)
	}))
	for name, client := range protocols(t) {
		var hints []textproto.MIMEHeader
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				assert.Equal(t, http.StatusEarlyHints, code)
				hints = append(hints, h)
				return nil
			},
		})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header.Set("X-User-ID", "10086")
		resp, body := send(t, client, req)
		require.Len(t, hints, 1, name)
		assert.Equal(t, textproto.MIMEHeader{"Link": {"</style.css>; rel=preload"}}, hints[0], name)
		assert.Equal(t, "body", body, name)
		assert.Equal(t, []string{"v2.1.0"}, resp.Header["X-Version"], name)
		assert.Equal(t, "max-age=1", resp.Header.Get("Strict-Transport-Security"), name)
		assert.Equal(t, []string{"outside=1", "theirs=1"}, resp.Header["Set-Cookie"], name)
		assert.NotContains(t, resp.Header, "Link", name)
	}
	old := raw(t, url, "GET / HTTP/1.0\r\nHost: x\r\nX-User-ID: 10086\r\n\r\n")
	assert.Regexp(t, "^HTTP/1.0 200 OK\r\n", old, "RFC 9110, section 15.2: none to HTTP/1.0")
	assert.Contains(t, old, "Set-Cookie: outside=1\r\n")
}

// TestTheProtocolToTheService goes over each protocol, from each protocol.
func TestTheProtocolToTheService(t *testing.T) {
	reg, rec := memory.New(), &recorder{}
	upstream(t, reg, "order", "v2.1.0", rec.instance("v2.1.0"))
	for _, h2c := range []bool{false, true} {
		g := newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order", H2C: h2c}))
		url := "http://" + serve(t, g)
		for name, client := range protocols(t) {
			_, body := get(t, client, url, "X-User-ID", "10086", "Host", "shop.example")
			s := rec.one(t)
			assert.Equal(t, "v2.1.0", body)
			assert.Equal(t, map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2c], s.Proto, name)
			assert.Equal(t, "order", s.Host, name)
			assert.Equal(t, []string{grayTag}, s.Header[graytag.Header], name)
		}
	}
}

func TestAbsoluteForm(t *testing.T) {
	reg, rec := orders(t)
	raw(t, start(t, reg), "GET http://user:secret@elsewhere.example/x?y=1 HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n")
	s := rec.one(t)
	assert.Equal(t, "/x?y=1", s.RequestURI)
	assert.Equal(t, "order", s.Host)
	assert.Equal(t, "elsewhere.example", s.Header.Get("X-Forwarded-Host"), "what it asks for is in its URI (RFC 9112, section 3.2.2)")
	assert.NotContains(t, s.Header, "Authorization")
}

// TestContentEncodingIsLeftAlone sees to it that the gateway asks for no encoding
// that the client did not ask for, and so does not decode.
func TestContentEncodingIsLeftAlone(t *testing.T) {
	reg, rec := orders(t)
	get(t, newClient(t, ""), start(t, reg))
	assert.NotContains(t, rec.one(t).Header, "Accept-Encoding")
}

// TestHeadersOfOneHop are not handed on, in either direction, with whatever the
// Connection header names.
func TestHeadersOfOneHop(t *testing.T) {
	reg := memory.New()
	asked := make(chan http.Header, 1)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = lis.Close() })
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		if r, err := http.ReadRequest(bufio.NewReader(conn)); assert.NoError(t, err) {
			asked <- r.Header
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: X-One, keep-alive\r\nConnection:  x-two\r\nX-One: 1\r\nX-Two: 2\r\nKeep-Alive: 5\r\n"+
			"Proxy-Authenticate: x\r\nProxy-Connection: x\r\nUpgrade: x\r\nX-Many: 1\r\nX-Many: 2\r\nContent-Length: 0\r\n\r\n")
	}()
	register(t, reg, "order", "", lis.Addr().String())
	url := "http://" + serve(t, outside{newGateway(t, engine(t, whitelist), reg, gateway.WithRoutes(gateway.Route{Service: "order"}))})
	answer := raw(t, url, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close, X-One\r\nConnection: x-TWO\r\nX-One: 1\r\nX-Two: 2\r\nX-Three: 3\r\n"+
		"Keep-Alive: 5\r\nProxy-Authorization: x\r\nProxy-Connection: x\r\nTE: gzip, Trailers\r\nTrailer: x\r\n\r\n")
	assert.Equal(t, http.Header{
		"X-Three": {"3"}, "Te": {"trailers"},
		"X-Forwarded-For": {"127.0.0.1"}, "X-Forwarded-Host": {"x"}, "X-Forwarded-Proto": {"http"},
	}, <-asked)
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	for _, name := range []string{"X-One", "X-Two", "Keep-Alive", "Proxy-Authenticate", "Proxy-Connection", "Upgrade"} {
		assert.NotContains(t, resp.Header, name)
	}
	assert.Equal(t, []string{"0", "1", "2"}, resp.Header["X-Many"], "that of a handler outside, and that of the service")
}

type outside struct{ http.Handler }

func (o outside) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Many", "0")
	o.Handler.ServeHTTP(w, r)
}
