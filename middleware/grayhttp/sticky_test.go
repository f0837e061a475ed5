package grayhttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// share draws a percentage of the users, by uid, else by group.
func share(percent int) string {
	return fmt.Sprintf(`{"rules": [{"id": "p", "percent": %d, "hashBy": ["uid", "group"], "salt": "s", "tag": "version=v2"}]}`, percent)
}

var sticky = grayhttp.WithStickyCookie(grayhttp.StickyCookie{})

// browser keeps cookies, and connections of its own.
type browser struct {
	t      *testing.T
	client *http.Client
	url    string
}

func newBrowser(t *testing.T, server *httptest.Server) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := *server.Client()
	client.Jar = jar
	return &browser{t, &client, server.URL + "/"}
}

func (b *browser) get(headers ...string) *http.Response {
	b.t.Helper()
	return b.do(http.MethodGet, headers...)
}

func (b *browser) do(method string, headers ...string) *http.Response {
	b.t.Helper()
	req, err := http.NewRequest(method, b.url, nil)
	require.NoError(b.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := b.client.Do(req)
	require.NoError(b.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(b.t, err)
	require.NoError(b.t, resp.Body.Close())
	return resp
}

func (b *browser) group() string {
	b.t.Helper()
	u, err := url.Parse(b.url)
	require.NoError(b.t, err)
	for _, c := range b.client.Jar.Cookies(u) {
		if c.Name == "gray_group" {
			return c.Value
		}
	}
	return ""
}

func entrance(t *testing.T, engine *rule.Engine, opts ...grayhttp.EdgeOption) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(enter(t, engine, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), opts...))
	t.Cleanup(server.Close)
	return server
}

func TestStickyVisitors(t *testing.T) {
	engine := newEngine(t, share(50))
	server := entrance(t, engine, sticky)
	versions := map[string]int{}
	first := map[*browser]string{}
	for range 60 {
		b := newBrowser(t, server)
		resp := b.get()
		require.Len(t, resp.Cookies(), 1)
		assert.Equal(t, b.group(), resp.Header.Get("X-Canary-Group"), "the first answer says the group already")
		first[b] = resp.Header.Get("X-Version")
		versions[first[b]]++
		for range 2 {
			again := b.get()
			assert.Equal(t, first[b], again.Header.Get("X-Version"), "the first answer and the next agree")
			assert.Equal(t, b.group(), again.Header.Get("X-Canary-Group"))
			assert.Empty(t, again.Cookies(), "once is enough")
			assert.Empty(t, again.Header.Get("Cache-Control"))
		}
	}
	assert.Len(t, versions, 2)
	assert.Greater(t, versions["v2"], 10)
	assert.Greater(t, versions["stable"], 10)

	// More users only add to those who are gray.
	require.NoError(t, engine.Load(parse(t, share(80))))
	for b, version := range first {
		if got := b.get().Header.Get("X-Version"); version == "v2" {
			assert.Equal(t, "v2", got)
		}
	}
	// The cookie is no version: a rollback reaches every holder on the next request.
	for _, off := range []string{share(0), `{"rules": []}`, `{"stop": true, ` + share(100)[1:]} {
		require.NoError(t, engine.Load(parse(t, off)))
		for b := range first {
			group := b.group()
			resp := b.get()
			assert.Equal(t, "stable", resp.Header.Get("X-Version"))
			assert.Empty(t, resp.Cookies())
			assert.Equal(t, group, b.group(), "it stays, and says nothing")
		}
	}
	require.NoError(t, engine.Load(parse(t, share(50))))
	for b, version := range first {
		assert.Equal(t, version, b.get().Header.Get("X-Version"), "back at 50 % exactly the same visitors")
	}
}

func TestTheStickyCookie(t *testing.T) {
	cookie := func(resp *http.Response) *http.Cookie {
		require.Len(t, resp.Cookies(), 1)
		return resp.Cookies()[0]
	}
	server := entrance(t, newEngine(t, share(50)), sticky)
	resp := newBrowser(t, server).get()
	c := cookie(resp)
	assert.Equal(t, "gray_group", c.Name)
	assert.Len(t, c.Value, 26)
	assert.True(t, c.HttpOnly)
	assert.Equal(t, http.SameSiteLaxMode, c.SameSite)
	assert.Equal(t, "/", c.Path)
	assert.Empty(t, c.Domain)
	assert.False(t, c.Secure)
	assert.Equal(t, 30*24*60*60, c.MaxAge)
	assert.Equal(t, "private", resp.Header.Get("Cache-Control"))

	// Secure is for those who speak TLS: with us, or with a proxy that may say so.
	c = cookie(newBrowser(t, server).get("X-Forwarded-Proto", "https"))
	assert.False(t, c.Secure, "anybody can claim it")
	behind := entrance(t, newEngine(t, share(50)), sticky, grayhttp.WithTrustedProxies("127.0.0.1"))
	for proto, secure := range map[string]bool{"https": true, "http": false, "https, http": false} {
		c = cookie(newBrowser(t, behind).get("X-Forwarded-Proto", proto, "X-Forwarded-For", "203.0.113.7"))
		assert.Equal(t, secure, c.Secure, proto)
	}
	gateway := entrance(t, newEngine(t, share(50)), sticky, grayhttp.WithTrustedGateways("127.0.0.1"))
	c = cookie(newBrowser(t, gateway).get("X-Forwarded-Proto", "https"))
	assert.False(t, c.Secure, "a trusted gateway is no trusted proxy")

	secure := httptest.NewTLSServer(enter(t, newEngine(t, share(50)), http.NotFoundHandler(),
		grayhttp.WithStickyCookie(grayhttp.StickyCookie{MaxAge: time.Hour, Domain: "example.com"})))
	t.Cleanup(secure.Close)
	c = cookie(newBrowser(t, secure).get())
	assert.True(t, c.Secure)
	assert.Equal(t, 3600, c.MaxAge)
	assert.Equal(t, "example.com", c.Domain)
}

