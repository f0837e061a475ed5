package gateway

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

// Gateway is a reverse proxy that colours every request once and sends it to the
// version of the service that its colour asks for. It is an [http.Handler], safe
// for concurrent use. Make one with [New] and end it with [Gateway.Close].
type Gateway struct {
	table   *table
	refuse  http.Handler // for what has no route
	clients []*grayhttp.Transport
}

var _ http.Handler = (*Gateway)(nil)

// New returns a gateway that asks engine for the tag of a request, and disc for
// the instances of the services that [WithRoutes] names. It fails, with all that
// is wrong, where there is no route, where a route is not valid or taken twice,
// and where an option is wrong. Nothing is watched before the first request.
func New(engine *rule.Engine, disc registry.Discovery, opts ...Option) (*Gateway, error) {
	c := newConfig()
	for _, o := range opts {
		if o != nil {
			o.applyGateway(c)
		}
	}
	if err := c.check(engine); err != nil {
		return nil, err
	}
	if disc == nil {
		return nil, errors.New("gateway: discovery is nil")
	}
	wrap, err := grayhttp.Edge(engine, c.edgeOptions()...)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	t, err := newTable(c.routes)
	if err != nil {
		return nil, err
	}
	g := &Gateway{table: t}
	if g.refuse, err = c.refusal(); err != nil {
		return nil, err
	}
	base := c.baseTransport()
	var ways [2]*grayhttp.Transport
	for i, transport := range []*http.Transport{base, overH2C(base)} {
		client, err := grayhttp.NewClient(disc, c.clientOptions(transport)...)
		if err != nil {
			_ = g.Close()
			return nil, fmt.Errorf("gateway: %w", err)
		}
		ways[i] = client.Transport.(*grayhttp.Transport)
		g.clients = append(g.clients, ways[i])
	}
	names := edge.NewNames(append(c.prop.Fields(), edge.TraceHeader)...)
	for _, rt := range t.routes {
		rt.names = names
		rt.fail, rt.upgrades, rt.maxBody, rt.observers = c.fail, c.upgrades, c.maxBody, c.observers
		rt.limit = &limiter{logger: c.logger}
		if rt.timeout = rt.Timeout; rt.timeout == 0 {
			rt.timeout = c.timeout
		}
		rt.proxy = rt.newProxy(ways[0])
		rt.h2c = rt.newProxy(ways[1])
		rt.entrance = wrap(http.HandlerFunc(rt.serve))
	}
	return g, nil
}

// newProxy returns a proxy for one route over one of the transports. A proxy for
// each route knows its route without asking the request's context for it.
func (rt *route) newProxy(over *grayhttp.Transport) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:      rt.rewrite,
		Transport:    transport{over},
		BufferPool:   buffers,
		ErrorHandler: rt.failed,
		ErrorLog:     log.New(&proxyLog{rt}, "", 0),
	}
}

// ServeHTTP implements [http.Handler].
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		if rt := g.table.find(r); rt != nil {
			if len(r.Header[edge.TraceHeader]) > 0 {
				r = r.WithContext(edge.Relaying(r.Context()))
			}
			rt.entrance.ServeHTTP(w, r)
			return
		}
	}
	g.refuse.ServeHTTP(w, r)
}

var (
	errConnect = errors.New("gateway: CONNECT is for forward proxies")
	errNoRoute = errors.New("gateway: no route for this host and path")
	errTimeout = errors.New("gateway: no answer in time")
)

// serve sends on what the edge has coloured.
func (rt *route) serve(w http.ResponseWriter, r *http.Request) {
	x := newExchange(w, r, rt)
	grpc := isGRPC(r)
	if len(rt.observers) > 0 {
		x.observed = &observed{began: time.Now(), ctx: r.Context(), grpc: grpc}
		r = r.WithContext(context.WithValue(r.Context(), observedKey{}, x.observed))
		defer x.tell()
	}
	proxy := rt.proxy
	tunnel := false
	if upgrade := r.Header["Upgrade"]; len(upgrade) > 0 && upgrade[0] != "" {
		if tunnel = rt.mayUpgrade(upgrade[0]); !tunnel {
			// A server may ignore the wish (RFC 9110, section 7.8). What would run
			// through the tunnel, HTTP/2 for example, passes no entrance.
			r.Header = r.Header.Clone() // the caller's, where nothing in it was forged
			delete(r.Header, "Upgrade")
			delete(r.Header, "Http2-Settings")
		}
	}
	if !tunnel && !rt.TLS && (rt.H2C || grpc) {
		proxy = rt.h2c
	}
	if r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody {
		if r.ProtoMajor == 1 {
			// net/http would throw the rest of the request away when the answer
			// begins; the service may not have had it.
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
		x.body = newBody(w, r, rt.maxBody)
		defer func() {
			x.body.end(!x.ended)
			if r.ProtoMajor == 1 && x.body.rest() {
				closeAfter(w)
			}
		}()
		if rt.maxBody > 0 && r.ContentLength > rt.maxBody {
			x.header, x.ended = r.Header, true
			rt.failed(x, r, &http.MaxBytesError{Limit: rt.maxBody})
			return
		}
	}
	x.lend(r, tunnel)
	// A stream of gRPC has a header when it has its first message; how long that
	// may take is known to the client, and is in grpc-timeout.
	if rt.timeout > 0 && !grpc {
		ctx, cancel := context.WithCancelCause(r.Context())
		defer cancel(nil)
		x.timer = time.AfterFunc(rt.timeout, func() {
			cancel(errTimeout)
			if x.body != nil {
				_ = x.body.Close() // for which a transport of HTTP/1 waits
			}
		})
		defer x.timer.Stop()
		r = r.WithContext(ctx)
	}
	proxy.ServeHTTP(x, r)
	x.ended = true
	x.cleanTrailer()
}

// Close ends all watches and closes idle connections to instances. Requests under
// way go on, those of [http.Server.Shutdown] have ended before; new ones are
// answered with 503. It always returns nil.
func (g *Gateway) Close() error {
	for _, c := range g.clients {
		_ = c.Close()
	}
	return nil
}
