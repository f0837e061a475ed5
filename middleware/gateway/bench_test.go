package gateway_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry/memory"
)

// tunedProxy is httputil.ReverseProxy as one has to set it up, and nothing more.
func tunedProxy(tb testing.TB, target string) http.Handler {
	to, err := url.Parse("http://" + target)
	require.NoError(tb, err)
	tr := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 512, DisableCompression: true,
	}
	tb.Cleanup(tr.CloseIdleConnections)
	return &httputil.ReverseProxy{
		Rewrite:    func(p *httputil.ProxyRequest) { p.SetURL(to); p.SetXForwarded() },
		Transport:  tr,
		BufferPool: &arrays{},
	}
}

type arrays struct{ sync.Pool }

func (p *arrays) Get() []byte {
	if b, ok := p.Pool.Get().(*[32 << 10]byte); ok {
		return b[:]
	}
	return make([]byte, 32<<10)
}
func (p *arrays) Put(b []byte) { p.Pool.Put((*[32 << 10]byte)(b)) }

// proxies are what is compared: the same instance behind a bare proxy and behind a
// gateway.
func proxies(tb testing.TB) map[string]string {
	reg := memory.New()
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	stable := upstream(tb, reg, "order", "", hello)
	upstream(tb, reg, "order", "v2.1.0", hello)
	g := newGateway(tb, engine(tb, whitelist), reg, gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
	return map[string]string{
		"reverse_proxy": "http://" + serve(tb, tunedProxy(tb, stable)) + "/orders/1",
		"graylane":      "http://" + serve(tb, g) + "/orders/1",
	}
}

// clients returns a function that sends one request by way of keep-alive.
func clients(tb testing.TB, target string, header http.Header) func() error {
	tr := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	tb.Cleanup(tr.CloseIdleConnections)
	to, err := url.Parse(target)
	require.NoError(tb, err)
	return func() error {
		resp, err := tr.RoundTrip(&http.Request{Method: http.MethodGet, URL: to, Header: header})
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return err
	}
}

var user = http.Header{"X-User-Id": {"10086"}, "User-Agent": {"bench"}, "Accept": {"*/*"}}

// BenchmarkGateway compares the time per request of 16 clients. Compare medians of
// interleaved rounds, -count 10: the two run right after each other in each.
func BenchmarkGateway(b *testing.B) {
	urls := proxies(b)
	for _, name := range []string{"reverse_proxy", "graylane"} {
		b.Run(name, func(b *testing.B) {
			one := clients(b, urls[name], user)
			require.NoError(b, one())
			b.ReportAllocs()
			b.SetParallelism(8) // 16 on two cores
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := one(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkInterleaved compares the two on a machine that does other things
// as well: they take turns, 800 requests each, and what it reports are medians. One
// operation is one turn of both.
func BenchmarkInterleaved(b *testing.B) {
	const clientCount, requests = 16, 50
	urls := proxies(b)
	ours, bare := clients(b, urls["graylane"], user), clients(b, urls["reverse_proxy"], user)
	turn := func(one func() error) float64 {
		var wg sync.WaitGroup
		began := time.Now()
		for range clientCount {
			wg.Go(func() {
				for range requests {
					if err := one(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		return float64(time.Since(began).Nanoseconds()) / (clientCount * requests)
	}
	turn(ours)
	turn(bare)
	var our, base, ratio []float64
	for b.Loop() {
		first, second := turn(bare), turn(ours)
		our, base, ratio = append(our, second), append(base, first), append(ratio, second/first)
	}
	median := func(x []float64) float64 {
		slices.Sort(x)
		return x[len(x)/2]
	}
	b.ReportMetric(median(base), "ns/reverse_proxy")
	b.ReportMetric(median(our), "ns/graylane")
	b.ReportMetric(median(ratio), "ratio")
}
