package grayhttp_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/memory"
)

// hops sends what order asks of inventory to v2, for tenant acme, and reports to
// v3, whoever asks.
const hops = `{"rules": [
	{"id": "acme", "services": ["inventory"], "tag": "version=v2;lane=acme", "match": [
		{"attr": "source", "op": "equals", "values": ["order"]},
		{"attr": "header:X-Tenant", "op": "equals", "values": ["acme"]}]},
	{"id": "reports", "services": ["inventory"], "tag": "version=v3", "match": [
		{"attr": "path", "op": "prefix", "values": ["/reports/"]}, {"attr": "method", "op": "equals", "values": ["GET"]},
		{"attr": "query:full", "op": "equals", "values": ["1"]}]},
	{"id": "user7", "services": ["user"], "tag": "version=v2", "match": [{"attr": "uid", "op": "equals", "values": ["7"]}]}]}`

func TestRulesOfAHop(t *testing.T) {
	reg := memory.New()
	recs := map[string]*recorder{}
	for _, service := range []string{"inventory", "user"} {
		for _, version := range []string{"", "v2", "v3"} {
			rec := &recorder{}
			recs[service+version] = rec
			register(t, reg, service, service+version, version, serve(t, rec))
		}
	}
	client := newClient(t, reg, grayhttp.WithRules(newEngine(t, hops), "order"))
	elsewhere := newClient(t, reg, grayhttp.WithRules(newEngine(t, hops), "coupon"))
	for _, c := range []struct {
		name        string
		client      *http.Client
		ctx         string // the tag; "-": no scope
		url, tenant string
		want        string // service and version that served
		tag         string // that it saw
	}{
		{"no rule", client, "uid=1", "http://inventory/", "", "inventory", "uid=1"},
		{"source and header", client, "uid=1", "http://inventory/", "acme", "inventoryv2", "lane.inventory=acme;uid=1;version.inventory=v2"},
		{"untagged", client, "", "http://inventory/", "acme", "inventoryv2", "lane.inventory=acme;version.inventory=v2"},
		{"without a scope", client, "-", "http://inventory/", "acme", "inventoryv2", "lane.inventory=acme;version.inventory=v2"},
		{"another source", elsewhere, "uid=1", "http://inventory/", "acme", "inventory", "uid=1"},
		{"another target", client, "uid=1", "http://user/", "acme", "user", "uid=1"},
		{"path, method and query", client, "", "http://inventory/reports/1?full=1", "", "inventoryv3", "version.inventory=v3"},
		{"another query", client, "", "http://inventory/reports/1?full=0", "", "inventory", ""},
		{"a version stays", client, "version=v3", "http://inventory/", "acme", "inventoryv3", "version=v3"},
		{"one for the service stays", client, "version.inventory=v3", "http://inventory/", "acme", "inventoryv3", "version.inventory=v3"},
		{"one for another service does not count", client, "version.user=v3", "http://inventory/", "acme", "inventoryv2", "lane.inventory=acme;version.inventory=v2;version.user=v3"},
		{"stable pins", client, "version=stable", "http://inventory/", "acme", "inventory", "version=stable"},
		{"stable for the service pins", client, "version.inventory=stable", "http://inventory/", "acme", "inventory", "version.inventory=stable"},
		{"the user of the tag", client, "uid=7", "http://user/", "", "userv2", "uid=7;version.user=v2"},
	} {
		ctx := context.Background()
		if c.ctx != "-" {
			ctx = graytag.NewContext(ctx, graytag.MustParse(c.ctx))
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
		require.NoError(t, err)
		if c.tenant != "" {
			req.Header.Set("X-Tenant", c.tenant)
		}
		before := req.Header.Clone()
		for range 3 {
			require.NoError(t, send(c.client, req), c.name)
		}
		assert.Equal(t, before, req.Header)
		assert.Equal(t, c.ctx != "-", graytag.InScope(ctx))
		for name, rec := range recs {
			all := rec.take()
			if name != c.want {
				assert.Empty(t, all, "%s: at %s", c.name, name)
				continue
			}
			assert.Len(t, all, 3, c.name)
			for _, s := range all {
				assert.Equal(t, c.tag, s.tag.String(), c.name)
			}
		}
	}
}

// The tag of one call is not that of the next, to another service.
func TestRulesOfAHopAreOfThatCallAlone(t *testing.T) {
	reg := memory.New()
	var inventory, user recorder
	register(t, reg, "inventory", "i", "v2", serve(t, &inventory))
	register(t, reg, "user", "u", "", serve(t, &user))
	client := newClient(t, reg, grayhttp.WithRules(newEngine(t, hops), "order"))
	order := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, url := range []string{"http://inventory/", "http://user/"} {
			req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
			assert.NoError(t, err)
			req.Header.Set("X-Tenant", "acme")
			assert.NoError(t, send(client, req))
		}
	}))
	require.NoError(t, get(graytag.NewContext(context.Background(), graytag.MustParse("channel=app")), newClient(t, reg), "http://"+order+"/"))
	assert.Equal(t, "channel=app;lane.inventory=acme;version.inventory=v2", inventory.one(t).tag.String())
	assert.Equal(t, "channel=app", user.one(t).tag.String())
}

func TestRulesBehindATransportOfOnesOwn(t *testing.T) {
	var rec recorder
	address := serveBare(t, &rec)
	provider, sum := meter(t)
	base := http.DefaultTransport.(*http.Transport).Clone()
	t.Cleanup(base.CloseIdleConnections)
	base.Proxy = func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: address}, nil } // whatever the name
	client := &http.Client{Transport: wrap(t, base, grayhttp.WithRules(newEngine(t, hops), "order"), grayhttp.WithMeterProvider(provider))}
	for url, want := range map[string]string{
		"http://inventory/":             "lane.inventory=acme;version.inventory=v2",
		"http://inventory:8080/":        "lane.inventory=acme;version.inventory=v2",
		"http://inventory.prod.svc/":    "",
		"http://inventory.example.com/": "",
		"http://user/":                  "",
	} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header.Set("X-Tenant", "acme")
		require.NoError(t, send(client, req))
		got := rec.one(t)
		assert.Equal(t, want, got.header.Get("X-Gray-Tag"), url)
		assert.Equal(t, want != "", got.header.Get("Baggage") != "", url)
	}
	assert.Equal(t, int64(4), sum("graylane.propagation.orphans")[""], "decided or not, the calls belong to no request")

	// Rules that are missing are none.
	client = &http.Client{Transport: wrap(t, base, grayhttp.WithRules(nil, "order"))}
	require.NoError(t, get(tagged(), client, "http://inventory/"))
	assert.Equal(t, tag.String(), rec.one(t).header.Get("X-Gray-Tag"))
}

// A redirect is a call to another target.
func TestRulesFollowARedirect(t *testing.T) {
	reg := memory.New()
	var rec recorder
	register(t, reg, "inventory", "i1", "", serve(t, &rec))
	register(t, reg, "inventory", "i2", "v2", serve(t, http.RedirectHandler("http://user/", http.StatusFound)))
	register(t, reg, "user", "u1", "", serve(t, &rec))
	client := newClient(t, reg, grayhttp.WithRules(newEngine(t, hops), "order"))
	req, err := http.NewRequestWithContext(graytag.NewContext(context.Background(), graytag.Tag{}), http.MethodGet, "http://inventory/", nil)
	require.NoError(t, err)
	req.Header.Set("X-Tenant", "acme")
	require.NoError(t, send(client, req))
	got := rec.one(t)
	assert.Equal(t, "user", got.host)
	assert.True(t, got.tag.IsZero())
}
