package consultest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Certificates are PEM files of a certificate authority of their own, and of a
// server and a client that it vouches for.
type Certificates struct {
	CA                    string
	ServerCert, ServerKey string
	ClientCert, ClientKey string
}

// NewCertificates makes an authority, a certificate for a Consul server at
// 127.0.0.1, and one for its clients. They are gone when the test ends.
func NewCertificates(t testing.TB) Certificates {
	t.Helper()
	dir := t.TempDir()
	ca, caKey := authority(t)
	c := Certificates{CA: filepath.Join(dir, "ca.pem")}
	writePEM(t, c.CA, "CERTIFICATE", ca.Raw)
	issue := func(name string, template *x509.Certificate) (cert, key string) {
		own := newKey(t)
		template.SerialNumber, template.NotBefore, template.NotAfter = serial(t), ca.NotBefore, ca.NotAfter
		template.KeyUsage = x509.KeyUsageDigitalSignature
		der, err := x509.CreateCertificate(rand.Reader, template, ca, own.Public(), caKey)
		if err != nil {
			t.Fatalf("consultest: %v", err)
		}
		keyDER, err := x509.MarshalPKCS8PrivateKey(own)
		if err != nil {
			t.Fatalf("consultest: %v", err)
		}
		cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+"-key.pem")
		writePEM(t, cert, "CERTIFICATE", der)
		writePEM(t, key, "PRIVATE KEY", keyDER)
		return cert, key
	}
	c.ServerCert, c.ServerKey = issue("server", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "server.dc1.consul"},
		DNSNames:    []string{"server.dc1.consul", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		// Servers are clients of each other.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	c.ClientCert, c.ClientKey = issue("client", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "client"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return c
}

// TLSConfig returns what a client needs.
func (c Certificates) TLSConfig() api.TLSConfig {
	return api.TLSConfig{CAFile: c.CA, CertFile: c.ClientCert, KeyFile: c.ClientKey}
}

// agent returns the tls part of a server's configuration: every client has to show
// a certificate.
func (c Certificates) agent() map[string]any {
	return map[string]any{
		"defaults": map[string]any{
			"ca_file": c.CA, "cert_file": c.ServerCert, "key_file": c.ServerKey,
			"verify_incoming": true, "verify_outgoing": true,
		},
		"internal_rpc": map[string]any{"verify_server_hostname": true},
	}
}

func authority(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber:          serial(t),
		Subject:               pkix.Name{CommonName: "graylane test CA"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatalf("consultest: %v", err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatalf("consultest: %v", err)
	}
	return ca, key
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("consultest: %v", err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatalf("consultest: %v", err)
	}
	return n
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatalf("consultest: %v", err)
	}
}
