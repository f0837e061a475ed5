package gateway

import (
	"net"
	"net/http"
	"time"

	"github.com/graylane/graylane/middleware/grayhttp"
)

// transport sends requests of httputil.ReverseProxy, which makes one anew for each and
// looks at its context and its Upgrade header alone afterwards. The rewrite has put
// the exchange into the body.
type transport struct{ *grayhttp.Transport }

func (t transport) RoundTrip(req *http.Request) (*http.Response, error) {
	x := req.Body.(*exchange)
	req.Body = nil
	if x.body != nil {
		req.Body = x.body
	}
	res, err := t.RoundTripOwned(req)
	if err == nil {
		x.take(res)
	}
	return res, err
}

// defaultTransport is what instances are reached through. Beside what the standard
// library's has, it keeps enough idle connections for a gateway (which has two per
// host otherwise, and dials all the time), and leaves content encodings to client
// and service.
func defaultTransport() *http.Transport {
	return &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 3 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   512,
		IdleConnTimeout:       90 * time.Second,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		DisableCompression:    true,
	}
}

// baseTransport returns the transport of WithTransport, as a proxy needs it, or the
// default.
func (c *config) baseTransport() *http.Transport {
	if c.transport == nil {
		return defaultTransport()
	}
	t := c.transport.Clone()
	t.DisableCompression = true
	if t.MaxIdleConnsPerHost == 0 {
		t.MaxIdleConnsPerHost = 512
	}
	return t
}

// overH2C returns a transport like base that speaks HTTP/2 without TLS.
func overH2C(base *http.Transport) *http.Transport {
	t := base.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}
