package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
)

const networkAndGroups = `{"rules": [
		{"id": "network", "match": [{"attr": "ip", "op": "cidr", "values": ["203.0.113.0/24"]}], "tag": "version=v3.0.0"},
		{"id": "groups", "match": [{"attr": "path", "op": "equals", "values": ["/sticky"]}], "percent": 50, "hashBy": ["group"], "tag": "version=v4"}
]}`

func endpoint(t *testing.T, document string, opts ...gateway.ForwardAuthOption) (url string) {
	t.Helper()
	h, err := gateway.ForwardAuth(engine(t, document), append([]gateway.ForwardAuthOption{quiet}, opts...)...)
	require.NoError(t, err)
	return "http://" + serve(t, h)
}

func TestConventions(t *testing.T) {
	const carrying = `{"carry": ["method", "path", "host", "page"], "attributes": {"page": ["query:page"]}}`
	for name, c := range map[string]struct {
		convention gateway.Convention
		path       string
		headers    []string
		want       string
	}{
		"Traefik, Caddy, APISIX": {
			gateway.Forwarded(), "/auth?x=y",
			[]string{"X-Forwarded-Method", "POST", "X-Forwarded-Uri", "/orders/1?page=2", "X-Forwarded-Host", "shop.example", "X-Original-Method", "PUT", "X-Original-URI", "/forged"},
			"host=shop.example;method=POST;page=2;path=/orders/1",
		},
		"nginx": {
			gateway.Nginx(), "/_graylane",
			[]string{"X-Original-Method", "DELETE", "X-Original-URI", "/a%2Fb?page=3", "X-Forwarded-Method", "PUT", "X-Forwarded-Uri", "/forged", "X-Forwarded-Host", "forged"},
			"host=asking.example;method=DELETE;page=3;path=/a/b",
		},
		"ingress-nginx": {
			gateway.IngressNginx(), "/",
			[]string{"X-Original-Method", "GET", "X-Original-URL", "https://shop.example/orders?page=4"},
			"host=shop.example;method=GET;page=4;path=/orders",
		},
		"Envoy": {
			gateway.Envoy("/graylane"), "/graylane/orders?page=5", nil,
			"host=asking.example;method=GET;page=5;path=/orders",
		},
		"Envoy, the root": {
			gateway.Envoy("/graylane/"), "/graylane/?page=6", nil,
			"host=asking.example;method=GET;page=6;path=/",
		},
		"a proxy that adds to what the client sent": {
			gateway.Forwarded(), "/auth",
			[]string{"X-Forwarded-Uri", "/forged", "X-Forwarded-Uri", "/real"},
			"host=asking.example;method=GET;path=/real",
		},
		"nothing is told": {gateway.Forwarded(), "/auth?page=1", nil, "host=asking.example;method=GET;page=1;path=/auth"},
		"a URI that cannot be read": {
			gateway.Forwarded(), "/auth", []string{"X-Forwarded-Uri", "/%zz?page=7", "X-Forwarded-Method", "PUT"},
			"host=asking.example;method=PUT;path=/",
		},
		"a URI that is none": {
			gateway.Forwarded(), "/auth", []string{"X-Forwarded-Uri", "orders"}, "host=asking.example;method=GET;path=/",
		},
	} {
		url := endpoint(t, carrying, gateway.WithConvention(c.convention))
		req, err := http.NewRequest(http.MethodGet, url+c.path, nil)
		require.NoError(t, err)
		req.Host = "asking.example"
		for i := 0; i < len(c.headers); i += 2 {
			req.Header.Add(c.headers[i], c.headers[i+1])
		}
		resp, body := send(t, newClient(t, ""), req)
		assert.Equal(t, http.StatusOK, resp.StatusCode, name)
		assert.Empty(t, body, name)
		assert.Equal(t, c.want, resp.Header.Get(graytag.Header), name)
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"), name)
	}
}

