package grayhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry/memory"
)

func TestH1_TheContextIsTheOnlyTruth(t *testing.T) {
	var rec recorder
	address := serveBare(t, &rec)
	client := &http.Client{Transport: newTransport(t)}
	req, err := http.NewRequest(http.MethodGet, "http://"+address+"/", nil)
	require.NoError(t, err)
	req.Header.Set("X-Own", "1")
	before := req.Header.Clone()

	require.NoError(t, send(client, req.WithContext(tagged())))
	got := rec.one(t)
	assert.Equal(t, tag.String(), got.header.Get(graytag.Header))
	assert.Equal(t, tagMembers(tag), members(t, got.header["Baggage"]))
	assert.Equal(t, before, req.Header, "the caller's header is untouched")

	untagged := graytag.NewContext(context.Background(), graytag.Tag{})
	require.NoError(t, send(client, req.WithContext(untagged)))
	got = rec.one(t)
	assert.NotContains(t, got.header, graytag.Header)
	assert.NotContains(t, got.header, "Baggage")
	assert.Equal(t, "1", got.header.Get("X-Own"))

	// A header that was written into by hand, or kept, is stale.
	req.Header.Set(graytag.Header, "version=v1")
	req.Header.Set("Baggage", "gray.version=v1,tenant=7")
	before = req.Header.Clone()
	require.NoError(t, send(client, req.WithContext(untagged)))
	got = rec.one(t)
	assert.NotContains(t, got.header, graytag.Header)
	assert.Equal(t, map[string]string{"tenant": "7"}, members(t, got.header["Baggage"]))
	require.NoError(t, send(client, req.WithContext(tagged())))
	got = rec.one(t)
	assert.Equal(t, []string{tag.String()}, got.header[graytag.Header])
	assert.Equal(t, with(tagMembers(tag), "tenant", "7"), members(t, got.header["Baggage"]))
	assert.Equal(t, before, req.Header)
}

func TestH1_GoroutinesShareOneHeader(t *testing.T) {
	var rec recorder
	address := serve(t, &rec)
	client := &http.Client{Transport: newTransport(t)}
	shared := http.Header{"X-Shared": make([]string, 1, 8), "Baggage": {"tenant=7"}}
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			ctx := graytag.NewContext(context.Background(), graytag.MustParse(fmt.Sprintf("version=v%d", i)))
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
			assert.NoError(t, err)
			req.Header = shared
			assert.NoError(t, send(client, req))
		})
	}
	wg.Wait()
	versions := map[string]bool{}
	for _, s := range rec.take() {
		versions[s.tag.Get("version")] = true
	}
	assert.Len(t, versions, 100, "each its own tag")
	assert.Equal(t, http.Header{"X-Shared": {""}, "Baggage": {"tenant=7"}}, shared)
}

