// Package detach has goroutines that use the request's context after the handler.
package detach

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/propagation"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"shop/pb"
)

func audit(ctx context.Context, id string) {}

func record(r *http.Request) {}

func handler(w http.ResponseWriter, r *http.Request) {
	go audit(r.Context(), "1") // want `the goroutine goes on using r.Context\(\) when the handler has returned, which ends the context; use propagation.Detach, or wait for the goroutine`
	go record(r)               // want `goes on using r when`
	go func() {                // want `goes on using r.Context\(\)`
		audit(r.Context(), "1")
	}()
	ctx := r.Context()
	go audit(ctx, r.URL.Path) // want `goes on using ctx`
	go func() {               // want `goes on using ctx`
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		audit(ctx, "1")
	}()
	go func(ctx context.Context) { // want `goes on using ctx`
		audit(ctx, "1")
	}(ctx)
	go func() { // want `goes on using ctx`
		func() { audit(ctx, "1") }()
	}()
}

type server struct {
	later sync.WaitGroup
	shop  pb.ShopClient
	queue chan context.Context
}

func (s *server) Buy(ctx context.Context, in *pb.Order) (*pb.Receipt, error) { // want Buy:"callsOut"
	go s.shop.Buy(ctx, in) // want `goes on using ctx`
	s.later.Add(1)
	go func() { // want `goes on using ctx`
		defer s.later.Done()
		s.shop.Buy(ctx, in)
	}()
	return nil, nil
}

func (s *server) traced(ctx context.Context, in *pb.Order) (*pb.Receipt, error) {
	var t trace.Tracer
	ctx, span := t.Start(ctx, "buy")
	defer span.End()
	go s.shop.Buy(ctx, in) // want `goes on using ctx`
	return nil, nil
}

func (s *server) Watch(in *pb.Order, out grpc.ServerStreamingServer[pb.Receipt]) error {
	go s.shop.Buy(out.Context(), in) // want `goes on using out.Context\(\)`
	return nil
}

func interceptor(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	go audit(ctx, info.FullMethod) // want `goes on using ctx`
	return next(ctx, req)
}

func middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		go audit(r.Context(), "1") // want `goes on using r.Context\(\)`
		next.ServeHTTP(w, r)
	})
}

func deliberate(w http.ResponseWriter, r *http.Request) {
	go audit(propagation.Detach(r.Context()), "1")
	go audit(context.WithoutCancel(r.Context()), "1")
	go propagation.Bind(r.Context(), func(ctx context.Context) { audit(ctx, "1") })()
	propagation.Go(r.Context(), func(ctx context.Context) { audit(ctx, "1") })
	ctx := propagation.Detach(r.Context())
	go func() { audit(ctx, "1") }()
	go func() { audit(propagation.Detach(r.Context()), "1") }()
	go func() {
		r := r.Clone(context.WithoutCancel(r.Context()))
		record(r)
	}()
}

// Values can be read from a context that has ended.
func reads(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	go func() {
		slog.InfoContext(ctx, "later", "path", r.URL.Path, "tag", graytag.FromContext(ctx))
		_ = ctx.Value("key")
	}()
	go println(r.URL.Path, r.Header.Get("X-User-ID"))
}

// It is meant to end with the request.
func watches(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	go func() {
		<-ctx.Done()
		audit(ctx, "gone")
	}()
	go func() {
		for r.Context().Err() == nil {
			audit(ctx, "still there")
		}
	}()
}

func waitGroup(w http.ResponseWriter, r *http.Request) {
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		audit(r.Context(), "1")
	}()
	wg.Wait()
}

func handedOn(w http.ResponseWriter, r *http.Request) {
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			audit(r.Context(), "1")
		}()
	}
	await(&wg)
}

func await(*sync.WaitGroup) {}

func channel(w http.ResponseWriter, r *http.Request) {
	done := make(chan error, 1)
	go func() {
		audit(r.Context(), "1")
		done <- nil
	}()
	select {
	case <-done:
	case <-r.Context().Done():
	}
}

func ranges(w http.ResponseWriter, r *http.Request) {
	results := make(chan int)
	go func() {
		defer close(results)
		audit(r.Context(), "1")
	}()
	for range results {
	}
}

func deferredWait(w http.ResponseWriter, r *http.Request) {
	done := make(chan struct{})
	defer func() { <-done }()
	go func() {
		defer close(done)
		audit(r.Context(), "1")
	}()
}

func group(w http.ResponseWriter, r *http.Request) {
	g, ctx := errgroup.WithContext(r.Context())
	g.Go(func() error { audit(ctx, "1"); return nil })
	go audit(ctx, "2")
	g.Wait()
}

func pipe(w http.ResponseWriter, r *http.Request) {
	pr, pw := io.Pipe()
	go func() {
		audit(r.Context(), "1")
		pw.Close()
	}()
	io.Copy(w, pr)
	_ = pw
}

func cancels(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go audit(ctx, "1")
}

type conn struct{}

func (*conn) Close() error                { return nil }
func (*conn) write(ctx context.Context)   {}
func (*conn) read() error                 { return nil }
func upgrade(w http.ResponseWriter) *conn { return nil }

// The handler of a WebSocket returns when the connection is closed.
func socket(w http.ResponseWriter, r *http.Request) {
	c := upgrade(w)
	go c.write(r.Context())
	for {
		if c.read() != nil {
			return
		}
	}
}

func loop(w http.ResponseWriter, r *http.Request) {
	go audit(r.Context(), "1")
	for {
		if _, err := r.Body.Read(nil); err != nil {
			return
		}
	}
}

func blocks(w http.ResponseWriter, r *http.Request) {
	go audit(r.Context(), "1")
	select {}
}

// Two goroutines that wait for each other, and a handler that waits for none.
func pair(w http.ResponseWriter, r *http.Request) {
	items := make(chan int)
	go func() { // want `goes on using r.Context\(\)`
		audit(r.Context(), "1")
		items <- 1
	}()
	go func() { <-items }()
}

// Not a handler: it cannot be seen when its context ends.
func plain(ctx context.Context, id string) error {
	go audit(ctx, id)
	return nil
}

func unknown(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	ctx = own(ctx)
	go audit(ctx, "1")
}

func own(ctx context.Context) context.Context { return ctx }
