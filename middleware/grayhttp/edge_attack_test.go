package grayhttp_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
)

// CGI, and all that learned from it (RFC 3875, section 4.1.18), make '_' of '-' in the
// names of headers: to a service in Python or PHP X_Gray_Tag is X-Gray-Tag.
func TestW1_UnderscoresAreNoWayRound(t *testing.T) {
	provider, sum := meter(t)
	var rec recorder
	address := serveBare(t, enter(t, newEngine(t, testers), &rec,
		grayhttp.WithMeterProvider(provider), grayhttp.WithPropagator(compatible(t))))
	exchange(t, address, "GET / HTTP/1.1", "X_Gray_Tag: version=v2", "x-gray_tag: version=v2", "X_GRAY_TRACE: 1",
		"X_Gray_Version: v2", "X_Canary: canary", "X_Grey_Tag: mine", "Connection: keep-alive, X_Gray_Tag")
	got := rec.one(t).header
	for name := range got {
		assert.NotContains(t, []string{"X-Gray-Tag", "X-Gray-Trace", "X-Gray-Version", "X-Canary"},
			http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-")))
	}
	assert.Equal(t, []string{"mine"}, got["X_grey_tag"])
	assert.Equal(t, []string{"keep-alive, close"}, got["Connection"])
	assert.Equal(t, map[string]int64{"header": 1, "compatibility": 1, "trace": 1}, sum("graylane.edge.forged", "carrier"))
}

// What others carry metadata and baggage in ends up where a tag is looked for: OTel's
// propagators for OpenTracing and Jaeger put these into the baggage of a context,
// grpc-gateway makes metadata of them.
func TestW1_OtherCarriersAreNoWayRound(t *testing.T) {
	provider, sum := meter(t)
	var rec recorder
	address := serveBare(t, enter(t, newEngine(t, testers), &rec, grayhttp.WithMeterProvider(provider), grayhttp.WithPropagator(compatible(t))))
	exchange(t, address, "GET / HTTP/1.1", "ot-baggage-gray.version: v2", "Uberctx-Gray.uid: 1", "baggage-gray.version: v2", "baggage_gray.version: v2",
		"jaeger-baggage: gray.version=v2, tenant=acme", "Grpc-Metadata-X-Gray-Tag: version=v2", "grpc-metadata-x-gray-version: v2",
		"Grpc-Metadata-Baggage: gray.version=v2,tenant=acme", "ot-baggage-tenant: acme", "uberctx-tenant: acme", "Grpc-Metadata-Tenant: acme")
	got := rec.one(t).header
	for name, values := range got {
		assert.NotContains(t, strings.ToLower(name), "gray", values)
		assert.NotContains(t, strings.Join(values, ","), "gray", name)
	}
	for _, name := range []string{"Ot-Baggage-Tenant", "Uberctx-Tenant", "Grpc-Metadata-Tenant"} {
		assert.Equal(t, []string{"acme"}, got[name], name)
	}
	for _, name := range []string{"Jaeger-Baggage", "Grpc-Metadata-Baggage"} {
		assert.Equal(t, "tenant=acme", strings.TrimSpace(got.Get(name)), name)
	}
	assert.Equal(t, map[string]int64{"header": 1, "baggage": 1, "compatibility": 1}, sum("graylane.edge.forged", "carrier"))
	exchange(t, address, "GET / HTTP/1.1", "Jaeger-Baggage: tenant=acme", "Grpc-Metadata-Baggage: tenant=acme", "X_Other: 1", "Baggage-Tenant: acme")
	rec.one(t)
	assert.Equal(t, int64(1), sum("graylane.edge.forged", "carrier")["baggage"], "what is not ours is no forgery")
}

// Trailers are headers to whoever merges them, and to whoever hands them on.
func TestW1_TrailersAreNoWayRound(t *testing.T) {
	provider, sum := meter(t)
	trailers := make(chan [2]http.Header, 1)
	address := serveBare(t, enter(t, newEngine(t, testers), http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		before := r.Trailer.Clone()
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "body", string(body))
		trailers <- [2]http.Header{before, r.Trailer.Clone()}
	}), grayhttp.WithMeterProvider(provider), grayhttp.WithPropagator(compatible(t))))
	for _, announced := range []string{"X-Gray-Tag, X_Gray_Version, Baggage, X-Checksum", "X-Checksum"} {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: shop\r\nTransfer-Encoding: chunked\r\nTrailer: "+announced+"\r\nConnection: close\r\n\r\n"+
			"4\r\nbody\r\n0\r\nX-Gray-Tag: version=v2\r\nX_gray_version: v2\r\nbaggage: gray.version=v2,tenant=acme\r\nX-Checksum: 12\r\n\r\n")
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.NoError(t, conn.Close())
		got := <-trailers
		assert.Equal(t, http.Header{"X-Checksum": nil}, got[0], announced)
		assert.Equal(t, http.Header{"X-Checksum": {"12"}}, got[1], announced)
	}
	assert.Equal(t, map[string]int64{"header": 1, "baggage": 1, "compatibility": 1}, sum("graylane.edge.forged", "carrier"), "what is announced")
}

// A compatibility format may have any name: a short one, one with '_', which CGI takes
// for '-', too, and one that a handler outside has spelled as it liked.
func TestW1_FormatsOfAnyNameAreNoWayRound(t *testing.T) {
	provider, sum := meter(t)
	formats, err := propagation.New(propagation.WithVersionHeader("o_version"), propagation.WithFlagHeader("b_"),
		propagation.WithCanaryHeader("user_canary"), propagation.WithCanaryHeader("x_canary"), propagation.WithFlagHeader("u"), propagation.WithCanaryHeader("Kanarie"))
	require.NoError(t, err)
	var rec recorder
	entrance := enter(t, newEngine(t, testers), &rec, grayhttp.WithMeterProvider(provider), grayhttp.WithPropagator(formats))
	address := serveBare(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if v := r.Header.Get("Kanarie"); v != "" {
			r.Header["kANARIE"] = []string{v}
		}
		entrance.ServeHTTP(w, r)
	}))
	for i, claim := range []string{
		"O_Version: v2", "O-Version: v2", "b_: true", "B-: true", "user_canary: canary", "User-Canary: canary", "X_canary: canary", "X-Canary: canary",
		"u: true", "Kanarie: canary", "Grpc-Metadata-User-Canary: canary",
	} {
		exchange(t, address, "GET / HTTP/1.1", claim)
		assert.Equal(t, http.Header{"Connection": {"close"}}, rec.one(t).header, claim)
		assert.Equal(t, map[string]int64{"compatibility": int64(i + 1)}, sum("graylane.edge.forged", "carrier"), claim)
	}
}