// Keys as they come out of gRPC metadata, or out of a map of somebody's: net/http
// sends them as they stand.
func TestH1_KeysInOddCase(t *testing.T) {
	var rec recorder
	client := &http.Client{Transport: newTransport(t)}
	odd := func() http.Header {
		return http.Header{
			"x-gray-tag": {"version=v9"}, "X-GRAY-TAG": {"version=v8"}, graytag.Header: {"version=v7"},
			"baggage": {"gray.version=v9,tenant=7"}, "BAGGAGE": {"gray.uid=9,city=sh"}, "x-own": {"1"},
		}
	}
	below := roundTripper(func(r *http.Request) (*http.Response, error) {
		rec.record(r)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	theirs := map[string]string{"tenant": "7", "city": "sh"}
	for name, to := range map[string]struct {
		client *http.Client
		url    string
	}{
		"over the wire": {client, "http://" + serveBare(t, &rec)},
		"below us":      {&http.Client{Transport: wrap(t, below)}, "http://inventory/"},
		"withheld":      {&http.Client{Transport: wrap(t, below)}, "http://" + offsite},
	} {
		for _, ctx := range []context.Context{tagged(), graytag.NewContext(context.Background(), graytag.Tag{}), context.Background()} {
			want := graytag.FromContext(ctx)
			switch {
			case name == "withheld":
				want = graytag.Tag{}
			case !graytag.InScope(ctx): // several headers that differ, so the next carrier is asked
				want = graytag.MustParse("uid=9;version=v9")
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.url, nil)
			require.NoError(t, err)
			req.Header = odd()
			require.NoError(t, send(to.client, req), name)
			assert.Equal(t, odd(), req.Header, "the caller's header is his")
			got := rec.one(t)
			assert.Equal(t, want.String(), strings.Join(got.header[graytag.Header], " and "), name)
			for key := range got.header {
				assert.NotContains(t, []string{"x-gray-tag", "X-GRAY-TAG", "baggage", "BAGGAGE"}, key, name)
			}
			sent := members(t, got.header["Baggage"])
			assert.Equal(t, tagMembers(want), ours(sent), name)
			for k, v := range theirs {
				assert.Equal(t, v, sent[k], name)
			}
		}
	}

	// Alone, and of a request that belongs to no other: a tag put there by hand.
	req, err := http.NewRequest(http.MethodGet, "http://"+serve(t, &rec), nil)
	require.NoError(t, err)
	req.Header = http.Header{"x-gray-tag": {tag.String()}}
	require.NoError(t, send(client, req))
	assert.True(t, rec.one(t).tag.Equal(tag))
	req.URL.Host = "other.example.com"
	require.NoError(t, send(&http.Client{Transport: wrap(t, below)}, req))
	assert.Empty(t, rec.one(t).header)
}

// ours are the members of a tag among all.
func ours(all map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range all {
		if strings.HasPrefix(k, graytag.MemberPrefix) {
			own[k] = v
		}
	}
	return own
}

func TestH2_WrappedTwiceWithOTelOnTop(t *testing.T) {
	var rec recorder
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: otelTransport(wrap(t, wrap(t, base)))}
	next := "http://" + serveBare(t, otelHandler(mustHandler(t, mustHandler(t, &rec))))
	for range 2 { // the hops in the middle
		to := next
		next = "http://" + serveBare(t, otelHandler(mustHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec.record(r)
			assert.NoError(t, get(r.Context(), client, to))
		}))))
	}
	require.NoError(t, get(withMember(t, tagged(), "tenant", "7"), client, next))
	all := rec.take()
	require.Len(t, all, 3)
	for _, s := range all {
		assert.Equal(t, []string{tag.String()}, s.header[graytag.Header])
		assert.Equal(t, with(tagMembers(tag), "tenant", "7"), members(t, s.header["Baggage"]))
	}
}

func mustHandler(t testing.TB, h http.Handler, opts ...grayhttp.HandlerOption) http.Handler {
	wrapped, err := grayhttp.NewHandler(h, opts...)
	require.NoError(t, err)
	return wrapped
}

// offsite is the name of a host outside the outbound scope.
const offsite = "shop.example.com"

// dialTo makes a base that reaches address under the name offsite.
func dialTo(t testing.TB, address string) *http.Transport {
	base := &http.Transport{Proxy: func(r *http.Request) (*url.URL, error) {
		if r.URL.Hostname() == offsite {
			return &url.URL{Scheme: "http", Host: address}, nil
		}
		return nil, nil
	}}
	t.Cleanup(base.CloseIdleConnections)
	return base
}

