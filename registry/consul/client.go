package consul

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// clients are the ways to talk to one agent, with connections of their own.
type clients struct {
	catalog *api.Client // watches of services
	kv      *api.Client // all else: requests that must not wait for a dead connection
	address string      // of the agent, for messages
	token   bool        // whether requests carry one
	ns      string      // Consul's namespace and partition, "" for the default
	part    string
	idle    func() // closes the idle connections of both
	idleKV  func() // closes those of kv
}

const (
	// pingAfter is after which silence an HTTP/2 connection is asked for a sign of
	// life, and pingTimeout how long that may take.
	pingAfter   = 5 * time.Second
	pingTimeout = 5 * time.Second
)

// newClients returns clients for cfg.
func newClients(cfg *api.Config) (*clients, error) {
	if cfg == nil {
		cfg = api.DefaultConfig()
	}
	// api.NewClient fills in what it is given, TLS into the transport included.
	c := *cfg
	if c.Transport != nil {
		c.Transport = copyTransport(c.Transport)
	}
	// The first client only settles address, scheme, TLS and environment.
	if _, err := api.NewClient(&c); err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	if i := strings.LastIndexByte(c.Address, '@'); i >= 0 && !strings.HasPrefix(c.Address, "/") {
		// api.Client would look the whole of it up as a host name, and tell it to
		// everybody in the error.
		return nil, fmt.Errorf("consul: address …%s holds a user: expected host:port, and the user in HttpAuth", c.Address[i:])
	}
	hc := *c.HttpClient
	// Requests have deadlines that fit what they ask: these limits would cut
	// blocking queries off.
	hc.Timeout = 0
	base, kv := hc.Transport, hc.Transport
	if base == nil {
		base, kv = http.DefaultTransport, http.DefaultTransport
	}
	idle, idleKV := func() {}, func() {}
	if t, ok := base.(*http.Transport); ok {
		t = t.Clone()
		t.ResponseHeaderTimeout = 0
		// Towards the agent of the same machine compression costs time on both
		// sides and saves nothing.
		t.DisableCompression = t.DisableCompression || loopback(c.Address)
		// With HTTP/1 a request that is given up takes its connection with it. With
		// HTTP/2, which agents speak over TLS, the next one would go into the same
		// connection, dead or not. Watches may share one all the same: there may be
		// more of them than connections that the agent allows. Pings find out when it
		// is dead.
		t1 := t.Clone()
		t1.Protocols = new(http.Protocols)
		t1.Protocols.SetHTTP1(true)
		t1.TLSNextProto = nil
		if c := t1.TLSClientConfig; c != nil { // Clone has put it in
			c.NextProtos = slices.DeleteFunc(slices.Clone(c.NextProtos), func(p string) bool { return p == "h2" })
		}
		if t.HTTP2 == nil {
			t.HTTP2 = new(http.HTTP2Config)
		}
		t.HTTP2.SendPingTimeout = cmp.Or(t.HTTP2.SendPingTimeout, pingAfter)
		t.HTTP2.PingTimeout = cmp.Or(t.HTTP2.PingTimeout, pingTimeout)
		base, kv = t, t1
		idleKV = t1.CloseIdleConnections
		idle = func() {
			t.CloseIdleConnections()
			t1.CloseIdleConnections()
		}
	}
	s := &clients{address: c.Address, token: c.Token != "", ns: c.Namespace, part: c.Partition, idle: idle, idleKV: idleKV}
	var err error
	if s.catalog, err = withTransport(c, hc, base); err != nil {
		return nil, err
	}
	if s.kv, err = withTransport(c, hc, kv); err != nil {
		return nil, err
	}
	return s, nil
}

// copyTransport copies a transport that may be unused so far. Its Clone would give
// it, and the copy, a TLS configuration then, and api.NewClient fills in the one
// of api.Config only where there is none.
func copyTransport(t *http.Transport) *http.Transport {
	if t.TLSClientConfig != nil {
		return t.Clone()
	}
	c := new(http.Transport)
	from, to := reflect.ValueOf(t).Elem(), reflect.ValueOf(c).Elem()
	for _, f := range reflect.VisibleFields(from.Type()) {
		if f.IsExported() {
			to.FieldByIndex(f.Index).Set(from.FieldByIndex(f.Index))
		}
	}
	return c
}

// withTransport returns a client for c that sends through t.
func withTransport(c api.Config, hc http.Client, t http.RoundTripper) (*api.Client, error) {
	hc.Transport = transport{t}
	c.HttpClient = &hc
	client, err := api.NewClient(&c)
	if err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	return client, nil
}

// loopback reports whether the address of an agent, host:port or the path of a
// Unix socket, is on this machine.
func loopback(address string) bool {
	if strings.HasPrefix(address, "/") {
		return true
	}
	host := address
	if h, _, err := net.SplitHostPort(address); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// transport makes api.Client read all headers of an answer: without
// X-Consul-LastContact, which a proxy or an older agent may leave out, it stops
// before the one that says that ACLs have filtered the answer.
type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.base.RoundTrip(r)
	if err == nil && resp.Header.Get("X-Consul-LastContact") == "" {
		resp.Header.Set("X-Consul-LastContact", "0")
	}
	return resp, err
}

// unsent reports whether err says that no request has reached Consul: there is no
// connection, or one side has refused the certificate of the other.
func unsent(err error) bool {
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return true
	}
	var op *net.OpError
	// The alerts that a server sends for what a client shows, or does not.
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate"))
}

// maxErrorLen bounds the text of an error, in bytes: it may hold the body of an
// answer, the HTML page of a proxy for instance.
const maxErrorLen = 512

// opError says what was tried, and which Consul was asked.
type opError struct {
	op      string
	address string
	err     error
}

func (r *Registry) errorf(err error, format string, args ...any) error {
	// The address is in the message already.
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if strings.Contains(err.Error(), "client conn could not be established") {
		err = fmt.Errorf("%w: it was closed at once, as agents do that refuse a client's certificate", err)
	}
	return &opError{op: fmt.Sprintf(format, args...), address: r.address, err: err}
}

func (e *opError) Error() string {
	text := e.err.Error()
	if len(text) > maxErrorLen {
		text = text[:maxErrorLen] + "…"
	}
	return fmt.Sprintf("consul: %s at %s: %s", e.op, e.address, text)
}

func (e *opError) Unwrap() error { return e.err }
