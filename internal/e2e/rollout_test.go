package e2e_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
)

var quiet = slog.New(slog.DiscardHandler)

const laneOfOrder = `{
  "rules": [{"id": "order", "services": ["order"], "percent": 0, "tag": "version=v2"}],
  "plans": {"lane": {"rules": ["order"], "stages": [{"percent": 100, "hold": "24h"}]}}
}`

// control runs a controller beside an engine that follows the same store.
func control(t *testing.T, store rule.Store, engine *rule.Engine) *rollout.Controller {
	t.Helper()
	c, err := rollout.NewController(store, nil, rollout.WithEngine(engine), rollout.WithControllerLogger(quiet))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{}, 2)
	go func() { _ = engine.Follow(ctx, store); done <- struct{}{} }()
	go func() { _ = c.Run(ctx); done <- struct{}{} }()
	t.Cleanup(func() { cancel(); <-done; <-done })
	return c
}

// open returns how many calls of a version are open by its metrics: those that have
// arrived less those that have ended.
func open(t *testing.T, reader sdkmetric.Reader, version string) (n int) {
	t.Helper()
	var rm metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &rm))
	for _, sm := range rm.ScopeMetrics {
		for _, m := range sm.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					if v, _ := p.Attributes.Value("wanted"); m.Name == "graylane.server.requests" && v.AsString() == version {
						n += int(p.Value)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					if v, _ := p.Attributes.Value("wanted"); m.Name == "graylane.server.duration" && v.AsString() == version {
						n -= int(p.Count)
					}
				}
			}
		}
	}
	return n
}

func TestO7_RollbackWhileAStreamIsOpen(t *testing.T) {
	reg := openRegistry(t, consultest.Start(t))
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	for _, version := range []string{"", "v2"} {
		self := registry.Instance{ID: "order-" + version + "1", Service: "order"}
		if version != "" {
			self.Metadata = map[string]string{"version": version}
		}
		opts, err := graygrpc.ServerOptions(graygrpc.WithSelf(self), graygrpc.WithMeterProvider(provider))
		require.NoError(t, err)
		srv := grpc.NewServer(opts...)
		testgrpc.RegisterTestServiceServer(srv, &node{id: self.ID, service: "order", log: &log{}})
		start(t, reg, "order", version, 1, srv.Serve, srv.Stop)
	}
	visible(t, reg, 2)

	store, err := reg.RuleStore("graylane/rules")
	require.NoError(t, err)
	_, err = store.Put(t.Context(), rule.Document{Data: []byte(laneOfOrder)}, 0)
	require.NoError(t, err)
	engine, err := rule.NewEngine(nil, rule.WithLogger(quiet))
	require.NoError(t, err)
	c := control(t, store, engine)
	exchanges := make(chan gateway.Exchange, 1000)
	gw, err := gateway.New(engine, reg, gateway.WithRoutes(gateway.Route{Service: "order"}), gateway.WithLogger(quiet),
		gateway.WithObserver(func(_ context.Context, e gateway.Exchange) { exchanges <- e }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = gw.Close() })
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	front := gateway.NewServer("", gw)
	served := make(chan struct{})
	go func() { defer close(served); _ = front.Serve(lis) }()
	t.Cleanup(func() { _ = front.Close(); <-served })

	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	client := testgrpc.NewTestServiceClient(conn)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "10086"), 2*wait)
	defer cancel()
	servedBy := func() string {
		reply, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{})
		require.NoError(t, err)
		return reply.ServerId
	}
	_, err = c.Do(t.Context(), "lane", rollout.CommandStart, rollout.Note{Who: "ann"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return servedBy() == "order-v21" && len(c.Status(t.Context()).Plans) == 1
	}, wait, 10*time.Millisecond)

	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	echo := func() string {
		require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
		reply, err := stream.Recv()
		require.NoError(t, err)
		return string(reply.Payload.Body)
	}
	require.Equal(t, "order-v21", echo())
	require.Eventually(t, func() bool { return open(t, reader, "v2") == 1 }, wait, 10*time.Millisecond)

	begun := time.Now()
	_, err = c.Do(t.Context(), "lane", rollout.CommandRollback, rollout.Note{Who: "ann"})
	require.NoError(t, err)
	for range 100 {
		require.Equal(t, "order-1", servedBy(), "new calls are stable at once: the engine is, before the write returns")
	}
	t.Logf("rolled back, and 100 new calls on stable, in %v", time.Since(begun))
	assert.Equal(t, "order-v21", echo(), "the old stream goes on where it is")
	require.Eventually(t, func() bool { return open(t, reader, "stable") == 0 }, wait, 10*time.Millisecond)
	assert.Equal(t, 1, open(t, reader, "v2"), "and is counted")

	for len(exchanges) > 0 {
		<-exchanges
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool { return open(t, reader, "v2") == 0 }, wait, 10*time.Millisecond)
	for {
		if e := <-exchanges; e.Wanted == "v2" {
			assert.Equal(t, "v2", e.Served, "the gateway tells of it by the version that it wanted")
			break
		}
	}
}

// ready tells of instances that may take the traffic of everyone once the rules are
// cleared.
func ready(disc registry.Discovery, key, value string) rollout.Ready {
	return func(ctx context.Context, service string) (int, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		return registry.CountStable(ctx, disc, service, map[string]string{key: value})
	}
}

func TestFinishWaitsForTheNewReleaseAsStable(t *testing.T) {
	reg := openRegistry(t, consultest.Start(t))
	old := startHTTP(t, reg, &log{}, "order", "", 1, nil)
	gray := startHTTP(t, reg, &log{}, "order", "v2", 1, nil)
	visible(t, reg, 2)
	require.NoError(t, gray.Update(t.Context(), map[string]string{"version": "v2", "release": "2026-12"}))

	store, err := reg.RuleStore("graylane/rules")
	require.NoError(t, err)
	_, err = store.Put(t.Context(), rule.Document{Data: []byte(laneOfOrder)}, 0)
	require.NoError(t, err)
	engine, err := rule.NewEngine(nil, rule.WithLogger(quiet))
	require.NoError(t, err)
	c := control(t, store, engine)
	for _, command := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote} {
		_, err := c.Do(t.Context(), "lane", command, rollout.Note{Who: "ann"})
		require.NoError(t, err)
	}
	finish := func() error {
		_, err := c.Finish(t.Context(), "lane", ready(reg, "release", "2026-12"), rollout.Note{Who: "ann"})
		return err
	}
	var missing *rollout.NotReadyError
	require.ErrorAs(t, finish(), &missing, "the new release is there as gray alone")
	assert.Equal(t, []string{"order"}, missing.Missing)

	// The pipeline deploys the new release as stable.
	require.NoError(t, old.Update(t.Context(), map[string]string{"release": "2026-12"}))
	require.Eventually(t, func() bool { return finish() == nil }, wait, 10*time.Millisecond)
	require.Eventually(t, func() bool { return engine.Status().Rules == 0 }, wait, 10*time.Millisecond)
}
