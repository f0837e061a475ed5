package grayhttp

import (
	"context"
	"net/http"
	"time"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/edge"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// serve hands in, which is made of r, to next, and sees to it that what happens can
// be seen. a is nil where nobody knows what the arrival means. inside tells whether
// the answer stays inside the system.
func (s *server) serve(next http.Handler, w http.ResponseWriter, r, in *http.Request, a *Arrival, inside bool) {
	ctx := in.Context()
	// Middleware of ours around this one gathers what we would.
	traced := inside && hops.Asks(in.Header[hops.TraceHeader]) && hops.FromContext(ctx) == nil
	measured := false
	if a != nil {
		telemetry.Arrived(ctx, a.Wanted, a.Version, string(a.Outcome))
		if a.Outcome == subset.Misrouted {
			known := s.self.Known(r.Context())
			if s.reject || !known {
				s.misrouted.Log(ctx, a, s.self.Hidden(), s.reject, "path", in.URL.Path)
			}
			if s.reject {
				s.refuse(ctx, w, a, inside, traced, known)
				return
			}
		}
		measured = s.metrics.DurationEnabled(ctx) && !s.self.Known(r.Context())
	}
	profiled := s.profiles != nil && !exempts(s.exempt, in.URL.Path)
	if !measured && !traced && !profiled {
		pass(next, w, r, in)
		return
	}
	s.observe(next, w, r, in, a, measured, traced, profiled)
}

func (s *server) observe(next http.Handler, w http.ResponseWriter, r, in *http.Request, a *Arrival, measured, traced, profiled bool) {
	ctx := in.Context()
	var trace *hops.Trace
	if traced {
		ctx, trace = hops.Start(ctx)
		defer trace.End()
	}
	if profiled {
		outer := ctx
		defer s.profiles.End(outer)
		ctx = s.profiles.Begin(ctx, graytag.FromContext(ctx))
	}
	if traced || profiled {
		in = in.WithContext(ctx)
	}
	if !measured && !traced {
		pass(next, w, r, in)
		return
	}
	x := &answer{ResponseWriter: w, server: s, ctx: r.Context(), arrival: a, measured: measured, trace: trace, relay: traced && edge.Relays(ctx)}
	if measured {
		x.began = time.Now()
	}
	defer x.end()
	pass(next, x.writer(), r, in)
	x.finished = true
}

func (s *server) measure(ctx context.Context, a *Arrival, status string, d time.Duration) {
	version, wanted := s.self.Labels(a)
	s.metrics.Duration(ctx, version, wanted, a.Outcome == subset.Matched, status, d)
}

// refuse answers a request that should not be here. The handler does not run. known
// says that middleware of ours around this one measures the answer.
func (s *server) refuse(ctx context.Context, w http.ResponseWriter, a *Arrival, inside, traced, known bool) {
	began := time.Now()
	h := w.Header()
	if inside {
		h.Set(MisroutedHeader, arrival.Marker(a.Service))
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	if traced {
		h.Set(hops.RouteHeader, hops.Format([]hops.Hop{arrival.Hop(a, s.instance)}, 0))
	}
	w.WriteHeader(http.StatusMisdirectedRequest)
	_, _ = w.Write([]byte("421 Misdirected Request: this instance serves another version\n"))
	if !known {
		s.measure(ctx, a, telemetry.HTTPStatus(http.StatusMisdirectedRequest), time.Since(began))
	}
}
