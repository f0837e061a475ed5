package graygrpc_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/balancer/weightedroundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// silent is for servers that are meant to be reached by mistake.
var silent = graygrpc.WithLogger(slog.New(slog.DiscardHandler))

// rejecting runs an instance that is of version own and says no to what wants
// another one.
func rejecting(t *testing.T, service, own string, opts ...graygrpc.ServerOption) (*node, string) {
	t.Helper()
	n := &node{name: own}
	self := registry.Instance{Service: service}
	if own != "" {
		self.Metadata = map[string]string{"version": own}
	}
	return n, serve(t, n, serverOptions(t, append([]graygrpc.ServerOption{graygrpc.WithSelf(self), graygrpc.WithRejectMisrouted(), silent}, opts...)...)...)
}

func markerOf(err error) map[string]string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.Metadata
		}
	}
	return nil
}

func TestARefusalSaysWhy(t *testing.T) {
	provider, count := meter(t)
	n, addr := rejecting(t, "in ventory/ä", "v2", graygrpc.WithMeterProvider(provider))
	conn := dial(t, "passthrough:///"+addr, bare(t)...)
	untagged := graytag.NewContext(context.Background(), graytag.Tag{})
	for kind, call := range kinds {
		err := call(untagged, conn, "", 2)
		assert.Equal(t, codes.FailedPrecondition, status.Code(err), kind)
		assert.Equal(t, map[string]string{"service": "in ventory/ä", "address": addr}, markerOf(err), kind)
		assert.ErrorContains(t, err, "misrouted", kind)
		require.NoError(t, call(graytag.NewContext(context.Background(), graytag.MustParse("version=v2")), conn, "version=v2", 2), kind)
	}
	var trailer metadata.MD
	_, err := testgrpc.NewTestServiceClient(dial(t, "passthrough:///"+addr)).EmptyCall(untagged, &testgrpc.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.Equal(t, []string{"in%20ventory%2F%C3%A4"}, trailer.Get("x-gray-misrouted"))
	_, err = testgrpc.NewTestServiceClient(conn).EmptyCall(untagged, &testgrpc.Empty{}, grpc.Trailer(&trailer))
	assert.Equal(t, codes.FailedPrecondition, status.Code(err))
	assert.Empty(t, trailer.Get("x-gray-misrouted"), "a handler would hand it on")
	for _, v := range n.seen() {
		assert.Equal(t, subset.Matched, v.arrival.Outcome, "no handler ran")
	}
	assert.EqualValues(t, len(kinds)+2, count("graylane.server.requests", "outcome=misrouted"))

	_, err = graygrpc.ServerOptions(graygrpc.WithRejectMisrouted())
	assert.EqualError(t, err, "graygrpc: WithRejectMisrouted without WithSelf: nobody knows what is misrouted")
	_, err = graygrpc.Edge(newEngine(t, testers), graygrpc.WithRejectMisrouted())
	assert.ErrorContains(t, err, "WithRejectMisrouted without WithSelf")
}

// The registry says of g1 what is no longer true: it has been started anew as
// another version.
func TestOneTryElsewhere(t *testing.T) {
	strict := graygrpc.WithPolicy(subset.Policy{Strict: true})
	for _, c := range []struct {
		name       string
		id         string   // of the instance that refuses, "" where it does not know
		registered []string // versions of the others
		opts       []graygrpc.DialOption
		served     string // version
		code       codes.Code
	}{
		{name: "another instance of the version", registered: []string{"v2.1.0", ""}, served: "v2.1.0"},
		{name: "another instance of the version, by ID", id: "g1", registered: []string{"v2.1.0", ""}, served: "v2.1.0"},
		{name: "strict, another instance", registered: []string{"v2.1.0", ""}, opts: []graygrpc.DialOption{strict}, served: "v2.1.0"},
		{name: "the policy's fallback", registered: []string{"", "v4"}, served: ""},
		{name: "the fallback to a version", registered: []string{"", "v4"},
			opts: []graygrpc.DialOption{graygrpc.WithPolicy(subset.Policy{Fallback: []string{"v4"}})}, served: "v4"},
		{name: "whoever there is", registered: []string{"v4"},
			opts: []graygrpc.DialOption{graygrpc.WithPolicy(subset.Policy{Fallback: []string{"any"}})}, served: "v4"},
		{name: "nobody else may", registered: []string{""}, opts: []graygrpc.DialOption{strict}, code: codes.FailedPrecondition},
		{name: "there is nobody else", code: codes.FailedPrecondition},
		{name: "a policy that shows no instances", registered: []string{"v2.1.0", ""}, served: "v2.1.0",
			opts: []graygrpc.DialOption{graygrpc.WithResolver(resolver.WithChildPolicy(`[{"weighted_round_robin":{}}]`))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := memory.New()
			provider, count := meter(t)
			liar := &node{name: "liar"}
			self := registry.Instance{ID: c.id, Service: "order", Metadata: map[string]string{"version": "v3.0.0"}}
			addr := serve(t, liar, serverOptions(t, graygrpc.WithSelf(self), graygrpc.WithRejectMisrouted(), graygrpc.WithMeterProvider(provider), silent)...)
			register(t, reg, "g1", "order", "v2.1.0", addr)
			nodes := map[string]*node{}
			for i, version := range c.registered {
				n, addr := rejecting(t, "order", version, graygrpc.WithPolicy(subset.Policy{Fallback: []string{"any"}}))
				nodes[version] = n
				register(t, reg, fmt.Sprint("other", i), "order", version, addr)
			}
			conn := dial(t, "gray:///order", graygrpc.DialOptions(reg, c.opts...)...)
			ctx := graytag.NewContext(context.Background(), tag)
			before := map[string]int{}
			if c.code == codes.OK { // everybody is connected
				require.Eventually(t, func() bool {
					return callUnary(ctx, conn) == nil && len(nodes[c.served].seen()) > 0 && count("graylane.server.requests", "outcome=misrouted") > 0
				}, 10*time.Second, time.Millisecond)
				for version, n := range nodes {
					before[version] = len(n.seen())
				}
			}
			for range 10 {
				for kind, call := range kinds {
					err := call(ctx, conn, tag.String(), 2)
					require.Equal(t, c.code, status.Code(err), "%s: %v", kind, err)
					if err != nil {
						assert.Equal(t, "order", markerOf(err)["service"], "as it came")
					}
				}
			}
			assert.Empty(t, liar.seen())
			assert.Positive(t, count("graylane.server.requests", "outcome=misrouted"))
			for version, n := range nodes {
				if version == c.served && c.code == codes.OK {
					assert.Equal(t, before[version]+10*len(kinds), len(n.seen()))
				} else {
					assert.Equal(t, before[version], len(n.seen()), "version %q", version)
				}
			}
		})
	}
}

// Where nothing tells which instance has refused, its whole version is passed over.
func TestAnUnknownInstanceRefuses(t *testing.T) {
	reg := memory.New()
	liar := &node{}
	self := registry.Instance{ID: "x", Address: "192.0.2.1:80", Service: "order", Metadata: map[string]string{"version": "v3.0.0"}}
	register(t, reg, "g1", "order", "v2.1.0", serve(t, liar, serverOptions(t, graygrpc.WithSelf(self), graygrpc.WithRejectMisrouted(), silent)...))
	nodes := map[string]*node{}
	for id, version := range map[string]string{"g2": "v2.1.0", "s1": ""} {
		n, addr := rejecting(t, "order", version)
		nodes[id] = n
		register(t, reg, id, "order", version, addr)
	}
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	calls := 0
	require.Eventually(t, func() bool {
		calls++
		assert.NoError(t, callTagged(conn))
		return len(nodes["s1"].seen()) > 0 && len(nodes["g2"].seen()) > 0
	}, 10*time.Second, time.Millisecond)
	assert.Empty(t, liar.seen())
	assert.Equal(t, calls, len(nodes["g2"].seen())+len(nodes["s1"].seen()))
}

// All instances refuse: there are two tries and no more, also where the client is
// wrapped twice.
func TestNeverMoreThanOneTryElsewhere(t *testing.T) {
	for name, wrap := range map[string]func(...grpc.DialOption) []grpc.DialOption{
		"once":  func(o ...grpc.DialOption) []grpc.DialOption { return o },
		"twice": func(o ...grpc.DialOption) []grpc.DialOption { return append(o, bare(t)...) },
	} {
		t.Run(name, func(t *testing.T) {
			reg := memory.New()
			provider, count := meter(t)
			for i := range 4 {
				_, addr := rejecting(t, "order", "v3", graygrpc.WithMeterProvider(provider))
				register(t, reg, fmt.Sprint("g", i), "order", "v2.1.0", addr)
			}
			conn := dial(t, "gray:///order", wrap(graygrpc.DialOptions(reg)...)...)
			require.Eventually(t, func() bool { // somebody else is connected
				before := count("graylane.server.requests")
				require.Error(t, callTagged(conn))
				return count("graylane.server.requests") == before+2
			}, 10*time.Second, time.Millisecond)
			asked := count("graylane.server.requests")
			for kind, call := range kinds {
				err := call(graytag.NewContext(context.Background(), tag), conn, tag.String(), 2)
				require.Equal(t, codes.FailedPrecondition, status.Code(err), kind)
				require.Equal(t, "order", markerOf(err)["service"], kind)
				asked += 2
				assert.Equal(t, asked, count("graylane.server.requests"), kind)
			}
		})
	}
}

// A refusal that a handler hands on is none of its own, and no reason to run it
// again.
func TestARelayedRefusalIsNone(t *testing.T) {
	_, refusing := rejecting(t, "order", "v3")
	toRefusing := dial(t, "passthrough:///"+refusing, bare(t)...)
	reg := memory.New()
	var relays []*node
	for _, id := range []string{"s1", "s2"} {
		n := &node{next: func(ctx context.Context) error { return callUnary(ctx, toRefusing) }}
		relays = append(relays, n)
		register(t, reg, id, "order", "", serve(t, n, serverOptions(t, graygrpc.WithSelf(registry.Instance{Service: "order"}))...))
	}
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	for kind, call := range kinds {
		before := len(relays[0].seen()) + len(relays[1].seen())
		err := call(graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 2)
		assert.Equal(t, codes.FailedPrecondition, status.Code(err), kind)
		assert.Empty(t, markerOf(err), kind)
		assert.Equal(t, before+1, len(relays[0].seen())+len(relays[1].seen()), kind)
	}
	// Other details stay.
	detailed, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Reason: "STOCK", Domain: "shop"})
	require.NoError(t, err)
	n := &node{next: func(context.Context) error { return detailed.Err() }}
	err = callUnary(context.Background(), dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...)))
	assert.Len(t, status.Convert(err).Details(), 1)
}

