package graygrpc_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/internal/race"
)

// edgeCases are what BenchmarkEdge and the guard below compare: one unary RPC over
// a real connection, from a client without graylane. The headers of the answer
// cost on both sides of the connection.
func edgeCases(tb testing.TB) map[string]func() {
	call := func(opts []grpc.ServerOption, kv ...string) func() {
		client := testgrpc.NewTestServiceClient(dial(tb, "passthrough:///"+serve(tb, quiet{}, opts...)))
		ctx := metadata.AppendToOutgoingContext(context.Background(), kv...)
		one := func() {
			if _, err := client.EmptyCall(ctx, &testgrpc.Empty{}); err != nil {
				tb.Fatal(err)
			}
		}
		for range 100 {
			one()
		}
		return one
	}
	edge := edgeOptions(tb, newEngine(tb, testers))
	return map[string]func(){
		"plain":    call(nil, "x-user-id", "10086"),
		"inbound":  call(serverOptions(tb), "x-user-id", "10086"),
		"untagged": call(edge, "x-user-id", "10086"),
		"tagged":   call(edge, "x-user-id", "9999"),
		"forged":   call(edge, "x-user-id", "10086", "x-gray-tag", "version=v2", "baggage", "gray.version=v2,tenant=acme"),
	}
}

func BenchmarkEdge(b *testing.B) {
	cases := edgeCases(b)
	for _, name := range []string{"plain", "inbound", "untagged", "tagged", "forged"} {
		one := cases[name]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				one()
			}
		})
	}
}

func TestEdgeAllocations(t *testing.T) {
	if race.Enabled {
		t.Log("the race detector allocates: figures are not compared")
		return
	}
	allocs := map[string]float64{}
	for name, one := range edgeCases(t) {
		allocs[name] = testing.AllocsPerRun(1000, one)
	}
	t.Log(allocs)
	assert.LessOrEqual(t, allocs["untagged"]-allocs["plain"], 20.0)
	assert.LessOrEqual(t, allocs["tagged"]-allocs["untagged"], 4.0)
}
