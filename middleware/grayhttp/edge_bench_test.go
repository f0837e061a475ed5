package grayhttp_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/graylane/graylane/internal/race"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// discard is an answer that nobody reads.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}

// edgeCases are what BenchmarkEdge and the guard below compare: the way through
// an edge with one rule, without a socket.
func edgeCases(tb testing.TB) map[string]func() {
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	h := enter(tb, newEngine(tb, testers), nothing, grayhttp.WithTrustedProxies("10.0.0.0/8"), sticky)
	inbound, err := grayhttp.NewHandler(nothing)
	if err != nil {
		tb.Fatal(err)
	}
	call := func(h http.Handler, headers ...string) func() {
		r := httptest.NewRequest(http.MethodGet, "http://shop.example.com/items?page=1", nil)
		r.RemoteAddr = "10.0.0.9:4711"
		r.Header = http.Header{
			"Accept": {"*/*"}, "User-Agent": {"test"}, "Cookie": {"session_id=abc; theme=dark"},
			"X-Forwarded-For": {"192.168.1.5", "203.0.113.7"}, "Connection": {"keep-alive"},
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Add(headers[i], headers[i+1])
		}
		w := discard{http.Header{}}
		return func() {
			clear(w.header)
			h.ServeHTTP(w, r)
		}
	}
	return map[string]func(){
		"plain":    call(nothing),
		"inbound":  call(inbound),
		"untagged": call(h, "X-User-ID", "10086"),
		"tagged":   call(h, "X-User-ID", "9999"),
		"forged":   call(h, "X-User-ID", "10086", "X-Gray-Tag", "version=v2", "Baggage", "gray.version=v2,tenant=acme"),
	}
}

func BenchmarkEdge(b *testing.B) {
	cases := edgeCases(b)
	for _, name := range []string{"plain", "inbound", "untagged", "tagged", "forged"} {
		one := cases[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

func TestEdgeAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	allocs := map[string]float64{}
	for name, one := range edgeCases(t) {
		allocs[name] = testing.AllocsPerRun(1000, one)
	}
	t.Log(allocs)
	// The layer of the context, the request with it, the value of X-Version.
	assert.LessOrEqual(t, allocs["untagged"], 4.0)
	assert.LessOrEqual(t, allocs["tagged"], 6.0)
	assert.LessOrEqual(t, allocs["forged"], 40.0)
}