// connected waits until conn has reached n.
func connected(t *testing.T, ctx context.Context, conn *grpc.ClientConn, n *node) {
	t.Helper()
	require.Eventually(t, func() bool {
		_ = callUnary(ctx, conn)
		return len(n.seen()) > 0
	}, 10*time.Second, time.Millisecond)
}

// What is sent again to another instance is what was sent, even where a program uses
// one message over and over.
func TestStreamsAreSentAgain(t *testing.T) {
	reg := memory.New()
	_, liar := rejecting(t, "order", "v3.0.0")
	register(t, reg, "g1", "order", "v2.1.0", liar)
	n, addr := rejecting(t, "order", "v2.1.0")
	register(t, reg, "g2", "order", "v2.1.0", addr)
	// Without another instance that is connected, the refusal would be handed on.
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg, graygrpc.WithPolicy(subset.Policy{Strict: true}))...)
	client := testgrpc.NewTestServiceClient(conn)
	ctx := graytag.NewContext(context.Background(), tag)
	connected(t, ctx, conn, n)
	want := []byte(tag.String())

	for _, c := range []struct {
		messages, size int
		handedOn       bool
	}{{messages: 0}, {messages: 1}, {messages: 4}, {messages: 20, handedOn: true}, {messages: 2, size: 20 << 10, handedOn: true}} {
		refusals := 0
		for range 8 {
			stream, err := client.StreamingInputCall(ctx)
			require.NoError(t, err)
			in := &testgrpc.StreamingInputCallRequest{Payload: &testgrpc.Payload{Body: append(want, make([]byte, c.size)...)}}
			for range c.messages {
				in.Payload.Body = append(want[:len(want):len(want)], make([]byte, c.size)...)
				if stream.Send(in) != nil {
					break
				}
				in.Payload.Body = []byte("spoilt")
			}
			out, err := stream.CloseAndRecv()
			if status.Code(err) == codes.FailedPrecondition {
				refusals++
				continue
			}
			require.NoError(t, err)
			if c.size == 0 {
				require.EqualValues(t, c.messages, out.AggregatedPayloadSize)
			}
		}
		if !c.handedOn {
			assert.Zero(t, refusals, "%d messages of %d bytes", c.messages, c.size)
		}
	}
	assert.NotEmpty(t, n.seen())
}

