package httplb

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/graylane/graylane/internal/telemetry"
)

// dialTimeout bounds a dial of the default transport, and every probe. An
// instance in the same network that takes longer is as good as down.
const dialTimeout = 3 * time.Second

// defaultTransport is what instances are reached through where no base is given.
// The standard library's keeps two idle connections per host, which suits a
// browser and not a service.
func defaultTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}

// dialError marks an error of a dial: no byte of the request has left.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// checkTransport refuses what cannot be kept apart per service.
func checkTransport(t *http.Transport) error {
	//lint:ignore SA1019 deprecated, and net/http still honours it
	if t.DialTLSContext != nil || t.DialTLS != nil {
		return errors.New("httplb: base transport: DialTLS or DialTLSContext is set, which would verify an instance's address in place of its service's name; set TLSClientConfig")
	}
	return nil
}

// instanceTransport returns the transport for the instances of one service, and
// the dial function beneath it. Every service has its own: the pool of an
// http.Transport is keyed by address, and a TLS connection that was verified for
// one service must not serve another one that has an instance at that address.
// Instances are dialled directly, whatever proxy the environment names. failed is
// told of every dial that fails, also of one whose request has given up by then.
func instanceTransport(base *http.Transport, service string, failed func(address string, err error)) (*http.Transport, dialFunc) {
	t := base.Clone()
	t.Proxy = nil
	if _, ok := t.TLSNextProto["h2"]; ok {
		// An HTTP/2 transport that was put in from outside keeps one pool for
		// every clone; net/http's own keeps one per transport.
		t.TLSNextProto, t.ForceAttemptHTTP2 = nil, true
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{}
	}
	if slices.Contains(t.TLSClientConfig.NextProtos, "h2") {
		// base speaks HTTP/2 of its own accord. A clone offers it too, and does
		// not speak it where it has TLS settings or a dialer, unless it is told.
		t.ForceAttemptHTTP2 = true
	}
	if t.TLSClientConfig.ServerName == "" {
		t.TLSClientConfig.ServerName = service
	}
	dial := dialFunc(t.DialContext)
	if dial == nil {
		//lint:ignore SA1019 deprecated, and net/http still honours it
		if old := t.Dial; old != nil {
			dial = func(_ context.Context, network, address string) (net.Conn, error) { return old(network, address) }
		} else {
			dial = (&net.Dialer{}).DialContext
		}
	}
	//lint:ignore SA1019 deprecated, and net/http would prefer it
	t.Dial = nil
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		telemetry.Unlabel() // a goroutine of net/http's own, which starts those of the connection
		conn, err := dial(ctx, network, address)
		if err != nil {
			failed(address, err)
			return nil, &dialError{err}
		}
		return conn, nil
	}
	return t, dial
}

// prober returns a function that finds out whether an address can be dialled.
func prober(dial dialFunc) func(ctx context.Context, address string) error {
	return func(ctx context.Context, address string) error {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := dial(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// errHTTPS says why https fails over a base that is not an *http.Transport.
func errHTTPS(base http.RoundTripper) error {
	return fmt.Errorf("httplb: https needs an *http.Transport as base, not %T: no other can be told to verify the service's name", base)
}

func closeIdle(rt http.RoundTripper) {
	if c, ok := rt.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
