package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/examples/internal/ready"
	pb "github.com/graylane/graylane/examples/internal/shop"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

// shop runs two services behind the gateway, each as stable and as v2: order, over
// HTTP, calls inventory, over gRPC.
type shop struct {
	reg interface {
		registry.Registrar
		registry.Discovery
	}
	stops []func()
}

func (s *shop) open(ctx context.Context) error {
	for _, version := range []string{"", "v2"} {
		if err := s.start(ctx, "inventory", version, s.inventory); err != nil {
			return err
		}
		if err := s.start(ctx, "order", version, s.order); err != nil {
			return err
		}
	}
	for _, service := range []string{"inventory", "order"} {
		if err := ready.Wait(ctx, s.reg, service, 2); err != nil {
			return err
		}
	}
	return nil
}

// stop ends the instances, the last first.
func (s *shop) stop() {
	for i := len(s.stops) - 1; i >= 0; i-- {
		s.stops[i]()
	}
}

// server is what both http.Server and grpc.Server are, and what ends it.
type server struct {
	serve func(net.Listener) error
	stop  func()
}

// start runs one instance, with a listener of its own, and registers it.
func (s *shop) start(ctx context.Context, service, version string, build func(self registry.Instance) (server, error)) error {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	self := registry.Instance{ID: service + "-stable", Service: service, Address: lis.Addr().String()}
	if version != "" {
		self.ID = service + "-" + version
		self.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	srv, err := build(self)
	if err != nil {
		return errors.Join(err, lis.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.serve(lis) // ends with stop
	}()
	stop := func() { srv.stop(); <-done }
	registration, err := s.reg.Register(ctx, self)
	if err != nil {
		stop()
		return err
	}
	s.stops = append(s.stops, func() {
		_ = registration.Deregister(context.Background())
		stop()
	})
	return nil
}

func (s *shop) order(self registry.Instance) (server, error) {
	conn, err := grpc.NewClient("gray:///inventory", append(
		// A machine that has other things to do may need longer for a first
		// connection than a service should wait before it falls back.
		graygrpc.DialOptions(s.reg, graygrpc.WithResolver(resolver.WithConnectWait(30*time.Second))),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return server{}, err
	}
	inventory := pb.NewInventoryClient(conn)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		reply, err := inventory.Reserve(r.Context(), &pb.ReserveRequest{OrderId: r.PathValue("id")})
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprintln(w, self.ID, reply.ServedBy)
	})
	h, err := grayhttp.NewHandler(mux, grayhttp.WithSelf(self))
	if err != nil {
		return server{}, errors.Join(err, conn.Close())
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	return server{srv.Serve, func() { _, _ = srv.Close(), conn.Close() }}, nil
}

type inventoryServer struct {
	pb.UnimplementedInventoryServer
	id string
}

func (i *inventoryServer) Reserve(context.Context, *pb.ReserveRequest) (*pb.ReserveReply, error) {
	return &pb.ReserveReply{ServedBy: i.id}, nil
}

func (s *shop) inventory(self registry.Instance) (server, error) {
	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self))
	if err != nil {
		return server{}, err
	}
	srv := grpc.NewServer(opts...)
	pb.RegisterInventoryServer(srv, &inventoryServer{id: self.ID})
	return server{srv.Serve, srv.Stop}, nil
}
