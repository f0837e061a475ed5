package graygrpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// inventory is a service like any other: no graylane in its handlers.
type inventory struct {
	testgrpc.UnimplementedTestServiceServer
	id string
}

func (s *inventory) UnaryCall(ctx context.Context, _ *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
	return &testgrpc.SimpleResponse{ServerId: s.id}, nil
}

// start runs an instance of the service and registers it.
func start(reg registry.Registrar, id, version string) (stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	self := registry.Instance{
		ID: id, Service: "inventory", Address: l.Addr().String(),
		Metadata: map[string]string{"version": version}, // registry.FromEnv in production
	}
	opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self))
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, &inventory{id: id})
	go server.Serve(l)
	_, err = reg.Register(context.Background(), self)
	return server.Stop, err
}

func Example() {
	reg := memory.New() // consul.New in production
	for id, version := range map[string]string{"inventory-1": "", "inventory-2": "v2.1.0"} {
		stop, err := start(reg, id, version)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer stop()
	}

	creds := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient("gray:///inventory", append(graygrpc.DialOptions(reg), creds)...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	client := testgrpc.NewTestServiceClient(conn)

	// In a handler the context has the tag already.
	for _, tag := range []string{"version=v2.1.0;uid=10086", "uid=10087", "version=v9"} {
		ctx := graytag.NewContext(context.Background(), graytag.MustParse(tag))
		res, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%-24s -> %s\n", tag, res.ServerId)
	}
	// Output:
	// version=v2.1.0;uid=10086 -> inventory-2
	// uid=10087                -> inventory-1
	// version=v9               -> inventory-1
}

func ExampleArrivalFromContext() {
	handler := func(ctx context.Context) {
		if a, ok := graygrpc.ArrivalFromContext(ctx); ok {
			fmt.Printf("wanted %q, served by %q: %s\n", a.Wanted, a.Version, a.Outcome)
		}
	}
	interceptor, err := graygrpc.UnaryServerInterceptor(graygrpc.WithSelf(registry.Instance{Service: "inventory"}))
	if err != nil {
		fmt.Println(err)
		return
	}
	// gRPC calls it; here with the context of a request that came with v2.
	ctx := graytag.NewContext(context.Background(), graytag.MustParse("version=v2"))
	interceptor(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/shop.Inventory/Get"}, func(ctx context.Context, _ any) (any, error) {
		handler(ctx)
		return nil, nil
	})
	// Output: wanted "v2", served by "": fallback
}
