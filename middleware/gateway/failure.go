package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/grayhttp"
)

// ReasonHeader is the header of an answer that the gateway gives in place of a
// service: why it does.
const ReasonHeader = "X-Gray-Reason"

// Reasons beside those of [subset.Reason] (missing, unhealthy, …), which come with
// status 503.
const (
	ReasonNoRoute  = "no_route"     // 404: no route takes the request
	ReasonMethod   = "method"       // 405: CONNECT
	ReasonTooLarge = "too_large"    // 413: the body is longer than WithMaxBody allows
	ReasonBody     = "request_body" // 400: the client did not send the body that it began
	ReasonClosed   = "client_gone"  // 499: nobody waits for the answer
	ReasonUpstream = "upstream"     // 502: an instance was reached and gave no answer
	ReasonTimeout  = "timeout"      // 504: no answer in time
	ReasonShutdown = "shutdown"     // 503: the gateway is closed
)

// statusClosed is what nginx made of a client that is gone. It is for middleware
// that looks at answers: nobody else does.
const statusClosed = 499

// Failure is a request that no service has answered.
type Failure struct {
	// Service is "" where there is no route.
	Service string
	// Status is the status that the failure has by default.
	Status int
	// Reason is one of the constants of this package, or a [subset.Reason]. It is
	// safe to tell.
	Reason string
	// Err says more, and may hold addresses of instances. It is for logs.
	Err error
}

// refusal returns what answers requests that no route takes: behind an edge that
// decides nothing, since an error handler may hand them on, and what they claim must
// not go with them.
func (c *config) refusal() (http.Handler, error) {
	nothing, err := rule.NewEngine(nil)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	// The paths "*" and "", too, get no cookie: there is no rule to draw by.
	wrap, err := grayhttp.Edge(nothing, append(c.edgeOptions(), grayhttp.WithExempt("/"))...)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodConnect {
			w.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
			c.fail(w, r, Failure{Status: http.StatusMethodNotAllowed, Reason: ReasonMethod, Err: errConnect})
			return
		}
		c.fail(w, r, Failure{Status: http.StatusNotFound, Reason: ReasonNoRoute, Err: errNoRoute})
	})), nil
}

// failed is the ErrorHandler of the proxy.
func (rt *route) failed(w http.ResponseWriter, out *http.Request, err error) {
	x := w.(*exchange)
	x.in.Header = x.header
	f := classify(out.Context(), x.body.failure(), err)
	f.Service = rt.Service
	if x.observed != nil {
		x.observed.err = f.Err
	}
	switch f.Reason {
	case ReasonClosed, ReasonBody, ReasonTooLarge:
		// Nothing is wrong with the service.
		rt.limit.logger.LogAttrs(out.Context(), slog.LevelDebug, "gateway: the client broke off",
			slog.String("service", rt.Service), slog.String("reason", f.Reason), slog.Any("error", f.Err))
	default:
		rt.limit.warn("gateway: request failed", slog.String("service", rt.Service), slog.String("reason", f.Reason), slog.Any("error", f.Err))
	}
	if x.in.ProtoMajor == 1 && x.body.rest() {
		closeAfter(w) // and say so, as there is no header yet
	}
	rt.fail(w, x.in, f)
}

func classify(ctx context.Context, body, err error) Failure {
	var unavailable *subset.UnavailableError
	var tooLarge *http.MaxBytesError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(body, &tooLarge), errors.As(err, &tooLarge):
		return Failure{Status: http.StatusRequestEntityTooLarge, Reason: ReasonTooLarge, Err: tooLarge}
	case context.Cause(ctx) == errTimeout:
		return Failure{Status: http.StatusGatewayTimeout, Reason: ReasonTimeout, Err: errors.Join(errTimeout, err)}
	case errors.Is(ctx.Err(), context.Canceled):
		return Failure{Status: statusClosed, Reason: ReasonClosed, Err: err}
	case body != nil:
		return Failure{Status: http.StatusBadRequest, Reason: ReasonBody, Err: body}
	case errors.As(err, &unavailable):
		return Failure{Status: http.StatusServiceUnavailable, Reason: string(unavailable.Reason), Err: err}
	case ctx.Err() != nil, errors.As(err, &timeout) && timeout.Timeout():
		return Failure{Status: http.StatusGatewayTimeout, Reason: ReasonTimeout, Err: err}
	case errors.Is(err, httplb.ErrClosed):
		return Failure{Status: http.StatusServiceUnavailable, Reason: ReasonShutdown, Err: err}
	}
	return Failure{Status: http.StatusBadGateway, Reason: ReasonUpstream, Err: err}
}

// WriteFailure is the answer that failures get by default: the status of f, its
// reason in [ReasonHeader] and in the body, and nothing else. A request of gRPC
// gets the status of gRPC that goes with it.
func WriteFailure(w http.ResponseWriter, r *http.Request, f Failure) {
	h := w.Header()
	h.Set(ReasonHeader, f.Reason)
	h.Set("Cache-Control", "no-store")
	if isGRPC(r) {
		// Trailers-Only, https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", strconv.Itoa(grpcCode(f.Status)))
		h.Set("Grpc-Message", "gateway: "+f.Reason)
		w.WriteHeader(http.StatusOK)
		return
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(f.Status)
	_, _ = w.Write([]byte(strings.TrimSpace(strconv.Itoa(f.Status)+" "+http.StatusText(f.Status)) + ": " + f.Reason + "\n"))
}

// grpcCode returns the code of gRPC for a status of a failure.
func grpcCode(status int) int {
	switch status {
	case statusClosed:
		return 1 // CANCELLED
	case http.StatusGatewayTimeout:
		return 4 // DEADLINE_EXCEEDED
	case http.StatusRequestEntityTooLarge:
		return 8 // RESOURCE_EXHAUSTED
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return 12 // UNIMPLEMENTED
	case http.StatusBadRequest:
		return 13 // INTERNAL
	}
	return 14 // UNAVAILABLE
}

// proxyLog is where the proxy complains: above all of answers that broke off.
type proxyLog struct{ rt *route }

func (l *proxyLog) Write(p []byte) (int, error) {
	l.rt.limit.warn("gateway: answer broke off", slog.String("service", l.rt.Service), slog.String("error", strings.TrimSpace(string(p))))
	return len(p), nil
}

// limiter logs once a second at most: how often a service fails is for metrics,
// and whoever is outside could fill a disk.
type limiter struct {
	logger  *slog.Logger
	next    atomic.Int64 // in nanoseconds since 1970
	dropped atomic.Int64
}

func (l *limiter) warn(msg string, attrs ...slog.Attr) {
	now, next := time.Now().UnixNano(), l.next.Load()
	if now < next || !l.next.CompareAndSwap(next, now+int64(time.Second)) {
		l.dropped.Add(1)
		return
	}
	if n := l.dropped.Swap(0); n > 0 {
		attrs = append(attrs, slog.Int64("not_logged", n))
	}
	l.logger.LogAttrs(context.Background(), slog.LevelWarn, msg, attrs...)
}
