package resolver_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// serve runs an instance, registers it and notes its name under its address.
func serve(reg registry.Registrar, names map[string]string, id, version string) (stop func(), err error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, grpc_health_v1.UnimplementedHealthServer{})
	go func() { _ = server.Serve(lis) }()
	names[lis.Addr().String()] = id
	_, err = reg.Register(context.Background(), registry.Instance{
		ID: id, Service: "inventory", Address: lis.Addr().String(), Metadata: map[string]string{"version": version},
	})
	return server.Stop, err
}

func ExampleDialOptions() {
	reg := memory.New()
	names := make(map[string]string) // by address
	for id, version := range map[string]string{"inventory-stable": "stable", "inventory-gray": "v2.1.0"} {
		stop, err := serve(reg, names, id, version)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer stop()
	}

	opts, err := resolver.DialOptions(reg, resolver.WithPolicyFor("payment", subset.Policy{Strict: true}))
	if err != nil {
		fmt.Println(err)
		return
	}
	opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("gray:///inventory", opts...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()

	for _, tag := range []string{"", "version=v2.1.0", "version=v9"} {
		ctx := graytag.NewContext(context.Background(), graytag.MustParse(tag))
		var p peer.Peer
		_, _ = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Peer(&p))
		fmt.Printf("%q is served by %s\n", tag, names[p.Addr.String()])
	}
	// Output:
	// "" is served by inventory-stable
	// "version=v2.1.0" is served by inventory-gray
	// "version=v9" is served by inventory-stable
}