func TestForwardAuthBelievesNoTag(t *testing.T) {
	prop, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"))
	require.NoError(t, err)
	url := endpoint(t, whitelist, gateway.WithPropagator(prop),
		gateway.WithEdge(grayhttp.WithTrustedGateways("127.0.0.0/8"), grayhttp.WithTrustedProxies("127.0.0.1")))
	client := newClient(t, "")
	for claim, headers := range claims {
		resp, _ := get(t, client, url, append([]string{"X-Gray-Version", "v2.1.0"}, headers...)...)
		for _, name := range []string{graytag.Header, "X-Gray-Version"} {
			assert.Equal(t, []string{""}, resp.Header[name], "%s: there, so that it is copied: %s", claim, name)
		}
		want := ""
		if strings.Contains(strings.Join(headers, " "), "tenant=7") {
			want = "tenant=7"
		}
		assert.Equal(t, []string{want}, resp.Header["Baggage"], claim)
		assert.Equal(t, "stable", resp.Header.Get("X-Version"), claim)

		resp, _ = get(t, client, url, append([]string{"X-User-ID", "10086"}, headers...)...)
		assert.Equal(t, []string{grayTag}, resp.Header[graytag.Header], claim)
		assert.Equal(t, []string{"v2.1.0"}, resp.Header["X-Gray-Version"], claim)
		if want != "" {
			want += ","
		}
		assert.Equal(t, []string{want + "gray.channel=app,gray.version=v2.1.0"}, resp.Header["Baggage"], claim)
		assert.Equal(t, "v2.1.0", resp.Header.Get("X-Version"), claim)
	}
}

func TestForwardAuthAnswers(t *testing.T) {
	url := endpoint(t, networkAndGroups, gateway.WithEdge(
		grayhttp.WithTrustedProxies("127.0.0.1"), grayhttp.WithStickyCookie(grayhttp.StickyCookie{})))
	client := newClient(t, "")

	resp, _ := get(t, client, url, "X-Forwarded-For", "203.0.113.7")
	assert.Equal(t, "v3.0.0", resp.Header.Get("X-Version"), "the address that the proxy tells")
	assert.Empty(t, resp.Cookies())

	resp, _ = get(t, client, url, "X-Forwarded-Uri", "/sticky", "X-Forwarded-Proto", "https")
	require.Len(t, resp.Cookies(), 1)
	cookie := resp.Cookies()[0]
	assert.Equal(t, grayhttp.GroupCookie, cookie.Name)
	assert.True(t, cookie.Secure && cookie.HttpOnly)
	assert.Equal(t, cookie.Value, resp.Header.Get("X-Canary-Group"))
	again, _ := get(t, client, url, "X-Forwarded-Uri", "/sticky", "Cookie", cookie.Name+"="+cookie.Value)
	assert.Equal(t, resp.Header.Get("X-Version"), again.Header.Get("X-Version"))
	assert.Empty(t, again.Cookies())

	lane := `{"rules": [{"id": "lane", "services": ["order"], "tag": "version=v2"}]}`
	for service, want := range map[string]string{"order": "v2", "cart": "stable", "": "stable"} {
		resp, _ := get(t, client, endpoint(t, lane, gateway.WithService(service)))
		assert.Equal(t, want, resp.Header.Get("X-Version"), service)
		assert.Equal(t, "version.order=v2", resp.Header.Get(graytag.Header))
	}
}

func TestForwardAuthTellsEnvoyWhatToRemove(t *testing.T) {
	url := endpoint(t, whitelist, gateway.WithConvention(gateway.Envoy("/graylane")))
	resp, _ := get(t, newClient(t, ""), url+"/graylane/x")
	assert.Equal(t, "X-Gray-Tag,Baggage,X-Gray-Trace", resp.Header.Get("X-Envoy-Auth-Headers-To-Remove"))
	resp, _ = get(t, newClient(t, ""), url+"/graylane/x", "X-User-ID", "10086")
	assert.Equal(t, "X-Gray-Trace", resp.Header.Get("X-Envoy-Auth-Headers-To-Remove"))
	resp, _ = get(t, newClient(t, ""), endpoint(t, whitelist))
	assert.NotContains(t, resp.Header, "X-Envoy-Auth-Headers-To-Remove")
}

func TestForwardAuthWrongOptions(t *testing.T) {
	_, err := gateway.ForwardAuth(nil)
	assert.EqualError(t, err, "gateway: engine is nil")
	e := engine(t, whitelist)
	for want, o := range map[string]gateway.ForwardAuthOption{
		`path prefix "x"`:    gateway.WithConvention(gateway.Envoy("x")),
		"WithTrustedProxies": gateway.WithEdge(trustX),
		"without a service":  gateway.WithEdge(grayhttp.WithSelf(registry.Instance{})),
	} {
		h, err := gateway.ForwardAuth(e, o)
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "gateway: ")
		assert.Nil(t, h)
	}
	_, err = gateway.ForwardAuth(e, nil, gateway.WithPropagator(nil))
	assert.NoError(t, err)
}