func TestH3_RedirectsOutOfTheScope(t *testing.T) {
	for name, chain := range map[string]func(base http.RoundTripper, opts ...grayhttp.TransportOption) http.RoundTripper{
		"alone": func(b http.RoundTripper, o ...grayhttp.TransportOption) http.RoundTripper { return wrap(t, b, o...) },
		"otelhttp inside": func(b http.RoundTripper, o ...grayhttp.TransportOption) http.RoundTripper {
			return wrap(t, otelTransport(b), o...)
		},
		"otelhttp outside": func(b http.RoundTripper, o ...grayhttp.TransportOption) http.RoundTripper {
			return otelTransport(wrap(t, b, o...))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var outside, inside recorder
			base := dialTo(t, serveBare(t, &outside))
			last := serve(t, &inside)
			first := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				inside.record(r)
				to := "http://" + offsite + "/pay"
				if r.URL.Path == "/inside" {
					to = "http://" + last + "/"
				}
				http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			}))
			logger, log := textLogger()
			provider, sum := meter(t)
			client := &http.Client{Transport: chain(base, grayhttp.WithLogger(logger), grayhttp.WithMeterProvider(provider))}
			ctx := withMember(t, tagged(), "tenant", "7")

			for range 3 {
				require.NoError(t, get(ctx, client, "http://"+first+"/"))
				assert.Equal(t, tag.String(), inside.one(t).header.Get(graytag.Header))
				got := outside.one(t)
				assert.Equal(t, offsite, got.host)
				assert.NotContains(t, got.header, graytag.Header)
				assert.Equal(t, map[string]string{"tenant": "7"}, members(t, got.header["Baggage"]))
			}
			assert.Equal(t, map[string]int64{"host": 3}, sum("graylane.propagation.withheld", "reason"), "counted every time")
			assert.Equal(t, 1, strings.Count(log.String(), offsite), "logged once")
			assert.NotContains(t, log.String(), "10086")

			// The caller's own header goes the same way as the tag.
			req, err := http.NewRequest(http.MethodGet, "http://"+first+"/", nil)
			require.NoError(t, err)
			req.Header.Set(graytag.Header, tag.String())
			req.Header.Set("Baggage", "gray.version=v2.1.0")
			require.NoError(t, send(client, req))
			assert.Equal(t, tag.String(), inside.one(t).header.Get(graytag.Header))
			got := outside.one(t)
			assert.NotContains(t, got.header, graytag.Header)
			assert.NotContains(t, got.header, "Baggage")

			require.NoError(t, get(ctx, client, "http://"+first+"/inside"))
			all := inside.take()
			require.Len(t, all, 2)
			for _, s := range all {
				assert.True(t, s.tag.Equal(tag), "a redirect inside keeps the tag")
			}
		})
	}
}

// Out of the scope and back: what is outside sees nothing, what is inside the tag
// that the request has, not what somebody outside sent along.
func TestH3_OutAndBackInside(t *testing.T) {
	var outside, inside recorder
	last := serve(t, &inside)
	base := dialTo(t, serveBare(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		outside.record(r)
		w.Header().Set(graytag.Header, "version=v9")
		w.Header().Set("Baggage", "gray.version=v9")
		http.Redirect(w, r, "http://"+last+"/", http.StatusTemporaryRedirect)
	})))
	first := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside.record(r)
		http.Redirect(w, r, "http://"+offsite+"/pay", http.StatusTemporaryRedirect)
	}))
	byHand := func() *http.Request {
		req, err := http.NewRequest(http.MethodPost, "http://"+first+"/", strings.NewReader("body"))
		require.NoError(t, err)
		req.Header[strings.ToLower(graytag.Header)] = []string{tag.String()}
		return req
	}
	inContext, err := http.NewRequestWithContext(tagged(), http.MethodPost, "http://"+first+"/", strings.NewReader("body"))
	require.NoError(t, err)
	untagged := byHand().WithContext(graytag.NewContext(context.Background(), graytag.Tag{}))
	for name, chain := range map[string]http.RoundTripper{
		"alone":            wrap(t, base),
		"otelhttp inside":  wrap(t, otelTransport(base)),
		"otelhttp outside": otelTransport(wrap(t, base)),
		"both":             otelTransport(wrap(t, otelTransport(base))),
	} {
		for _, c := range []struct {
			req  *http.Request
			want string
		}{{inContext, tag.String()}, {byHand(), tag.String()}, {untagged, ""}} {
			req := c.req.Clone(c.req.Context())
			req.Body, _ = c.req.GetBody()
			require.NoError(t, send(&http.Client{Transport: chain}, req), name)
			all := inside.take()
			require.Len(t, all, 2, name)
			assert.Equal(t, c.want, all[0].tag.String(), name)
			assert.Equal(t, c.want, all[1].tag.String(), name)
			got := outside.one(t)
			for key, values := range got.header {
				for _, v := range append(values, key) {
					assert.NotContains(t, strings.ToLower(v), "gray", "%s: %s", name, key)
				}
			}
		}
	}
}