// One goroutine sends and another receives, while the first instance refuses.
func TestStreamsOfTwoGoroutinesAreSentAgain(t *testing.T) {
	reg := memory.New()
	_, liar := rejecting(t, "order", "v3.0.0")
	register(t, reg, "g1", "order", "v2.1.0", liar)
	n, addr := rejecting(t, "order", "v2.1.0")
	register(t, reg, "g2", "order", "v2.1.0", addr)
	conn := dial(t, "gray:///order", graygrpc.DialOptions(reg)...)
	ctx := graytag.NewContext(context.Background(), tag)
	connected(t, ctx, conn, n)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(ctx)
			if !assert.NoError(t, err) {
				return
			}
			var receiver sync.WaitGroup
			receiver.Go(func() {
				got := 0
				for {
					_, err := stream.Recv()
					if err == io.EOF {
						assert.Equal(t, 3, got)
						return
					}
					if !assert.NoError(t, err) {
						return
					}
					got++
				}
			})
			for range 3 {
				assert.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
			}
			assert.NoError(t, stream.CloseSend())
			receiver.Wait()
		})
	}
	all.Wait()
	// Asking for the header first is as good.
	traced, trace := propagation.TraceRoute(ctx)
	defer trace.End()
	for range 4 {
		stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(traced)
		require.NoError(t, err)
		require.NoError(t, stream.Send(&testgrpc.StreamingOutputCallRequest{}))
		md, err := stream.Header()
		require.NoError(t, err)
		assert.NotNil(t, md)
		_, err = stream.Recv()
		require.NoError(t, err)
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		assert.Equal(t, io.EOF, err)
		assert.NotNil(t, stream.Context())
		assert.Empty(t, stream.Trailer().Get("x-gray-misrouted"))
	}
	route, _ := trace.Hops()
	outcomes := map[string]int{}
	for _, h := range route {
		outcomes[h.Outcome]++
	}
	assert.Equal(t, 4, outcomes["matched"])
	assert.Positive(t, outcomes["misrouted"])
	assert.Len(t, outcomes, 2)
}

