package gateway_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/registry/memory"
)

// tunedProxy is httputil.ReverseProxy as one has to set it up, and nothing more: with
// the transport that the gateway has, which does not keep idle connections for ever.
func tunedProxy(tb testing.TB, target string) http.Handler {
	to, err := url.Parse("http://" + target)
	require.NoError(tb, err)
	tr := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 512, DisableCompression: true, IdleConnTimeout: 90 * time.Second,
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
	instance := upstream(tb, reg, "order", "", hello)
	upstream(tb, reg, "order", "v2.1.0", hello)
	g := newGateway(tb, engine(tb, whitelist), reg, gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}))
	return map[string]string{
		"reverse_proxy": "http://" + serve(tb, tunedProxy(tb, instance)) + "/orders/1",
		"graylane":      "http://" + serve(tb, g) + "/orders/1",
	}
}

// clients returns a function that sends one request by way of keep-alive, with each
// of the headers in turn.
func clients(tb testing.TB, target string, headers ...http.Header) func() error {
	tr := &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	tb.Cleanup(tr.CloseIdleConnections)
	to, err := url.Parse(target)
	require.NoError(tb, err)
	var n atomic.Uint64
	return func() error {
		header := headers[n.Add(1)%uint64(len(headers))]
		resp, err := tr.RoundTrip(&http.Request{Method: http.MethodGet, URL: to, Header: header})
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return err
	}
}

// gray and stable are requests as two users send them, from three programs in turn: what
// two headers more cost depends on how many there are, since maps grow by doubling.
var gray, stable = programs("10086"), programs("1")

func programs(user string) []http.Header {
	cookie := "session_id=8f3b2c; user_id=" + user
	return []http.Header{
		{ // Firefox
			"User-Agent":      {"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"},
			"Accept":          {"application/json, text/plain, */*"},
			"Accept-Language": {"en-US,en;q=0.5"},
			"Accept-Encoding": {"gzip, deflate, br"},
			"Referer":         {"https://shop.example/orders"},
			"Cookie":          {cookie},
			"Sec-Fetch-Dest":  {"empty"},
			"Sec-Fetch-Mode":  {"cors"},
			"Sec-Fetch-Site":  {"same-origin"},
		},
		{ // Chrome
			"Sec-Ch-Ua":          {`"Chromium";v="140", "Not=A?Brand";v="24", "Google Chrome";v="140"`},
			"Sec-Ch-Ua-Mobile":   {"?0"},
			"Sec-Ch-Ua-Platform": {`"Linux"`},
			"User-Agent":         {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"},
			"Accept":             {"application/json, text/plain, */*"},
			"Accept-Language":    {"en-US,en;q=0.9"},
			"Accept-Encoding":    {"gzip, deflate, br, zstd"},
			"Referer":            {"https://shop.example/orders"},
			"Cookie":             {cookie},
			"Sec-Fetch-Dest":     {"empty"},
			"Sec-Fetch-Mode":     {"cors"},
			"Sec-Fetch-Site":     {"same-origin"},
		},
		{ // an app, by OkHttp
			"User-Agent":      {"okhttp/5.1.0"},
			"Accept-Encoding": {"gzip"},
			"Authorization":   {"Bearer eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxIn0.MEUCIQDf"},
			"Cookie":          {cookie},
		},
	}
}

// oneOfFive returns requests of five users, one of whom is gray.
func oneOfFive() []http.Header {
	all := slices.Clone(gray)
	for range 4 {
		all = append(all, stable...)
	}
	return all
}

var compared = []struct {
	name, proxy string
	headers     []http.Header
}{
	{"reverse_proxy", "reverse_proxy", stable},
	{"graylane", "graylane", gray},
	{"graylane_20pct", "graylane", oneOfFive()},
	{"graylane_stable", "graylane", stable},
}

// BenchmarkGateway compares the time per request of 16 clients: a bare proxy; a gateway
// where every request is gray, which is the dearest; where one user of five is; and
// where no rule chooses anybody.
func BenchmarkGateway(b *testing.B) {
	urls := proxies(b)
	for _, c := range compared {
		b.Run(c.name, func(b *testing.B) {
			one := clients(b, urls[c.proxy], c.headers...)
			require.NoError(b, one())
			b.ReportAllocs()
			b.SetParallelism(max(1, 16/runtime.GOMAXPROCS(0)))
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

// BenchmarkInterleaved compares them on a machine that does other things as well:
// they take turns of 400 requests, and what it reports are medians and quotients of
// medians. One operation is a turn of each.
func BenchmarkInterleaved(b *testing.B) {
	const clientCount, requests = 16, 25
	urls := proxies(b)
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
	ones := make([]func() error, len(compared))
	times := make([][]float64, len(compared))
	for i, c := range compared {
		ones[i] = clients(b, urls[c.proxy], c.headers...)
		turn(ones[i]) // connections
	}
	for b.Loop() {
		for i := range ones {
			times[i] = append(times[i], turn(ones[i]))
		}
	}
	for i := range times {
		slices.Sort(times[i])
		b.ReportMetric(times[i][len(times[i])/2], "ns/"+compared[i].name)
		if i > 0 {
			b.ReportMetric(times[i][len(times[i])/2]/times[0][len(times[0])/2], compared[i].name+"/reverse_proxy")
		}
	}
}
