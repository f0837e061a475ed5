package gateway

import (
	"net/http"
	"time"
)

// NewServer returns a server for a gateway, or for a handler that wraps one, with
// what is easily forgotten: HTTP/1.1, HTTP/2 and HTTP/2 without TLS (h2c, which
// clients of gRPC speak), ten seconds for the header of a request, two minutes for
// idle connections, and 64 KiB for the header. It does not limit the time of a
// whole request: that would cut streams, uploads and WebSockets off. Change what it
// returns as you like.
func NewServer(addr string, h http.Handler) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		Protocols:         p,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}