func TestH3_RedirectFromAService(t *testing.T) {
	var outside, inside recorder
	reg := memory.New()
	base := dialTo(t, serveBare(t, &outside))
	register(t, reg, "order", "o1", "v2.1.0", serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inside.record(r)
		to := map[string]string{"/": "http://" + offsite + "/pay", "/next": "http://inventory/", "/local": "relative"}[r.URL.Path]
		if to != "" {
			http.Redirect(w, r, to, http.StatusFound)
		}
	})))
	register(t, reg, "inventory", "i1", "", serve(t, &inside))
	client := newClient(t, reg, grayhttp.WithBalancer(httplb.WithBase(base)))
	require.NoError(t, get(tagged(), client, "http://order/"))
	assert.True(t, inside.one(t).tag.Equal(tag))
	got := outside.one(t)
	assert.NotContains(t, got.header, graytag.Header)
	assert.NotContains(t, got.header, "Baggage")
	for path, host := range map[string]string{"/next": "inventory", "/local": "order"} {
		require.NoError(t, get(tagged(), client, "http://order"+path))
		all := inside.take()
		require.Len(t, all, 2)
		assert.Equal(t, host, all[1].host)
		assert.True(t, all[1].tag.Equal(tag))
	}
	// An address in place of a service.
	var direct recorder
	require.NoError(t, get(tagged(), client, "http://"+serve(t, &direct)))
	assert.True(t, direct.one(t).tag.Equal(tag))
}

func TestH3_WhatIsWithheldIsNotInTheContextEither(t *testing.T) {
	var below recorder
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		below.record(r)
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	client := &http.Client{Transport: wrap(t, base, grayhttp.WithInjectTo(func(host string) bool { return host == "partner.example.com" }))}
	ctx := withMember(t, tagged(), "tenant", "7")
	require.NoError(t, get(ctx, client, "https://"+offsite+":8443/"))
	got := below.one(t)
	assert.True(t, got.tag.IsZero())
	assert.Equal(t, 1, baggage.FromContext(got.ctx).Len())
	assert.Equal(t, "v2.1.0", baggage.FromContext(ctx).Member("gray.version").Value(), "the caller's context is as it was")

	for _, inside := range []string{"partner.example.com", "inventory", "inventory.svc", "a.cluster.local", "10.1.2.3:80", "[::1]:80", "localhost"} {
		require.NoError(t, get(ctx, client, "http://"+inside+"/"))
		assert.True(t, below.one(t).tag.Equal(tag), inside)
	}
	require.NoError(t, get(context.Background(), client, "https://"+offsite+"/"))
	assert.Empty(t, below.one(t).header)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestH3_ManyHostsAreLoggedWithABound(t *testing.T) {
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
	})
	logger, log := textLogger()
	client := &http.Client{Transport: wrap(t, base, grayhttp.WithLogger(logger))}
	for i := range 2000 {
		require.NoError(t, get(tagged(), client, fmt.Sprintf("http://h%d.example.com/", i)))
	}
	assert.LessOrEqual(t, strings.Count(log.String(), "\n"), 300)
}

func TestH4_OddValuesNeverFailTheCall(t *testing.T) {
	var rec recorder
	client := &http.Client{Transport: newTransport(t)}
	url := "http://" + serve(t, &rec)
	for _, v := range []string{"a\r\nX-Evil: 1", "a\tb", "a\x00b"} {
		_, err := graytag.New(map[string]string{"note": v})
		require.Error(t, err, "%q", v)
	}
	for _, v := range []string{"灰度发布", "a ", " a", "a;b=c,d\"e%", "ü", strings.Repeat("é", 100)} {
		made, err := graytag.New(map[string]string{"note": v})
		require.NoError(t, err)
		require.NoError(t, get(graytag.NewContext(context.Background(), made), client, url))
		got := rec.one(t)
		assert.Equal(t, v, got.tag.Get("note"))
		assert.NotContains(t, got.header, "X-Evil")
	}
	// What somebody wrote into the header by hand, and is no tag.
	for _, v := range []string{"version", "a\r\nX-Evil: 1", "version=%ff", strings.Repeat("a", 3000)} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header[graytag.Header] = []string{v}
		require.NoError(t, send(client, req), "%q", v)
		got := rec.one(t)
		assert.True(t, got.tag.IsZero())
		assert.NotContains(t, got.header, graytag.Header)
	}
	// And what somebody else sent.
	for _, v := range []string{"version", "version=%ff", strings.Repeat("a", 3000), "\x01"[:0] + ";;=", "灰度=\xff"} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		require.NoError(t, err)
		req.Header[graytag.Header] = []string{v}
		require.NoError(t, send(&http.Client{Transport: plain(t)}, req), "%q", v)
		got := rec.one(t)
		assert.True(t, got.tag.IsZero())
		assert.True(t, got.scope, "untagged, and known to be")
	}
}

