package graygrpc_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/reflection"
	reflectiongrpc "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
)

func instance(version string) registry.Instance {
	i := registry.Instance{Service: "inventory"}
	if version != "" {
		i.Metadata = map[string]string{"version": version}
	}
	return i
}

func TestArrivals(t *testing.T) {
	const requests = "graylane.server.requests"
	for _, c := range []struct {
		own, tag string
		opts     []graygrpc.ServerOption
		wanted   string
		outcome  subset.Outcome
	}{
		{own: "v2", tag: "version=v2", wanted: "v2", outcome: subset.Matched},
		{own: "", tag: "", wanted: "", outcome: subset.Stable},
		{own: "stable", tag: "uid=1", wanted: "", outcome: subset.Stable},
		{own: "", tag: "version=v2", wanted: "v2", outcome: subset.Fallback},
		{own: "v2", tag: "", wanted: "", outcome: subset.Misrouted},
		{own: "v2", tag: "version=v3", wanted: "v3", outcome: subset.Misrouted},
		{own: "v2", tag: "version=v3;version.inventory=v2", wanted: "v2", outcome: subset.Matched},
		{own: "v2", tag: "version=v2;version.inventory=stable", wanted: "", outcome: subset.Misrouted},
		{own: "", tag: "version=v2", opts: []graygrpc.ServerOption{graygrpc.WithPolicy(subset.Policy{Strict: true})}, wanted: "v2", outcome: subset.Misrouted},
		{own: "v2", tag: "", opts: []graygrpc.ServerOption{graygrpc.WithPolicy(subset.Policy{Fallback: []string{"any"}})}, wanted: "", outcome: subset.Fallback},
		{own: "v2", tag: "version=v3", opts: []graygrpc.ServerOption{
			graygrpc.WithPolicy(subset.Policy{Strict: true}),
			graygrpc.WithPolicyFor("inventory", subset.Policy{Fallback: []string{"v2"}}),
			graygrpc.WithPolicyFor("payment", subset.Policy{Strict: true}),
		}, wanted: "v3", outcome: subset.Fallback},
	} {
		t.Run(fmt.Sprintf("%q at %q", c.tag, c.own), func(t *testing.T) {
			provider, count := meter(t)
			n := &node{}
			addr := serve(t, n, serverOptions(t, append(c.opts, graygrpc.WithSelf(instance(c.own)), graygrpc.WithMeterProvider(provider))...)...)
			conn := dial(t, "passthrough:///"+addr, bare(t)...)
			sent := graytag.MustParse(c.tag)
			for kind, call := range kinds {
				require.NoError(t, call(graytag.NewContext(context.Background(), sent), conn, sent.String(), 2), kind)
			}
			version := c.own
			if version == "stable" {
				version = ""
			}
			for _, v := range n.seen() {
				assert.True(t, v.known)
				assert.Equal(t, graygrpc.Arrival{Service: "inventory", Version: version, Wanted: c.wanted, Outcome: c.outcome}, v.arrival)
			}
			label := c.wanted
			if label == "" {
				label = "stable"
			}
			assert.EqualValues(t, 4, count(requests, "wanted="+label, "outcome="+string(c.outcome)))
			assert.EqualValues(t, 4, count(requests))
		})
	}
}

func TestWithoutSelfNobodyKnowsTheArrival(t *testing.T) {
	provider, count := meter(t)
	n := &node{}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithMeterProvider(provider))...), bare(t)...)
	for _, sent := range []graytag.Tag{tag, {}} {
		require.NoError(t, callUnary(graytag.NewContext(context.Background(), sent), conn))
		assert.False(t, n.last(t).known)
		assert.True(t, n.last(t).scoped)
	}
	assert.Zero(t, count("graylane.server.requests"))
}

func TestHealthAndReflectionAreNoTraffic(t *testing.T) {
	provider, count := meter(t)
	server := grpc.NewServer(serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithMeterProvider(provider),
		graygrpc.WithExempt(testgrpc.TestService_EmptyCall_FullMethodName))...)
	n := &node{}
	testgrpc.RegisterTestServiceServer(server, n)
	healthgrpc.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	conn := dial(t, "passthrough:///"+run(t, server))

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	checked, err := healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, healthgrpc.HealthCheckResponse_SERVING, checked.Status)
	watch, err := healthgrpc.NewHealthClient(conn).Watch(ctx, &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	reflect, err := reflectiongrpc.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	require.NoError(t, reflect.Send(&reflectiongrpc.ServerReflectionRequest{MessageRequest: &reflectiongrpc.ServerReflectionRequest_ListServices{}}))
	_, err = reflect.Recv()
	require.NoError(t, err)
	_, err = testgrpc.NewTestServiceClient(conn).EmptyCall(ctx, &testgrpc.Empty{})
	require.NoError(t, err)
	assert.False(t, n.last(t).known)
	assert.True(t, n.last(t).scoped, "exempt from counting, not from the tag")
	assert.Zero(t, count("graylane.server.requests"))

	require.NoError(t, callUnary(ctx, conn))
	assert.EqualValues(t, 1, count("graylane.server.requests", "outcome=misrouted"))
}

// Values of others in the context are found behind ours, and ours in front.
func TestContextOfTheHandler(t *testing.T) {
	type key struct{}
	other := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(context.WithValue(ctx, key{}, "theirs"), req)
	})
	for _, self := range [][]graygrpc.ServerOption{nil, {graygrpc.WithSelf(instance(""))}} {
		for _, sent := range []graytag.Tag{tag, {}} {
			got := make(chan any, 1)
			n := &node{next: func(ctx context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				<-ctx.Done()
				got <- ctx.Value(key{})
				return nil
			}}
			conn := dial(t, "passthrough:///"+serve(t, n, append([]grpc.ServerOption{other}, serverOptions(t, self...)...)...), bare(t)...)
			require.NoError(t, callUnary(graytag.NewContext(context.Background(), sent), conn))
			assert.Equal(t, "theirs", <-got)
			assert.Equal(t, self != nil, n.last(t).known)
		}
	}
}
