package gateway_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

// TestNoTagOfAnother has 16 clients on kept connections, among requests that fail,
// are given up and break off. Each request must carry its own user's tag and body.
func TestNoTagOfAnother(t *testing.T) {
	reg := memory.New()
	var served atomic.Int64
	for _, version := range []string{"", "v2"} {
		h, err := grayhttp.NewHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			user := r.Header.Get("X-User-ID")
			want := "uid=" + user
			if strings.HasSuffix(user, "7") {
				want += ";version=v2"
			}
			assert.Equal(t, want, graytag.FromContext(r.Context()).String())
			assert.Equal(t, strings.HasSuffix(user, "7"), version == "v2", "user %s at %q", user, version)
			served.Add(1)
			if r.URL.Path == "/early" {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			w.Header().Set("X-User", user)
			switch r.URL.Path {
			case "/hints":
				w.WriteHeader(http.StatusEarlyHints)
			case "/dies":
				_, _ = io.WriteString(w, "half")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			case "/gone":
				panic(http.ErrAbortHandler)
			case "/long":
				for range 64 {
					_, _ = io.WriteString(w, strings.Repeat(user+"\n", 1000))
				}
				return
			}
			_, _ = w.Write(append(body, version...))
		}))
		require.NoError(t, err)
		upstream(t, reg, "order", version, h)
	}
	e := engine(t, `{"carry": ["uid"], "rules": [{"id": "sevens", "match": [{"attr": "uid", "op": "suffix", "values": ["7"]}], "tag": "version=v2"}]}`)
	g := newGateway(t, e, reg, gateway.WithRoutes(gateway.Route{Service: "order"}, gateway.Route{Prefix: "/h2c", Service: "order", H2C: true, StripPrefix: true}))
	url := "http://" + serve(t, g)
	paths := []string{"/", "/", "/hints", "/early", "/dies", "/gone", "/long", "/long"}
	var wg sync.WaitGroup
	for _, client := range protocols(t) {
		for range 8 {
			wg.Go(func() {
				for range 50 {
					user, path := strconv.Itoa(rand.IntN(1000)), paths[rand.IntN(len(paths))]
					if rand.IntN(2) == 0 {
						path = "/h2c" + path
					}
					visit(t, client, url+path, user)
				}
			})
		}
	}
	wg.Wait()
	assert.Positive(t, served.Load())
}

// visit sends one request of a user, and gives some of them up.
func visit(t *testing.T, client *http.Client, url, user string) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	sent := strings.Repeat(user+" ", rand.IntN(3)*rand.IntN(20_000))
	method, body := http.MethodPost, io.Reader(strings.NewReader(sent))
	switch {
	case sent == "":
		method, body = http.MethodGet, nil
	case rand.IntN(2) == 0:
		body = io.MultiReader(body) // chunked
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	assert.NoError(t, err)
	req.Header.Set("X-User-ID", user)
	req.Header.Set("X-Gray-Tag", "uid=forged;version=v2")
	resp, err := client.Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	version := "stable"
	if strings.HasSuffix(user, "7") {
		version = "v2"
	}
	assert.Equal(t, version, resp.Header.Get("X-Version"))
	if resp.StatusCode != http.StatusOK {
		assert.Equal(t, http.StatusBadGateway, resp.StatusCode)
		return
	}
	if resp.Header.Get("X-User") == "" {
		return
	}
	assert.Equal(t, []string{user}, resp.Header["X-User"])
	switch {
	case strings.HasSuffix(url, "/dies"):
		_, err := io.ReadAll(resp.Body)
		assert.Error(t, err)
	case strings.HasSuffix(url, "/long"):
		if part, want := make([]byte, 100_000), strings.Repeat(user+"\n", 100_000); rand.IntN(2) == 0 {
			n, err := io.ReadFull(resp.Body, part)
			assert.NoError(t, err)
			assert.True(t, strings.HasPrefix(want, string(part[:n])))
			return // and give the rest up
		}
		answer, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.True(t, strings.Repeat(user+"\n", 64_000) == string(answer), "another's answer")
	default:
		answer, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, fmt.Sprint(sent, strings.TrimPrefix(version, "stable")), string(answer))
	}
}
