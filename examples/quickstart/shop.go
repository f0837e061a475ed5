package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/graylane/graylane/balancer/httplb"
	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/examples/internal/ready"
	"github.com/graylane/graylane/examples/internal/shop"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
)

// registrarDiscovery is what both the memory registry and Consul are.
type registrarDiscovery interface {
	registry.Registrar
	registry.Discovery
}

// world runs the shop: every instance behind a listener of its own, known
// through the registry and through nothing else.
type world struct {
	reg      registrarDiscovery
	counters counters

	later  sync.WaitGroup // work that outlives its request
	failed atomic.Int64   // of that work
	routes sync.Map       // order -> []propagation.Hop: the way of that work, where somebody asks

	stops []func()
}

// start runs one instance of a service. serve blocks until stop is called.
func (w *world) start(ctx context.Context, service, version string, n int, build func(self registry.Instance) (serve func(net.Listener) error, stop func(), err error)) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	self := registry.Instance{
		ID:      fmt.Sprintf("%s-%s-%d", service, name(version), n),
		Service: service,
		Address: lis.Addr().String(),
	}
	if version != "" {
		self.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	serve, stop, err := build(self)
	if err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = serve(lis) // ends with stop
	}()
	registration, err := w.reg.Register(ctx, self)
	if err != nil {
		stop()
		<-done
		return err
	}
	w.stops = append(w.stops, func() {
		_ = registration.Deregister(context.Background())
		stop()
		<-done
	})
	return nil
}

// stop ends the instances, the last started first.
func (w *world) stop() {
	for i := len(w.stops) - 1; i >= 0; i-- {
		w.stops[i]()
	}
	w.stops = nil
}

// overHTTP serves a handler behind the inbound middleware.
func (w *world) overHTTP(self registry.Instance, h http.Handler, also ...func()) (func(net.Listener) error, func(), error) {
	h, err := grayhttp.NewHandler(h, grayhttp.WithSelf(self), grayhttp.WithMeterProvider(w.counters.of(self)))
	if err != nil {
		return nil, nil, err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return srv.Serve, func() {
		_ = srv.Close()
		for _, f := range also {
			f()
		}
	}, nil
}

// overGRPC serves a gRPC service behind the inbound middleware.
func (w *world) overGRPC(self registry.Instance, register func(*grpc.Server), also ...func()) (func(net.Listener) error, func(), error) {
	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self), graygrpc.WithMeterProvider(w.counters.of(self)))
	if err != nil {
		return nil, nil, err
	}
	srv := grpc.NewServer(opts...)
	register(srv)
	return srv.Serve, func() {
		srv.Stop()
		for _, f := range also {
			f()
		}
	}, nil
}

