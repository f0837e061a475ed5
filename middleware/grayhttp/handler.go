package grayhttp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/propagation"
)

// NewHandler returns a handler that hands the tags of its requests to next, in
// their context:
//
//	handler, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self))
//	http.ListenAndServe(addr, handler)
//
// It fails where next is nil or an option is wrong. The
// ResponseWriter of next is that of the server, unless somebody records metrics or
// asks for the route of a request; then it has the same optional methods as that.
func NewHandler(next http.Handler, opts ...HandlerOption) (http.Handler, error) {
	if next == nil {
		return nil, errors.New("grayhttp: handler is nil")
	}
	wrap, err := Middleware(opts...)
	if err != nil {
		return nil, err
	}
	return wrap(next), nil
}

// Middleware is [NewHandler] for routers that chain middleware. The function may
// be used for any number of handlers of the same instance.
func Middleware(opts ...HandlerOption) (func(next http.Handler) http.Handler, error) {
	c, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	s, err := newServer(c)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler { return &handler{server: s, next: next} }, nil
}

type server struct {
	prop    *propagation.Propagator
	metrics *telemetry.Metrics
	self    *arrival.Self // nil where it is not known
	exempt  []string

	instance  string // ID or address of the own instance, "" where they are not known
	reject    bool   // what is misrouted
	misrouted *arrival.MisroutedLog
	profiles  *arrival.Profiles // nil: none
}

func newServer(c *config) (*server, error) {
	self, err := arrival.NewSelf(c.self, c.policy, c.policies)
	if err != nil {
		return nil, fmt.Errorf("grayhttp: %w", err)
	}
	s := &server{prop: c.prop, metrics: c.metrics(), self: self, exempt: c.exempt, reject: c.reject, misrouted: arrival.NewMisroutedLog(c.logger)}
	if c.self != nil {
		s.instance = cmp.Or(c.self.ID, c.self.Address)
	} else if c.reject {
		return nil, errors.New("grayhttp: WithRejectMisrouted without WithSelf: nobody knows what is misrouted")
	}
	if c.profiles {
		if s.profiles, err = arrival.NewProfiles(self, c.policy); err != nil {
			return nil, fmt.Errorf("grayhttp: %w", err)
		}
	}
	return s, nil
}

type handler struct {
	*server
	next http.Handler
}

// ServeHTTP implements [http.Handler].
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	shareTrailers(r)
	ctx, a := h.receive(r)
	h.serve(h.next, w, r, r.WithContext(ctx), a, true)
}

// shareTrailers makes r ready to be copied: trailers that were not announced
// arrive in r, and the copy has to share them.
func shareTrailers(r *http.Request) {
	if r.Trailer == nil && r.ContentLength < 0 && r.ProtoMajor == 1 {
		r.Trailer = make(http.Header)
	}
}

// pass hands in, which is made of r, to next.
func pass(next http.Handler, w http.ResponseWriter, r, in *http.Request) {
	// What is inside us leaves things on the request that what is outside looks
	// for: net/http removes the files of a form, OTel names spans by the pattern.
	defer func() {
		r.Pattern = in.Pattern
		if in.MultipartForm != nil {
			r.MultipartForm = in.MultipartForm
		}
	}()
	next.ServeHTTP(w, in)
}

// receive returns the context of r with its tag, and in scope, and what its arrival
// means.
func (s *server) receive(r *http.Request) (context.Context, *Arrival) {
	ctx := s.prop.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	tag := graytag.FromContext(ctx)
	a := s.arrival(ctx, r, tag)
	if tag.IsZero() {
		return arrival.Untagged(ctx, a), a
	}
	return arrival.NewContext(ctx, a), a
}

// arrival says what it means that r, which asks for tag, has arrived, and counts
// it; nil where nobody knows.
func (s *server) arrival(ctx context.Context, r *http.Request, tag graytag.Tag) *Arrival {
	if s.self == nil || exempts(s.exempt, r.URL.Path) {
		return nil
	}
	a := s.self.Classify(tag)
	if !s.metrics.RequestsEnabled(ctx) || s.self.Known(ctx) {
		return a
	}
	_, wanted := s.self.Labels(a)
	s.metrics.Request(ctx, wanted, string(a.Outcome))
	return a
}
