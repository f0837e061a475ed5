package httplb_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry"
)

type routeCase struct {
	Name      string
	Instances map[string]string
	Service   string
	Tag       string
	Policy    struct {
		Key      string
		Stable   []string
		FoldCase bool
		Fallback []string
		Strict   bool
		MinReady int
	}
	NotReady []string `json:"not_ready"`
	Want     []string
	Outcome  subset.Outcome
	Reason   subset.Reason
	Error    string
	Have     map[string]int
}

func TestRouteVectors(t *testing.T) {
	data, err := os.ReadFile("testdata/route.json")
	require.NoError(t, err)
	var doc struct{ Cases []routeCase }
	require.NoError(t, json.Unmarshal(data, &doc))
	require.NotEmpty(t, doc.Cases)
	for _, c := range doc.Cases {
		t.Run(c.Name, func(t *testing.T) {
			cl := newCluster(t)
			for id, version := range c.Instances {
				address := closedPort(t)
				if !slices.Contains(c.NotReady, id) {
					srv := httptest.NewServer(cl.serve(id))
					t.Cleanup(srv.Close)
					address = srv.Listener.Addr().String()
				}
				i := registry.Instance{ID: id, Service: c.Service, Address: address, Metadata: map[string]string{"other": "x"}}
				if version != "" {
					key := c.Policy.Key
					if key == "" {
						key = registry.MetadataVersion
					}
					i.Metadata[key] = version
				}
				cl.register(i)
			}
			var seen decisions
			lb := cl.balancer(
				httplb.WithPolicyFor(c.Service, subset.Policy(c.Policy)),
				httplb.WithServiceHost(func(host string) (string, bool) { return c.Service, host == "target" }),
				httplb.WithCoolOff(time.Hour, time.Hour),
				seen.option())
			ctx := tagged(c.Tag)

			var got []string
			for range 20 + 20*len(c.Want) {
				id, err := get(ctx, lb, "http://target/")
				if c.Error != "" {
					var unavailable *subset.UnavailableError
					require.ErrorAs(t, err, &unavailable)
					assert.Equal(t, c.Have, unavailable.Have)
					assert.Equal(t, c.Service, unavailable.Service)
					assert.Equal(t, subset.Unavailable, seen.last(t).Outcome)
					continue
				}
				require.NoError(t, err)
				d := seen.last(t)
				assert.Equal(t, c.Outcome, d.Outcome)
				assert.Equal(t, c.Reason, d.Reason)
				assert.Equal(t, id, d.Instance.ID)
				if !slices.Contains(got, id) {
					got = append(got, id)
				}
			}
			assert.ElementsMatch(t, c.Want, got)
		})
	}
}

func TestRequestsThatNameNoServiceGoStraightThrough(t *testing.T) {
	c := newCluster(t)
	srv := httptest.NewServer(c.serve("plain"))
	t.Cleanup(srv.Close)
	lb := c.balancer()
	id, err := get(tagged("version=v2"), lb, srv.URL)
	require.NoError(t, err)
	assert.Equal(t, "plain", id)

	for host, want := range map[string]string{
		"inventory": "inventory", "Inventory": "Inventory", "inventory:80": "", "a.b": "", "localhost": "", "LOCALHOST": "",
		"10.0.0.1": "", "[::1]": "", "[::1]:80": "", "": "", "inventory.": "",
	} {
		service, ok := httplb.ServiceHost(host)
		assert.Equal(t, want, service, host)
		assert.Equal(t, want != "", ok, host)
	}
}

func TestHostHeaderIsTheServices(t *testing.T) {
	c := newCluster(t)
	c.up("inventory", "s1", "")
	lb := c.balancer()
	req, err := http.NewRequest(http.MethodGet, "http://inventory/items/1?q=1", nil)
	require.NoError(t, err)
	resp, err := lb.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "inventory", resp.Header.Get("Host-Seen"))
	assert.Same(t, req, resp.Request, "the caller sees its own request")
	assert.Equal(t, "http://inventory/items/1?q=1", req.URL.String())
	assert.Equal(t, "inventory", req.Host, "the caller's request is not changed")

	req.Host = ""
	resp, err = lb.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "inventory", resp.Header.Get("Host-Seen"))
	assert.Empty(t, req.Host)

	req.Host = "tenant-7"
	resp, err = lb.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, "tenant-7", resp.Header.Get("Host-Seen"))
}