func plain(t testing.TB) *http.Transport {
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	return base
}

func TestRequestsWithoutScope(t *testing.T) {
	var rec recorder
	reg := memory.New()
	register(t, reg, "inventory", "s1", "", serve(t, &rec))
	var gray recorder
	register(t, reg, "inventory", "g1", "v2.1.0", serve(t, &gray))
	provider, sum := meter(t)
	client := newClient(t, reg, grayhttp.WithMeterProvider(provider), grayhttp.WithExempt("/healthz"))

	require.NoError(t, get(context.Background(), client, "http://inventory/"))
	assert.NotContains(t, rec.one(t).header, graytag.Header)
	assert.Equal(t, map[string]int64{"": 1}, sum("graylane.propagation.orphans"))
	require.NoError(t, get(context.Background(), client, "http://inventory/healthz"))
	require.NoError(t, get(graytag.NewContext(context.Background(), graytag.Tag{}), client, "http://inventory/"))
	rec.take()
	assert.Equal(t, map[string]int64{"": 1}, sum("graylane.propagation.orphans"), "untagged is not lost")

	// A header of the caller's own is kept, and the request is routed by it.
	req, err := http.NewRequest(http.MethodGet, "http://inventory/", nil)
	require.NoError(t, err)
	req.Header.Set(graytag.Header, "version=v2.1.0")
	require.NoError(t, send(client, req))
	assert.Equal(t, "version=v2.1.0", gray.one(t).header.Get(graytag.Header))
	assert.Equal(t, map[string]int64{"": 1}, sum("graylane.propagation.orphans"))

	// A background job of a gray service.
	job := newClient(t, reg, grayhttp.WithDefaultTag(tag))
	require.NoError(t, get(context.Background(), job, "http://inventory/"))
	assert.True(t, gray.one(t).tag.Equal(tag))
	require.NoError(t, get(graytag.NewContext(context.Background(), graytag.Tag{}), job, "http://inventory/"))
	assert.True(t, rec.one(t).tag.IsZero(), "a request that is known to be untagged stays so")
	require.NoError(t, send(job, req))
	assert.Equal(t, "version=v2.1.0", gray.one(t).header.Get(graytag.Header), "the caller knows better than the default")
}

func TestCompatibilityFormatsThroughBothSides(t *testing.T) {
	p, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"))
	require.NoError(t, err)
	var rec recorder
	url := "http://" + serve(t, &rec, grayhttp.WithPropagator(p))
	require.NoError(t, get(tagged(), &http.Client{Transport: newTransport(t, grayhttp.WithPropagator(p))}, url))
	assert.Equal(t, "v2.1.0", rec.one(t).header.Get("X-Gray-Version"))
	req, err := http.NewRequest(http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("X-Gray-Version", "v3")
	require.NoError(t, send(&http.Client{Transport: plain(t)}, req))
	assert.Equal(t, "v3", rec.one(t).tag.Get("version"))
}

func TestTransportLeavesBadRequestsToItsBase(t *testing.T) {
	_, err := newTransport(t).RoundTrip(&http.Request{})
	require.ErrorContains(t, err, "nil Request.URL")
	client := &http.Client{Transport: newTransport(t)}
	req := (&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: serveBare(t, &recorder{})}}).WithContext(tagged())
	require.NoError(t, send(client, req), "a header that is nil")
	assert.Nil(t, req.Header.Values(graytag.Header))
}
