package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// shop is the chain: an entrance, order over HTTP, inventory over gRPC, the services
// each as stable and as v2.
type shop struct {
	reg       *memory.Registry
	telemetry *telemetry
	fail      float64 // share of the requests to inventory v2 that fail

	stops []func()
}

// traceContext hands trace ids on. The tag needs no propagator of OTel.
var traceContext = propagation.TraceContext{}

func (s *shop) open(ctx context.Context) error {
	for _, version := range []string{"stable", "v2"} {
		if err := s.start(ctx, "inventory", version, s.inventory); err != nil {
			return err
		}
		if err := s.start(ctx, "order", version, s.order); err != nil {
			return err
		}
	}
	return nil
}

// close ends what was started, the last first; requests under way are answered.
func (s *shop) close() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
	s.stops = nil
}

// server is what both http.Server and grpc.Server are, and what ends it.
type server struct {
	serve func(net.Listener) error
	stop  func()
}

// start runs one instance behind a listener of its own. In a service of yours there
// is one, and the pipeline says which version it is, see registry.FromEnv.
func (s *shop) start(ctx context.Context, service, version string, build func(registry.Instance, *process) (server, error)) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	self := registry.Instance{ID: service + "-" + version, Service: service, Address: lis.Addr().String()}
	if version != "stable" {
		self.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	p, err := s.telemetry.process(self)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	srv, err := build(self, p)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	s.run(lis, srv)
	registration, err := s.reg.Register(ctx, self)
	if err != nil {
		return err
	}
	s.stops = append(s.stops, func() { _ = registration.Deregister(context.Background()) })
	return nil
}

func (s *shop) run(lis net.Listener, srv server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.serve(lis) // ends with stop
	}()
	s.stops = append(s.stops, func() { srv.stop(); <-done })
}

// overHTTP ends a server when what it has begun is done, spans included.
func overHTTP(h http.Handler, also func() error) server {
	srv := gateway.NewServer("", h)
	return server{srv.Serve, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
		_ = also()
	}}
}

// enter opens the entrance: a gateway that decides by the rules of engine.
func (s *shop) enter(engine *rule.Engine, p *process) (url string, err error) {
	gw, err := gateway.New(engine, s.reg,
		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}),
		gateway.WithMeterProvider(p.meter), gateway.WithLogger(p.logger))
	if err != nil {
		return "", err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", errors.Join(err, gw.Close())
	}
	// A proxy sends on the headers that it was sent: what comes next is to be a
	// child of the span of the entrance, and not of the one outside.
	inner := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		traceContext.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
		gw.ServeHTTP(w, r)
	})
	s.run(lis, overHTTP(traced(inner, "entrance", p), gw.Close))
	return "http://" + lis.Addr().String(), nil
}

func traced(h http.Handler, name string, p *process) http.Handler {
	return otelhttp.NewHandler(h, name,
		otelhttp.WithTracerProvider(p.tracer), otelhttp.WithMeterProvider(p.meter), otelhttp.WithPropagators(traceContext))
}

// order asks inventory, and answers who has served.
func (s *shop) order(self registry.Instance, p *process) (server, error) {
	conn, err := grpc.NewClient("gray:///inventory", append(
		graygrpc.DialOptions(s.reg, graygrpc.WithMeterProvider(p.meter), graygrpc.WithLogger(p.logger),
			// A machine that has other things to do may need longer for a first
			// connection than a service should wait before it falls back.
			graygrpc.WithResolver(resolver.WithConnectWait(30*time.Second))),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(p.tracer), otelgrpc.WithMeterProvider(p.meter), otelgrpc.WithPropagators(traceContext))),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return server{}, err
	}
	inventory := pb.NewTestServiceClient(conn)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		reply, err := inventory.UnaryCall(r.Context(), &pb.SimpleRequest{})
		if err != nil {
			p.logger.ErrorContext(r.Context(), "order failed", "id", r.PathValue("id"), "err", err)
			http.Error(w, self.ID+", and inventory failed", http.StatusBadGateway)
			return
		}
		p.logger.InfoContext(r.Context(), "ordered", "id", r.PathValue("id"), "inventory", reply.ServerId)
		fmt.Fprint(w, self.ID, " ", reply.ServerId)
	})
	h, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self), grayhttp.WithMeterProvider(p.meter))
	if err != nil {
		return server{}, errors.Join(err, conn.Close())
	}
	return overHTTP(traced(h, "order", p), conn.Close), nil
}

// inventory stands in for a service of yours: gRPC's own test service.
type inventory struct {
	pb.UnimplementedTestServiceServer
	id   string
	fail float64
	n    atomic.Int64
}

// UnaryCall fails as often as it is told to, evenly.
func (i *inventory) UnaryCall(context.Context, *pb.SimpleRequest) (*pb.SimpleResponse, error) {
	n := float64(i.n.Add(1))
	if int64(n*i.fail) != int64((n-1)*i.fail) {
		return nil, status.Error(codes.Internal, "the new version has a fault")
	}
	return &pb.SimpleResponse{ServerId: i.id}, nil
}

func (s *shop) inventory(self registry.Instance, p *process) (server, error) {
	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self), graygrpc.WithMeterProvider(p.meter))
	if err != nil {
		return server{}, err
	}
	srv := grpc.NewServer(append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(p.tracer), otelgrpc.WithMeterProvider(p.meter), otelgrpc.WithPropagators(traceContext))))...)
	i := &inventory{id: self.ID}
	if self.Metadata[registry.MetadataVersion] != "" {
		i.fail = s.fail
	}
	pb.RegisterTestServiceServer(srv, i)
	return server{srv.Serve, srv.GracefulStop}, nil
}
