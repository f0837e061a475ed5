package e2e_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// A gray instance that refuses what is misrouted stays healthy in the eyes of
// Consul's HTTP check where the path of the check is exempt, and only there.
func TestS1_HTTPHealthChecksAtAnInstanceThatRejects(t *testing.T) {
	agent := consultest.Start(t)
	reg, err := consul.New(agent.Config(), consul.WithHTTPCheck("/healthz", time.Second))
	require.NoError(t, err)
	t.Cleanup(func() { _ = reg.Close() })

	var checks, calls atomic.Int32
	start := func(id string, opts ...grayhttp.HandlerOption) {
		i := registry.Instance{ID: id, Service: "order", Metadata: map[string]string{"version": "v2"}}
		opts = append(opts, grayhttp.WithSelf(i), grayhttp.WithRejectMisrouted(), grayhttp.WithLogger(slog.New(slog.DiscardHandler)))
		h, err := grayhttp.NewHandler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/healthz" {
				checks.Add(1)
				return
			}
			calls.Add(1)
		}), opts...)
		require.NoError(t, err)
		srv := httptest.NewServer(h)
		t.Cleanup(srv.Close)
		i.Address = srv.Listener.Addr().String()
		_, err = reg.Register(context.Background(), i)
		require.NoError(t, err)
	}
	start("exempt", grayhttp.WithExempt("/healthz"))
	start("not-exempt")

	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var status map[string]registry.Status
	for set, err := range reg.Watch(ctx, "order") {
		require.NoError(t, err)
		status = map[string]registry.Status{}
		for _, i := range set {
			status[i.ID] = i.Status
		}
		if status["not-exempt"] == registry.StatusCritical {
			break
		}
	}
	require.Eventually(t, func() bool { return checks.Load() >= 3 }, wait, 10*time.Millisecond)
	assert.Equal(t, registry.StatusPassing, status["exempt"])

	client := newClient(t, reg)
	for range 5 {
		req, err := http.NewRequestWithContext(graytag.NewContext(ctx, graytag.MustParse("version=v2")), http.MethodGet, "http://order/", nil)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		_ = resp.Body.Close()
		assert.Equal(t, http.StatusOK, resp.StatusCode)
	}
	assert.EqualValues(t, 5, calls.Load())
}
