package grayhttp_test

import (
	"bytes"
	"context"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

func self(version string) grayhttp.HandlerOption {
	return grayhttp.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"version": version}})
}

func TestArrival(t *testing.T) {
	for _, c := range []struct {
		opts         []grayhttp.HandlerOption
		tag, version string
		wanted       string
		outcome      subset.Outcome
	}{
		{[]grayhttp.HandlerOption{self("v2")}, "version=v2", "v2", "v2", subset.Matched},
		{[]grayhttp.HandlerOption{self("v2")}, "version=v1;version.order=v2", "v2", "v2", subset.Matched},
		{[]grayhttp.HandlerOption{self("v2")}, "", "v2", "", subset.Misrouted},
		{[]grayhttp.HandlerOption{self("v2")}, "version=v3", "v2", "v3", subset.Misrouted},
		{[]grayhttp.HandlerOption{self("")}, "", "", "", subset.Stable},
		{[]grayhttp.HandlerOption{self("stable")}, "version=stable", "", "", subset.Stable},
		{[]grayhttp.HandlerOption{self("")}, "version=v2", "", "v2", subset.Fallback},
		{[]grayhttp.HandlerOption{self(""), grayhttp.WithPolicy(subset.Policy{Strict: true})}, "version=v2", "", "v2", subset.Misrouted},
		{[]grayhttp.HandlerOption{
			self(""), grayhttp.WithPolicy(subset.Policy{Strict: true}), grayhttp.WithPolicyFor("order", subset.Policy{}),
		}, "version=v2", "", "v2", subset.Fallback},
	} {
		provider, sum := meter(t)
		var got grayhttp.Arrival
		var known bool
		h, err := grayhttp.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, known = grayhttp.ArrivalFromContext(r.Context())
		}), append(c.opts, grayhttp.WithMeterProvider(provider), grayhttp.WithExempt("/healthz", "/debug/"))...)
		require.NoError(t, err)
		call := func(path string) {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			if c.tag != "" {
				r.Header.Set(graytag.Header, c.tag)
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
		}
		call("/items")
		require.True(t, known)
		assert.Equal(t, grayhttp.Arrival{Service: "order", Version: c.version, Wanted: c.wanted, Outcome: c.outcome}, got)
		wanted := c.wanted
		if wanted == "" {
			wanted = "stable"
		}
		for _, exempt := range []string{"/healthz", "/debug/", "/debug/pprof/heap"} {
			call(exempt)
			assert.False(t, known, exempt)
		}
		for _, path := range []string{"/healthz/x", "/debugger"} {
			call(path)
			assert.True(t, known, path)
		}
		assert.Equal(t, map[string]int64{wanted + " " + string(c.outcome): 3}, sum("graylane.server.requests", "wanted", "outcome"))
	}
	_, ok := grayhttp.ArrivalFromContext(context.Background())
	assert.False(t, ok)
}

func TestHandlerMarksWhatItSaw(t *testing.T) {
	var rec recorder
	h, err := grayhttp.NewHandler(&rec)
	require.NoError(t, err)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	got := rec.one(t)
	assert.True(t, got.scope)
	assert.True(t, got.tag.IsZero())

	// OTel outside ours may have put members there that spell no tag.
	m, err := baggage.NewMemberRaw("gray.version", "a\tb")
	require.NoError(t, err)
	b, err := baggage.New(m)
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	h.ServeHTTP(httptest.NewRecorder(), r.WithContext(baggage.ContextWithBaggage(r.Context(), b)))
	assert.Zero(t, baggage.FromContext(rec.one(t).ctx).Len())

	// An outer handler of the same process has decided already.
	h.ServeHTTP(httptest.NewRecorder(), r.WithContext(tagged()))
	assert.True(t, rec.one(t).tag.Equal(tag))
}

func TestHandlerDoesNotWrapTheResponseWriter(t *testing.T) {
	w := httptest.NewRecorder()
	h, err := grayhttp.NewHandler(http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) { assert.Same(t, w, got) }))
	require.NoError(t, err)
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
}

func TestHandlerHandsTheFormBack(t *testing.T) {
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.txt")
	require.NoError(t, err)
	_, err = io.WriteString(part, "x")
	require.NoError(t, err)
	require.NoError(t, form.Close())
	h, err := grayhttp.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseMultipartForm(1<<10))
		panic(http.ErrAbortHandler)
	}))
	require.NoError(t, err)
	r := httptest.NewRequest(http.MethodPost, "/", &body)
	r.Header.Set("Content-Type", form.FormDataContentType())
	assert.PanicsWithValue(t, http.ErrAbortHandler, func() { h.ServeHTTP(httptest.NewRecorder(), r) })
	assert.NotNil(t, r.MultipartForm, "net/http removes its files from the request that it knows")
}

func TestWrongOptionsAreErrorsOfTheConstructor(t *testing.T) {
	bad := subset.Policy{MinReady: -1}
	for want, opt := range map[string]grayhttp.HandlerOption{
		"minReady -1":         grayhttp.WithPolicy(bad),
		`service "payment"`:   grayhttp.WithPolicyFor("payment", bad),
		"without a name":      grayhttp.WithPolicyFor("", subset.Policy{}),
		`exempt path "x"`:     grayhttp.WithExempt("x"),
		"without a service":   grayhttp.WithSelf(registry.Instance{}),
		"grayhttp: WithSelf:": grayhttp.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"": "x"}}),
	} {
		h, err := grayhttp.NewHandler(http.NotFoundHandler(), opt)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "grayhttp: ")
		assert.Nil(t, h)
	}
	_, err := grayhttp.NewHandler(nil)
	require.EqualError(t, err, "grayhttp: handler is nil")
	for want, opt := range map[string]grayhttp.ClientOption{
		"minReady -1":       grayhttp.WithPolicy(bad),
		`service "payment"`: grayhttp.WithPolicyFor("payment", bad),
		"retries -1":        grayhttp.WithBalancer(httplb.WithRetries(-1)),
		`exempt path ""`:    grayhttp.WithExempt(""),
	} {
		client, err := grayhttp.NewClient(memory.New(), opt)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "grayhttp: ")
		assert.Nil(t, client)
	}
	_, err = grayhttp.NewClient(nil)
	require.ErrorContains(t, err, "discovery is nil")
	_, err = grayhttp.NewTransport(nil, grayhttp.WithExempt("x"))
	require.Error(t, err)
	_, err = grayhttp.NewTransport(nil, nil, grayhttp.WithPropagator(nil), grayhttp.WithMeterProvider(nil), grayhttp.WithLogger(nil), grayhttp.WithInjectTo(nil))
	require.NoError(t, err)
}

// net/http puts trailers that were not announced into the request that it made,
// when the body has been read.
func TestTrailersOfARequestReachTheHandler(t *testing.T) {
	got := make(chan http.Header, 1)
	address := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		assert.NoError(t, err)
		got <- r.Trailer
	}))
	for _, announced := range []string{"", "Trailer: X-Sum\r\n"} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"+announced+"\r\n1\r\nx\r\n0\r\nX-Sum: 7\r\n\r\n")
		require.NoError(t, err)
		assert.Equal(t, http.Header{"X-Sum": {"7"}}, <-got, announced)
		require.NoError(t, conn.Close())
	}
}