// What ends otherwise than with a refusal ends as it does without us.
func TestStreamsThatFail(t *testing.T) {
	reg := memory.New()
	n := &node{next: func(context.Context) error { return status.Error(codes.NotFound, "no") }}
	register(t, reg, "s1", "order", "", serve(t, n))
	client := testgrpc.NewTestServiceClient(dial(t, "gray:///order", graygrpc.DialOptions(reg)...))
	ctx := graytag.NewContext(context.Background(), graytag.Tag{})
	for range 5 {
		both, err := client.FullDuplexCall(ctx)
		require.NoError(t, err)
		md, err := both.Header()
		require.NoError(t, err)
		assert.Nil(t, md)
		assert.ErrorIs(t, both.Send(&testgrpc.StreamingOutputCallRequest{}), io.EOF)
		_, err = both.Recv()
		assert.Equal(t, codes.NotFound, status.Code(err))

		input, err := client.StreamingInputCall(ctx)
		require.NoError(t, err)
		for input.Send(&testgrpc.StreamingInputCallRequest{}) == nil {
		}
		_, err = input.CloseAndRecv()
		assert.Equal(t, codes.NotFound, status.Code(err))
	}
	assert.Len(t, n.seen(), 10)
}

// A server that is slow to read holds nobody up who receives.
func TestStreamsThatBlock(t *testing.T) {
	reg := memory.New()
	release := make(chan struct{})
	slow := &careless{stream: func(ss grpc.ServerStream) error {
		if err := ss.SendMsg(&testgrpc.StreamingOutputCallResponse{}); err != nil {
			return err
		}
		<-release
		for ss.RecvMsg(&testgrpc.StreamingOutputCallRequest{}) == nil {
		}
		return nil
	}}
	register(t, reg, "s1", "order", "", serve(t, slow))
	client := testgrpc.NewTestServiceClient(dial(t, "gray:///order", graygrpc.DialOptions(reg)...))
	stream, err := client.FullDuplexCall(graytag.NewContext(context.Background(), graytag.Tag{}))
	require.NoError(t, err)
	sent := make(chan error, 1)
	go func() {
		in := &testgrpc.StreamingOutputCallRequest{Payload: &testgrpc.Payload{Body: make([]byte, 1<<20)}}
		err := firstOf(stream.Send(in), stream.Send(in))
		sent <- firstOf(err, stream.CloseSend())
	}()
	_, err = stream.Recv()
	require.NoError(t, err, "while the other direction is full")
	close(release)
	require.NoError(t, <-sent)
	_, err = stream.Recv()
	assert.Equal(t, io.EOF, err)
}

