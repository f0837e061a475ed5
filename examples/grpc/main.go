// GRPC is the smallest honest gRPC service: it registers, serves behind the
// inbound middleware and calls another service by name.
//
//	go run ./examples/grpc                # the embedded registry
//	go run ./examples/grpc -consul ADDR   # the same on a Consul agent
//
// To have something to show it runs two instances of itself, stable and v2, in
// one process, and sends itself one call of each colour. In a service of yours
// the version comes from the environment (GRAY_VERSION), set by the pipeline.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/graylane/graylane/examples/internal/ready"
	"github.com/graylane/graylane/examples/internal/shop"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// What the continuous integration expects of the output:
// ci: ^version=v2 -> served by user-v2$

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("grpc", flag.ContinueOnError)
	agent := flags.String("consul", "", "`address` of a Consul agent, instead of the embedded registry")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var reg interface {
		registry.Registrar
		registry.Discovery
	} = memory.New()
	if *agent != "" {
		c, err := consul.New(nil, consul.WithAddress(*agent))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		reg = c
	}
	for _, self := range []registry.Instance{
		// In a service of yours there is one, and the pipeline says what it is:
		// registry.FromEnv(registry.Instance{ID: host, Service: "user"}).
		{ID: "user-stable", Service: "user"},
		{ID: "user-v2", Service: "user", Metadata: map[string]string{"version": "v2"}},
	} {
		stop, err := serve(ctx, reg, self)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := ready.Wait(ctx, reg, "user", 2); err != nil {
		return err
	}

	creds := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient("gray:///user", append(graygrpc.DialOptions(reg), creds)...)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, tag := range []string{"version=v2", ""} {
		// The context of a call that you serve holds its tag already.
		ctx := graytag.NewContext(ctx, graytag.MustParse(tag))
		reply, err := shop.NewUserClient(conn).Get(ctx, &shop.GetRequest{UserId: "10086"})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s -> served by %s\n", tag, reply.ServedBy)
	}
	return nil
}

type user struct {
	shop.UnimplementedUserServer
	self registry.Instance
}

func (u *user) Get(_ context.Context, in *shop.GetRequest) (*shop.GetReply, error) {
	return &shop.GetReply{Name: "user " + in.UserId, ServedBy: u.self.ID}, nil
}

// serve runs one instance: listen, serve, and only then register.
func serve(ctx context.Context, reg registry.Registrar, self registry.Instance) (stop func(), err error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	self.Address = lis.Addr().String()

	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self))
	if err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	srv := grpc.NewServer(opts...)
	shop.RegisterUserServer(srv, &user{self: self})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()

	registration, err := reg.Register(ctx, self)
	if err != nil {
		srv.Stop()
		<-done
		return nil, err
	}
	return func() {
		// First nobody finds us any more, then we stop.
		_ = registration.Deregister(context.Background())
		srv.GracefulStop()
		<-done
	}, nil
}