// dial connects to a gRPC service by name.
func (w *world) dial(service string) (*grpc.ClientConn, error) {
	opts := append(graygrpc.DialOptions(w.reg, graygrpc.WithResolver(resolver.WithConnectWait(patience))),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	return grpc.NewClient("gray:///"+service, opts...)
}

// ended waits for the work that outlives its requests.
func (w *world) ended() error {
	w.later.Wait()
	if n := w.failed.Load(); n > 0 {
		return fmt.Errorf("%d calls in the background failed", n)
	}
	return nil
}

// patience is how long a first connection may take before a request falls back
// to another version. A thousand requests at once on a machine that has other
// things to do need more than the defaults, which suit a service.
const patience = 30 * time.Second

// transport is what instances are reached through over HTTP: some connections
// to each, however many requests there are.
func transport() *http.Transport {
	return &http.Transport{
		DialContext:         (&net.Dialer{Timeout: patience}).DialContext,
		MaxConnsPerHost:     64,
		MaxIdleConnsPerHost: 64,
	}
}

// open starts all services: order, inventory and user as stable and v2, coupon
// as stable only.
func (w *world) open(ctx context.Context) error {
	type instance struct {
		service, version string
		n                int
		build            func(registry.Instance) (func(net.Listener) error, func(), error)
	}
	var all []instance
	add := func(service string, build func(registry.Instance) (func(net.Listener) error, func(), error), versions ...string) {
		count := map[string]int{}
		for _, v := range versions {
			count[v]++
			all = append(all, instance{service, v, count[v], build})
		}
	}
	add("user", w.user, "", "", "v2")
	add("coupon", w.coupon, "", "")
	add("inventory", w.inventory, "", "", "v2")
	add("order", w.order, "", "", "v2")
	for _, i := range all {
		if err := w.start(ctx, i.service, i.version, i.n, i.build); err != nil {
			return fmt.Errorf("quickstart: start %s %s: %w", i.service, name(i.version), err)
		}
	}
	running := map[string]int{}
	for _, i := range all {
		running[i.service]++
	}
	for service, n := range running {
		if err := ready.Wait(ctx, w.reg, service, n); err != nil {
			return fmt.Errorf("quickstart: %w", err)
		}
	}
	return nil
}

// order calls inventory and waits for it, and calls coupon from a goroutine
// that outlives the request.
func (w *world) order(self registry.Instance) (func(net.Listener) error, func(), error) {
	conn, err := w.dial("inventory")
	if err != nil {
		return nil, nil, err
	}
	client, err := grayhttp.NewClient(w.reg, grayhttp.WithBalancer(httplb.WithBase(transport())))
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	inventory := shop.NewInventoryClient(conn)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(rw http.ResponseWriter, r *http.Request) {
		id, user := r.PathValue("id"), r.Header.Get("X-User-ID")
		// The request's context ends with the request; Go hands on the colour
		// and leaves the rest behind.
		asked := r.Header.Get(propagation.TraceHeader) == "1"
		w.later.Add(1)
		propagation.Go(r.Context(), func(ctx context.Context) {
			defer w.later.Done()
			if asked { // the answer of the request comes too early to say it
				var trace *propagation.RouteTrace
				ctx, trace = propagation.TraceRoute(ctx)
				defer func() {
					route, _ := trace.Hops()
					w.routes.Store(id, route)
					trace.End()
				}()
			}
			ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			if err := get(ctx, client, "http://coupon/coupons/"+id); err != nil {
				w.failed.Add(1)
			}
		})
		if _, err := inventory.Reserve(r.Context(), &shop.ReserveRequest{OrderId: id, UserId: user}); err != nil {
			http.Error(rw, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprint(rw, self.ID)
	})
	return w.overHTTP(self, mux, func() { _ = conn.Close() }, closeClient(client))
}

func (w *world) coupon(self registry.Instance) (func(net.Listener) error, func(), error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /coupons/{id}", func(rw http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(rw, "no coupon today")
	})
	return w.overHTTP(self, mux)
}

type inventoryServer struct {
	shop.UnimplementedInventoryServer
	self  registry.Instance
	users shop.UserClient
}

func (w *world) inventory(self registry.Instance) (func(net.Listener) error, func(), error) {
	conn, err := w.dial("user")
	if err != nil {
		return nil, nil, err
	}
	s := &inventoryServer{self: self, users: shop.NewUserClient(conn)}
	return w.overGRPC(self, func(srv *grpc.Server) { shop.RegisterInventoryServer(srv, s) }, func() { _ = conn.Close() })
}

func (s *inventoryServer) Reserve(ctx context.Context, in *shop.ReserveRequest) (*shop.ReserveReply, error) {
	if _, err := s.users.Get(ctx, &shop.GetRequest{OrderId: in.OrderId, UserId: in.UserId}); err != nil {
		return nil, err
	}
	return &shop.ReserveReply{ServedBy: s.self.ID}, nil
}

type userServer struct {
	shop.UnimplementedUserServer
	self registry.Instance
}

func (w *world) user(self registry.Instance) (func(net.Listener) error, func(), error) {
	s := &userServer{self: self}
	return w.overGRPC(self, func(srv *grpc.Server) { shop.RegisterUserServer(srv, s) })
}

func (s *userServer) Get(_ context.Context, in *shop.GetRequest) (*shop.GetReply, error) {
	return &shop.GetReply{Name: "user " + in.UserId, ServedBy: s.self.ID}, nil
}
