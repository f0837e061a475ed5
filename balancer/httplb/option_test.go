package httplb_test

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry/memory"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

func TestWrongOptionsAreErrorsOfTheConstructor(t *testing.T) {
	for want, opt := range map[string]httplb.Option{
		"minReady -1":      httplb.WithPolicy(subset.Policy{MinReady: -1}),
		`service "coupon"`: httplb.WithPolicyFor("coupon", subset.Policy{Strict: true, Fallback: []string{"any"}}),
		"without a name":   httplb.WithPolicyFor("", subset.Policy{}),
		"cool-off":         httplb.WithCoolOff(0, time.Second),
		"cool-off from 2s": httplb.WithCoolOff(2*time.Second, time.Second),
		"retries -1":       httplb.WithRetries(-1),
		"idle timeout":     httplb.WithIdleTimeout(0),
		"DialTLSContext": httplb.WithBase(&http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, io.EOF
		}}),
	} {
		lb, err := httplb.New(memory.New(), opt)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "httplb: ")
		assert.Nil(t, lb)
	}
	_, err := httplb.New(nil)
	require.EqualError(t, err, "httplb: discovery is nil")
}

func TestNilOptionsAreIgnored(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	lb := c.balancer(nil, httplb.WithBase(nil), httplb.WithBase((*http.Transport)(nil)), httplb.WithLogger(nil),
		httplb.WithMeterProvider(nil), httplb.WithServiceHost(nil), httplb.WithObserver(nil))
	_, err := get(context.Background(), lb, "http://inventory/")
	require.NoError(t, err)
}

func TestPolicyPerService(t *testing.T) {
	c := newCluster(t)
	c.up("payment", "p1", "")
	c.up("search", "q1", "")
	lb := c.balancer(httplb.WithPolicyFor("payment", subset.Policy{Strict: true}))
	_, err := get(tagged("version=v2"), lb, "http://payment/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable)
	id, err := get(tagged("version=v2"), lb, "http://search/")
	require.NoError(t, err)
	assert.Equal(t, "q1", id)
}

func TestEnvironmentProxyIsNotForInstances(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	base := &http.Transport{Proxy: func(*http.Request) (*url.URL, error) { return parseURL("http://" + closedPort(t)), nil }}
	id, err := get(context.Background(), c.balancer(httplb.WithBase(base)), "http://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "s1", id)
}

func TestDecisionsAreCounted(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	c.up("inventory", "g1", "v2")
	c.down("inventory", "h1", "v3")
	reader := sdkmetric.NewManualReader()
	lb := c.balancer(httplb.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		httplb.WithCoolOff(time.Hour, time.Hour), httplb.WithPolicyFor("payment", subset.Policy{Strict: true}))
	for range 3 {
		for _, tag := range []string{"", "version=v2", "version=v3", "version=v4"} {
			_, err := get(tagged(tag), lb, "http://inventory/")
			require.NoError(t, err)
		}
		_, err := get(tagged("version=v2"), lb, "http://payment/")
		require.Error(t, err)
	}
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	got := map[string]int64{}
	for _, p := range rm.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints {
		key := ""
		for _, name := range []string{"service", "wanted", "served", "outcome", "reason"} {
			v, _ := p.Attributes.Value(attribute.Key(name))
			key += v.AsString() + " "
		}
		got[key] += p.Value
	}
	assert.Equal(t, map[string]int64{
		"inventory stable stable stable  ":               3,
		"inventory v2 v2 matched  ":                      3,
		"inventory v3 stable fallback_stable unhealthy ": 3,
		"inventory v4 stable fallback_stable missing ":   3,
		"payment v2 none unavailable missing ":           3,
	}, got)
}

func parseURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}
