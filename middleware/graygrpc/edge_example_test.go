package graygrpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/graygrpc"
)

// The entrance decides which version each user gets. Its rules come from a store
// in production, see rule.Engine.Follow.
func ExampleEdge() {
	engine, err := rule.NewEngine(&rule.Set{Rules: []rule.Rule{{
		ID: "testers", Match: []rule.Condition{{Attr: "uid", Op: rule.OpSuffix, Values: []string{"9999"}}}, Tag: "version=v2",
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	opts, err := graygrpc.Edge(engine)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(opts...)
	testgrpc.RegisterTestServiceServer(server, &inventory{id: "front"})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go server.Serve(l)
	defer server.Stop()

	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for _, kv := range [][]string{{"x-user-id", "10019999"}, {"x-user-id", "10086", "x-gray-tag", "version=v2"}} {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(context.Background(), kv...)
		if _, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header)); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(kv, header[graygrpc.VersionKey])
	}
	// Output:
	// [x-user-id 10019999] [v2]
	// [x-user-id 10086 x-gray-tag version=v2] [stable]
}
