package grayslog_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/middleware/grayslog"
	"github.com/graylane/graylane/propagation"
)

// Two services over HTTP: each line says what its service is asked for, also in work
// that goes on after the request, and a line of a lost context says nothing.
func TestLinesOfAChain(t *testing.T) {
	var mu sync.Mutex
	var buf bytes.Buffer
	logger := func(service string) *slog.Logger {
		h := grayslog.NewHandler(slog.NewTextHandler(writer{&mu, &buf}, noTime), grayslog.WithService(service))
		return slog.New(h).With("service", service)
	}
	serve := func(f http.HandlerFunc) string {
		h, err := grayhttp.NewHandler(f)
		require.NoError(t, err)
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	transport, err := grayhttp.NewTransport(nil)
	require.NoError(t, err)
	client := &http.Client{Transport: transport}
	call := func(ctx context.Context, url string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		assert.NoError(t, resp.Body.Close())
	}

	coupon := logger("coupon")
	inner := serve(func(_ http.ResponseWriter, r *http.Request) {
		coupon.WithGroup("db").InfoContext(r.Context(), "read", "rows", 1)
	})
	order := logger("order")
	var background sync.WaitGroup
	outer := serve(func(_ http.ResponseWriter, r *http.Request) {
		order.InfoContext(r.Context(), "begin")
		call(r.Context(), inner)
		order.InfoContext(context.Background(), "lost")
		background.Add(1)
		propagation.Go(r.Context(), func(ctx context.Context) {
			defer background.Done()
			order.InfoContext(ctx, "later")
		})
	})
	for tag, want := range map[string][2]string{
		"version=v2;version.coupon=v1.9": {"v2", "v1.9"},
		"version.coupon=v1.9":            {"stable", "v1.9"},
		"version=v2":                     {"v2", "v2"},
		"":                               {"stable", "stable"},
	} {
		call(graytag.NewContext(context.Background(), graytag.MustParse(tag)), outer)
		background.Wait()
		mu.Lock()
		lines := strings.Split(strings.TrimSpace(buf.String()), "\n")
		buf.Reset()
		mu.Unlock()
		assert.Equal(t, []string{
			"level=INFO msg=begin service=order gray.version=" + want[0],
			"level=INFO msg=read service=coupon gray.version=" + want[1] + " db.rows=1",
			"level=INFO msg=lost service=order",
			"level=INFO msg=later service=order gray.version=" + want[0],
		}, lines, tag)
	}
}
