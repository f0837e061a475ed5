package gateway

import (
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
)

func (c *Convention) describe(r *http.Request) edge.Described {
	d := edge.Described{Method: last(r.Header, c.Method), URI: last(r.Header, c.URI), Host: last(r.Header, c.Host)}
	if c.URI == "" && c.PathPrefix != "" {
		if rest, ok := strings.CutPrefix(r.URL.RequestURI(), c.PathPrefix); ok {
			if d.URI = rest; rest == "" || rest[0] != '/' {
				d.URI = "/" + rest
			}
		}
	}
	return d
}

// last returns the last value of a header: that of the proxy, where it adds to what
// the client sent.
func last(h http.Header, name string) string {
	if name == "" {
		return ""
	}
	values := h.Values(name)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// WithConvention sets how the proxy tells of requests. The default is [Forwarded].
func WithConvention(v Convention) ForwardAuthOption {
	return forwardAuthFunc(func(c *config) { c.convention = v })
}

// WithService sets the service whose version the answer tells in X-Version. The
// default is none: the version that the tag asks of all services.
func WithService(name string) ForwardAuthOption {
	return forwardAuthFunc(func(c *config) { c.service = name })
}

// ForwardAuth returns a handler that decides about requests on behalf of another
// proxy. The proxy asks it about every request, and sets on that request what the
// answer holds, in place of what the client sent:
//
//   - X-Gray-Tag, Baggage and the headers of compatibility formats, each with what
//     goes on, and X-Gray-Trace, with nothing. They are there in every answer, empty
//     where nothing is to go on, so that what the client sent is replaced.
//   - X-Version, X-Canary-Group and Set-Cookie are for the answer to the client.
//
// The status is always 200: nothing is refused here. A tag that the request brings
// is never believed. List the proxy in [grayhttp.WithTrustedProxies], so that
// X-Forwarded-For and X-Forwarded-Proto count.
//
// How each proxy is set up is told at [Nginx], [IngressNginx], [Forwarded] and
// [Envoy]. ForwardAuth fails where engine is nil or an option is wrong.
func ForwardAuth(engine *rule.Engine, opts ...ForwardAuthOption) (http.Handler, error) {
	c := newConfig()
	for _, o := range opts {
		if o != nil {
			o.applyForwardAuth(c)
		}
	}
	if err := c.check(engine); err != nil {
		return nil, err
	}
	if p := c.convention.PathPrefix; p != "" && !strings.HasPrefix(p, "/") {
		return nil, fmt.Errorf("gateway: path prefix %q of the convention, want one that starts with /", p)
	}
	wrap, err := grayhttp.Edge(engine, c.edgeOptions()...)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	f := &forwardAuth{convention: c.convention, service: c.service, prop: c.prop, limit: &limiter{logger: c.logger}}
	for _, name := range c.prop.Fields() {
		f.fields = append(f.fields, http.CanonicalHeaderKey(name))
	}
	f.edge = wrap(http.HandlerFunc(f.answer))
	return f, nil
}

type forwardAuth struct {
	convention Convention
	service    string
	prop       *propagation.Propagator
	fields     []string // of prop, canonical
	edge       http.Handler
	limit      *limiter
}

// ServeHTTP implements [http.Handler].
func (f *forwardAuth) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d := f.convention.describe(r)
	asked, err := edge.Describe(r, d)
	if err != nil {
		// Whether such a request is answered is the service's matter. Rules decide
		// by all that can be read of it.
		f.limit.warn("gateway: forward-auth: the URI of a request cannot be read", slog.Any("error", err))
		d.URI = "/"
		if asked, err = edge.Describe(r, d); err != nil {
			asked = r.WithContext(edge.WithoutTrust(r.Context()))
		}
	}
	if f.convention.URI != "" && f.convention.Host == "" && asked.URL.Scheme != "" {
		// The absolute URI of the proxy says it; what the header says, a client may
		// have sent.
		asked.Header = maps.Clone(asked.Header)
		asked.Header["X-Forwarded-Proto"] = []string{asked.URL.Scheme}
	}
	f.edge.ServeHTTP(w, asked)
}

// answer answers for a request that the edge has coloured.
func (f *forwardAuth) answer(w http.ResponseWriter, r *http.Request) {
	ctx, h := r.Context(), w.Header()
	if lines := r.Header["Baggage"]; len(lines) > 0 {
		h["Baggage"] = []string{strings.Join(lines, ",")}
	}
	f.prop.Inject(ctx, propagation.HeaderCarrier(h))
	var remove []string
	for _, name := range f.fields {
		if h.Get(name) == "" {
			remove = append(remove, name)
		}
	}
	remove = append(remove, edge.TraceHeader) // nothing from outside may ask for it
	for _, name := range remove {
		// Proxies copy what is there, and some leave what the client sent where
		// nothing is.
		h[name] = []string{""}
	}
	if f.convention.Remove {
		h.Set("X-Envoy-Auth-Headers-To-Remove", strings.Join(remove, ","))
	}
	entry, _ := grayhttp.EntryFromContext(ctx)
	h.Set(edge.VersionHeader, edge.VersionOf(graytag.FromContext(ctx), entry.Decision.Key, f.service))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
}
