package httplb_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
)

// authority signs certificates for names.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &authority{t: t, cert: cert, key: key, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

func (a *authority) certificate(names ...string) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: names,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	require.NoError(a.t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// up starts a TLS server that speaks HTTP/2 too, and returns its address.
func (a *authority) up(c *cluster, id string, names ...string) string {
	srv := httptest.NewUnstartedServer(c.serve(id))
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = discardLog()
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{a.certificate(names...)}}
	srv.StartTLS()
	a.t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func (a *authority) base(h2 bool) *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool}, ForceAttemptHTTP2: h2}
}

func TestHTTPSVerifiesTheNameOfTheService(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		a, c := newAuthority(t), newCluster(t)
		c.register(instance("inventory", "s1", "", a.up(c, "s1", "inventory")))
		lb := c.balancer(httplb.WithBase(a.base(h2)))
		req, err := http.NewRequest(http.MethodGet, "https://inventory/", nil)
		require.NoError(t, err)
		resp, err := lb.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, "s1", resp.Header.Get("Instance"))
		assert.Equal(t, "inventory", resp.Header.Get("Host-Seen"))
		assert.Equal(t, h2, resp.ProtoMajor == 2)
	}
}

func TestHTTPSOverATransportWithoutSettings(t *testing.T) {
	a, c := newAuthority(t), newCluster(t)
	c.register(instance("inventory", "s1", "", a.up(c, "s1", "inventory")))
	base := &http.Transport{}
	_ = base.Clone() // sets HTTP/2 up, as the first request would
	base.TLSClientConfig.RootCAs = a.pool
	lb := c.balancer(httplb.WithBase(base))
	req, err := http.NewRequest(http.MethodGet, "https://inventory/", nil)
	require.NoError(t, err)
	resp, err := lb.RoundTrip(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 2, resp.ProtoMajor, "what base speaks, its clones speak")
}

func TestHTTPSWithAForeignCertificateIsUnavailable(t *testing.T) {
	a, c := newAuthority(t), newCluster(t)
	c.register(instance("inventory", "wrong", "v2", a.up(c, "wrong", "coupon", "127.0.0.1")))
	c.register(instance("inventory", "s1", "", a.up(c, "s1", "inventory")))
	lb := c.balancer(httplb.WithBase(a.base(true)), httplb.WithPolicy(subset.Policy{Strict: true}), httplb.WithCoolOff(time.Hour, time.Hour))
	for range 3 {
		_, err := do(tagged("version=v2"), lb, http.MethodPost, "https://inventory/", newTrackedBody("x"))
		var unavailable *subset.UnavailableError
		require.ErrorAs(t, err, &unavailable)
		var invalid *tls.CertificateVerificationError
		require.ErrorAs(t, err, &invalid)
	}
	assert.Zero(t, c.hit("wrong"))
	id, err := get(tagged(""), lb, "https://inventory/")
	require.NoError(t, err)
	assert.Equal(t, "s1", id)
}

func TestHTTPSHandshakeFailureTriesTheNext(t *testing.T) {
	a, c := newAuthority(t), newCluster(t)
	c.register(instance("inventory", "wrong", "", a.up(c, "wrong", "coupon")))
	c.register(instance("inventory", "s1", "", a.up(c, "s1", "inventory")))
	// One that accepts and hangs up in the middle of a handshake.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	c.register(instance("inventory", "hangup", "", l.Addr().String()))
	lb := c.balancer(httplb.WithBase(a.base(true)), httplb.WithCoolOff(time.Hour, time.Hour))
	for range 20 {
		id, err := do(context.Background(), lb, http.MethodPost, "https://inventory/", newTrackedBody("x"))
		require.NoError(t, err, "nothing was sent: also a POST with a body that exists once goes on")
		assert.Equal(t, "s1", id)
	}
	assert.Zero(t, c.hit("wrong"))
}

func TestAConnectionIsNeverSharedBetweenServices(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		a, c := newAuthority(t), newCluster(t)
		address := a.up(c, "i1", "inventory")
		c.register(instance("inventory", "i1", "", address))
		c.register(instance("coupon", "c1", "", address)) // what a recycled address looks like
		base := a.base(h2)
		t.Cleanup(base.CloseIdleConnections)
		// A base that is in use already, so that it has its HTTP/2 set up.
		resp, err := (&http.Client{Transport: base}).Get("https://" + address + "/")
		require.Error(t, err)
		require.Nil(t, resp)
		lb := c.balancer(httplb.WithBase(base))
		_, err = get(context.Background(), lb, "https://inventory/")
		require.NoError(t, err)
		_, err = get(context.Background(), lb, "https://coupon/")
		var invalid *tls.CertificateVerificationError
		require.ErrorAs(t, err, &invalid, "verified for inventory is not verified for coupon")
		assert.Equal(t, 1, c.hit("i1"))
	}
}

func TestHTTPSDefaultBaseAndExplicitServerName(t *testing.T) {
	a, c := newAuthority(t), newCluster(t)
	c.register(instance("inventory", "s1", "", a.up(c, "s1", "mesh.test")))
	_, err := get(context.Background(), c.balancer(), "https://inventory/")
	var unavailable *subset.UnavailableError
	require.ErrorAs(t, err, &unavailable, "no transport trusts an unknown authority")
	lb := c.balancer(httplb.WithBase(&http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.pool, ServerName: "mesh.test"}}))
	id, err := get(context.Background(), lb, "https://inventory/")
	require.NoError(t, err, "a name that the user set stays")
	assert.Equal(t, "s1", id)
}