func TestWhoGetsNoStickyCookie(t *testing.T) {
	without := func(resp *http.Response, msg string) {
		t.Helper()
		assert.Empty(t, resp.Cookies(), msg)
		assert.Empty(t, resp.Header.Get("X-Canary-Group"), msg)
	}
	server := entrance(t, newEngine(t, share(50)), sticky)
	without(newBrowser(t, server).get("X-User-ID", "1"), "who has a key")
	without(newBrowser(t, server).do(http.MethodOptions, "Access-Control-Request-Method", "GET"), "a preflight")
	without(newBrowser(t, server).do(http.MethodPost, "Content-Type", "application/grpc+proto"), "gRPC")
	resp := newBrowser(t, server).do(http.MethodPost, "Content-Type", "application/grpc-web+proto")
	assert.Len(t, resp.Cookies(), 1, "a browser speaks gRPC-Web")

	without(newBrowser(t, entrance(t, newEngine(t, share(50)))).get(), "where nobody asked for it")
	for _, document := range []string{
		`{"rules": []}`, share(0), share(100), testers,
		`{"rules": [{"id": "p", "percent": 50, "tag": "version=v2"}]}`, // by uid alone: a group would change nothing
		`{"rules": [{"id": "p", "percent": 50, "hashBy": ["session"], "tag": "version=v2"}]}`,
		`{"rules": [{"id": "p", "match": [{"attr": "uid", "op": "exists"}], "percent": 50, "hashBy": ["group"], "tag": "version=v2"}]}`,
		`{"attributes": {"group": []}, ` + share(50)[1:],
	} {
		without(newBrowser(t, entrance(t, newEngine(t, document), sticky)).get(), document)
	}
	without(newBrowser(t, entrance(t, newEngine(t, share(50)), sticky, grayhttp.WithExempt("/"))).get(), "what is no traffic")
	code := entrance(t, newEngine(t, share(50)), sticky, grayhttp.WithAttr("group", func(*http.Request) (string, bool) { return "a", true }))
	without(newBrowser(t, code).get(), "who has a group by code")

	// A raw source in hashBy works like the attribute.
	raw := entrance(t, newEngine(t, strings.Replace(share(50), `"group"`, `"cookie:gray_group"`, 1)), sticky)
	b := newBrowser(t, raw)
	assert.Equal(t, b.get().Header.Get("X-Version"), b.get().Header.Get("X-Version"))
	assert.NotEmpty(t, b.group())
}

// Whoever sends the cookie has chosen it.
func TestChosenStickyCookies(t *testing.T) {
	server := entrance(t, newEngine(t, share(50)), sticky)
	for value, kept := range map[string]bool{
		"beta-7": true, strings.Repeat("x", 64): true,
		strings.Repeat("x", 65): false, strings.Repeat("x", 7000): false, "a,b": false, "%0d%0aX-Evil:1": false, "": false, "<script>": false,
	} {
		resp := newBrowser(t, server).get("Cookie", "gray_group="+value)
		assert.Equal(t, kept, len(resp.Cookies()) == 0, "%.70q", value)
		assert.Equal(t, kept, resp.Header.Get("X-Canary-Group") == value, "%.70q", value)
		assert.Less(t, len(resp.Header.Get("X-Canary-Group")), 65)
	}
}

func TestAHandlerMaySayItsOwnOfCaching(t *testing.T) {
	server := httptest.NewServer(enter(t, newEngine(t, share(50)), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusTeapot)
	}), sticky))
	t.Cleanup(server.Close)
	resp := newBrowser(t, server).get()
	assert.Equal(t, []string{"no-store"}, resp.Header["Cache-Control"])
	assert.Len(t, resp.Cookies(), 1)
	assert.Equal(t, http.StatusTeapot, resp.StatusCode)
}