func TestMisroutedCallsAreLogged(t *testing.T) {
	for _, reject := range []bool{false, true} {
		var out syncBuffer
		opts := []graygrpc.ServerOption{graygrpc.WithSelf(instance("v2")), graygrpc.WithLogger(slog.New(slog.NewTextHandler(&out, nil)))}
		if reject {
			opts = append(opts, graygrpc.WithRejectMisrouted())
		}
		conn := dial(t, "passthrough:///"+serve(t, &node{}, serverOptions(t, opts...)...), bare(t)...)
		ctx := graytag.NewContext(context.Background(), graytag.MustParse("version=v3;uid=10086"))
		for range 200 {
			if err := callUnary(ctx, conn); reject {
				require.Error(t, err)
			}
		}
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		assert.LessOrEqual(t, len(lines), 16)
		assert.Contains(t, lines[0], "level=WARN")
		assert.Contains(t, lines[0], fmt.Sprintf(`service=inventory version=v2 wanted=v3 method=/grpc.testing.TestService/UnaryCall refused=%t`, reject))
		assert.NotContains(t, out.String(), "10086")
	}
}

// syncBuffer is a buffer for a logger.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestS1_ProbesOfARejectingInstance(t *testing.T) {
	server := grpc.NewServer(serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithRejectMisrouted(), silent)...)
	registerNode(server, &node{})
	healthgrpc.RegisterHealthServer(server, health.NewServer())
	conn := dial(t, "passthrough:///"+run(t, server))
	out, err := healthgrpc.NewHealthClient(conn).Check(context.Background(), &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	assert.Equal(t, healthgrpc.HealthCheckResponse_SERVING, out.Status)
	watch, err := healthgrpc.NewHealthClient(conn).Watch(t.Context(), &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watch.Recv()
	require.NoError(t, err)
	assert.Equal(t, codes.FailedPrecondition, status.Code(callUnary(context.Background(), conn)))
}
