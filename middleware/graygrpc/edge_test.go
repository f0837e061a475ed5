package graygrpc_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/baggage"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthgrpc "google.golang.org/grpc/health/grpc_health_v1"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/propagation"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// testers sends the users whose uid ends in 9999 to v2.
const testers = `{"rules": [{"id": "testers", "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"}]}`

func newEngine(tb testing.TB, document string) *rule.Engine {
	tb.Helper()
	set, err := rule.Parse([]byte(document))
	require.NoError(tb, err)
	engine, err := rule.NewEngine(set)
	require.NoError(tb, err)
	return engine
}

func edgeOptions(tb testing.TB, engine *rule.Engine, opts ...graygrpc.EdgeOption) []grpc.ServerOption {
	tb.Helper()
	o, err := graygrpc.Edge(engine, opts...)
	require.NoError(tb, err)
	return o
}

// entrance runs n behind an edge, and returns a connection without graylane.
func entrance(tb testing.TB, n *node, engine *rule.Engine, opts ...graygrpc.EdgeOption) *grpc.ClientConn {
	tb.Helper()
	return dial(tb, "passthrough:///"+serve(tb, n, edgeOptions(tb, engine, opts...)...))
}

// ask sends one unary RPC with the metadata kv and returns the answer's header.
func ask(tb testing.TB, conn *grpc.ClientConn, kv ...string) metadata.MD {
	tb.Helper()
	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(context.Background(), kv...)
	_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header))
	require.NoError(tb, err)
	return header
}

func compatible(tb testing.TB) *propagation.Propagator {
	tb.Helper()
	p, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"), propagation.WithCanaryHeader("X-Canary"))
	require.NoError(tb, err)
	return p
}

// forgery is what W1 sends: each pair claims a tag. Over HTTP/2 all names are in
// lower case.
var forgery = []string{
	"x-gray-tag", "version=v2", "x-gray-tag", "version=v3;uid=1", "x-gray-trace", "1", "x-gray-version", "v2", "x-canary", "canary",
	"baggage", "tenant=acme,gray.version=v2", "baggage", "gray.uid=1 , Gray.version=v2,gray%2Eversion=v2,plan=gold",
}

func TestW1_NothingForgedComesIn(t *testing.T) {
	for name, c := range map[string]struct {
		opts []graygrpc.EdgeOption
		otel bool
		more []string
	}{
		"direct":                  {},
		"through a trusted proxy": {opts: []graygrpc.EdgeOption{graygrpc.WithTrustedProxies("127.0.0.1")}, more: []string{"x-forwarded-for", "203.0.113.7"}},
		"otelgrpc outside":        {otel: true},
		"the peer it claims to be is a trusted gateway": {
			opts: []graygrpc.EdgeOption{graygrpc.WithTrustedProxies("127.0.0.1"), graygrpc.WithTrustedGateways("10.0.0.0/8")},
			more: []string{"x-forwarded-for", "10.0.0.1"}, otel: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			provider, count := meter(t)
			reg := memory.New()
			upstream := &node{name: "upstream"}
			register(t, reg, "i1", "inventory", "", serve(t, upstream))
			toInventory := dial(t, "gray:///inventory", graygrpc.DialOptions(reg, graygrpc.WithPropagator(compatible(t)))...)
			n := &node{next: func(ctx context.Context) error {
				// As careless as can be: all that came in goes on.
				md, _ := metadata.FromIncomingContext(ctx)
				md = md.Copy()
				for _, k := range []string{":authority", "content-type", "user-agent", "grpc-accept-encoding"} {
					delete(md, k)
				}
				return callUnary(metadata.NewOutgoingContext(ctx, md), toInventory)
			}}
			opts := edgeOptions(t, newEngine(t, testers), append(c.opts, graygrpc.WithMeterProvider(provider), graygrpc.WithPropagator(compatible(t)))...)
			if c.otel {
				opts = append(opts, otelServer())
			}
			conn := dial(t, "passthrough:///"+serve(t, n, opts...))
			for kind, call := range kinds {
				ctx := metadata.AppendToOutgoingContext(context.Background(), append(forgery, c.more...)...)
				require.NoError(t, call(ctx, conn, "", 2), kind)
				v := n.last(t)
				assert.True(t, v.scoped)
				for _, key := range []string{"x-gray-tag", "x-gray-trace", "x-gray-version", "x-canary"} {
					assert.Empty(t, v.md.Get(key), key)
				}
				assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold"}, memberLines(v.md))
				assert.Equal(t, 2, v.baggage.Len())
				assert.Equal(t, "acme", v.baggage.Member("tenant").Value())
				up := upstream.last(t)
				assert.Empty(t, up.tag)
				assert.Empty(t, up.md.Get("x-gray-tag"))
				assert.ElementsMatch(t, []string{"tenant=acme", "plan=gold"}, memberLines(up.md))
			}
			for _, carrier := range []string{"header", "baggage", "compatibility", "trace"} {
				assert.EqualValues(t, len(kinds), count("graylane.edge.forged", "carrier="+carrier), carrier)
			}
			assert.Zero(t, count("graylane.propagation.malformed"))
		})
	}
}

func TestAnEdgeColoursAllKinds(t *testing.T) {
	n := &node{}
	conn := entrance(t, n, newEngine(t, testers))
	for kind, call := range kinds {
		require.NoError(t, call(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "9999"), conn, "version=v2", 3), kind)
		require.NoError(t, call(context.Background(), conn, "", 3), kind)
		assert.True(t, n.last(t).scoped)
	}
}

func TestTheAnswerNamesTheVersion(t *testing.T) {
	n := &node{}
	conn := entrance(t, n, newEngine(t, `{"rules": [
		{"id": "odd", "match": [{"attr": "uid", "op": "equals", "values": ["1"]}], "tag": "version=%E7%81%B0 b"},
		{"id": "p", "percent": 99.999, "hashBy": ["group"], "tag": "version=v2"}]}`))
	assert.Equal(t, []string{"%E7%81%B0%20b"}, ask(t, conn, "x-user-id", "1")["x-version"], "which gRPC can send")
	assert.Equal(t, "version=%E7%81%B0%20b", n.last(t).tag)
	header := ask(t, conn)
	assert.Equal(t, []string{"stable"}, header["x-version"])
	assert.NotContains(t, header, "x-canary-group")
	assert.NotContains(t, header, "set-cookie")
	header = ask(t, conn, "cookie", "a=b; gray_group=g7")
	assert.Equal(t, []string{"v2"}, header["x-version"])
	assert.Equal(t, []string{"g7"}, header["x-canary-group"])

	// A stream has it in its header, a failed call as well.
	stream, err := testgrpc.NewTestServiceClient(conn).FullDuplexCall(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "1"))
	require.NoError(t, err)
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.Equal(t, io.EOF, err)
	header, err = stream.Header()
	require.NoError(t, err)
	assert.Equal(t, []string{"%E7%81%B0%20b"}, header["x-version"])

	failing := entrance(t, &node{next: func(context.Context) error { return status.Error(codes.NotFound, "no") }}, newEngine(t, testers))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "9999")
	_, err = testgrpc.NewTestServiceClient(failing).UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.Header(&header))
	assert.Equal(t, codes.NotFound, status.Code(err))
	assert.Equal(t, []string{"v2"}, header["x-version"])

	// One interceptor outside the edge has sent the header already.
	early := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := grpc.SendHeader(ctx, metadata.Pairs("x-early", "1")); err != nil {
			return nil, err
		}
		return next(ctx, req)
	})
	n = &node{}
	conn = dial(t, "passthrough:///"+serve(t, n, append([]grpc.ServerOption{early}, edgeOptions(t, newEngine(t, testers))...)...))
	header = ask(t, conn, "x-user-id", "9999")
	assert.Equal(t, []string{"1"}, header["x-early"])
	assert.Equal(t, "version=v2", n.last(t).tag)
}

func TestWhatRulesSeeOfACall(t *testing.T) {
	n := &node{}
	for _, c := range []struct {
		match string
		kv    []string
	}{
		{`{"attr": "path", "op": "equals", "values": ["/grpc.testing.TestService/UnaryCall"]}`, nil},
		{`{"attr": "method", "op": "equals", "values": ["POST"]}`, nil},
		{`{"attr": "host", "op": "equals", "values": ["shop.example.com"]}`, nil},
		{`{"attr": "header:Host", "op": "prefix", "values": ["shop.example.com:"]}`, nil},
		{`{"attr": "header:X-TENANT", "op": "equals", "values": ["acme"]}`, []string{"x-tenant", "acme", "x-tenant", "other"}},
		{`{"attr": "header:x-gray-tag", "op": "equals", "values": ["version=v1"]}`, []string{"x-gray-tag", "version=v1"}},
		{`{"attr": "cookie:plan", "op": "equals", "values": ["gold"]}`, []string{"cookie", "a=b", "cookie", "plan=gold"}},
		{`{"attr": "ip", "op": "cidr", "values": ["127.0.0.0/8"]}`, nil},
	} {
		addr := serve(t, n, edgeOptions(t, newEngine(t, `{"rules": [{"id": "r", "match": [`+c.match+`], "tag": "version=v2"}]}`))...)
		conn := dial(t, "passthrough:///"+addr, grpc.WithAuthority("shop.example.com:443"))
		assert.Equal(t, []string{"v2"}, ask(t, conn, c.kv...)["x-version"], c.match)
	}
}

func TestW3_TheAddressOfTheClient(t *testing.T) {
	engine := newEngine(t, `{"carry": ["address"], "attributes": {"address": ["ip"]}, "rules": []}`)
	forwarded := []string{"x-forwarded-for", "192.168.1.5", "x-forwarded-for", "203.0.113.7"}
	for _, c := range []struct {
		opt  graygrpc.EdgeOption
		want string
	}{
		{graygrpc.WithTrustedProxies("127.0.0.0/8"), "203.0.113.7"},
		{graygrpc.WithTrustedProxies("10.0.0.0/8"), "127.0.0.1"},
		{graygrpc.WithTrustedGateways("127.0.0.0/8"), "127.0.0.1"},
		{nil, "127.0.0.1"},
	} {
		n := &node{}
		ask(t, entrance(t, n, engine, c.opt), forwarded...)
		assert.Equal(t, "address="+c.want, n.last(t).tag)
	}
	// A connection without an address.
	l := bufconn.Listen(1 << 16)
	n := &node{next: func(ctx context.Context) error {
		e, ok := graygrpc.EntryFromContext(ctx)
		assert.True(t, ok)
		assert.False(t, e.Client.IsValid())
		return nil
	}}
	server := grpc.NewServer(edgeOptions(t, engine, graygrpc.WithTrustedGateways("0.0.0.0/0", "::/0"))...)
	registerNode(server, n)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn := dial(t, "passthrough:///memory", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	ask(t, conn, append(forwarded, "x-gray-tag", "version=v2")...)
	assert.Empty(t, n.last(t).tag)
	server.Stop()
	require.NoError(t, <-done)
}

func TestR11_TheOfficeNetworkInAnySpelling(t *testing.T) {
	n := &node{}
	conn := entrance(t, n, newEngine(t, `{"rules": [{"id": "office", "match": [{"attr": "ip", "op": "cidr", "values": ["10.0.0.0/8"]}], "tag": "version=v2"}]}`),
		graygrpc.WithTrustedProxies("127.0.0.1"))
	assert.Equal(t, []string{"v2"}, ask(t, conn, "x-forwarded-for", "[::ffff:10.1.2.3]:5555")["x-version"])
	assert.Equal(t, []string{"stable"}, ask(t, conn, "x-forwarded-for", "[::ffff:11.1.2.3]:5555")["x-version"])
}

func TestTrustedGateways(t *testing.T) {
	for _, c := range []struct {
		name    string
		gateway string
		kv      []string
		tag     string
		header  string
		version string
		passed  bool
		trace   bool
	}{
		{"a valid tag passes, no rule is asked", "127.0.0.1", []string{"x-gray-tag", "version=v7", "x-user-id", "9999"}, "version=v7", "version=v7", "v7", true, false},
		{"in baggage alone", "127.0.0.1", []string{"baggage", "gray.version=v7,tenant=acme"}, "version=v7", "", "v7", true, false},
		{"with the question for the way", "127.0.0.1", []string{"x-gray-tag", "version=v7", "x-gray-trace", "1"}, "version=v7", "version=v7", "v7", true, true},
		{"the question alone", "127.0.0.1", []string{"x-gray-trace", "1", "baggage", "gray.version="}, "", "", "stable", false, true},
		{"no tag: the rules decide", "127.0.0.1", []string{"x-user-id", "9999"}, "version=v2", "", "v2", false, false},
		{"a malformed one is none", "127.0.0.1", []string{"x-gray-tag", "version", "x-user-id", "9999"}, "version=v2", "", "v2", false, false},
		{"another peer", "10.0.0.0/8", []string{"x-gray-tag", "version=v7", "x-forwarded-for", "10.0.0.1", "x-gray-trace", "1"}, "", "", "stable", false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var entry graygrpc.Entry
			n := &node{next: func(ctx context.Context) error {
				entry, _ = graygrpc.EntryFromContext(ctx)
				return nil
			}}
			header := ask(t, entrance(t, n, newEngine(t, testers), graygrpc.WithTrustedGateways(c.gateway)), c.kv...)
			v := n.last(t)
			assert.True(t, v.scoped)
			assert.Equal(t, c.tag, v.tag)
			assert.Equal(t, c.header, strings.Join(v.md.Get("x-gray-tag"), " "))
			assert.Equal(t, []string{c.version}, header["x-version"])
			assert.Equal(t, c.passed, entry.Passed)
			assert.Equal(t, c.trace, len(v.md.Get("x-gray-trace")) > 0)
		})
	}
}

type userKey struct{}

func TestTheAuthenticatedUserCounts(t *testing.T) {
	authenticate := grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if token := metadata.ValueFromIncomingContext(ctx, "authorization"); len(token) > 0 {
			ctx = context.WithValue(ctx, userKey{}, strings.TrimPrefix(token[0], "Bearer "))
		}
		return next(ctx, req)
	})
	n := &node{}
	opts := edgeOptions(t, newEngine(t, testers), graygrpc.WithAttr("uid", func(ctx context.Context) (string, bool) {
		user, ok := ctx.Value(userKey{}).(string)
		return user, ok
	}), graygrpc.WithAttr("uid", nil))
	conn := dial(t, "passthrough:///"+serve(t, n, append([]grpc.ServerOption{authenticate}, opts...)...))
	assert.Equal(t, []string{"v2"}, ask(t, conn, "authorization", "Bearer 9999", "x-user-id", "1")["x-version"])
	assert.Equal(t, []string{"stable"}, ask(t, conn, "authorization", "Bearer 1", "x-user-id", "9999")["x-version"])
	assert.Equal(t, []string{"stable"}, ask(t, conn, "x-user-id", "9999")["x-version"])
}

func TestAnEdgeIsAnInboundMiddleware(t *testing.T) {
	provider, count := meter(t)
	n := &node{}
	engine := newEngine(t, `{"rules": [
		{"id": "order", "services": ["order"], "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"}]}`)
	server := grpc.NewServer(edgeOptions(t, engine, graygrpc.WithSelf(registry.Instance{Service: "order", Metadata: map[string]string{"version": "v2"}}),
		graygrpc.WithMeterProvider(provider), graygrpc.WithExempt("/grpc.testing.TestService/EmptyCall"))...)
	registerNode(server, n)
	healthgrpc.RegisterHealthServer(server, healthy{})
	conn := dial(t, "passthrough:///"+run(t, server))

	assert.Equal(t, []string{"v2"}, ask(t, conn, "x-user-id", "9999")["x-version"], "for the service that answers")
	v := n.last(t)
	require.True(t, v.known)
	assert.Equal(t, graygrpc.Arrival{Service: "order", Version: "v2", Wanted: "v2", Outcome: subset.Matched}, v.arrival)
	ask(t, conn)
	assert.Equal(t, subset.Misrouted, n.last(t).arrival.Outcome)

	var header metadata.MD
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "9999", "x-gray-tag", "version=v2")
	_, err := testgrpc.NewTestServiceClient(conn).EmptyCall(ctx, &testgrpc.Empty{}, grpc.Header(&header))
	require.NoError(t, err)
	v = n.last(t)
	assert.False(t, v.known)
	assert.True(t, v.scoped)
	assert.Empty(t, v.tag)
	assert.Empty(t, v.md.Get("x-gray-tag"), "exempt from decisions, not from cleaning")
	assert.NotContains(t, header, "x-version")
	_, err = healthgrpc.NewHealthClient(conn).Check(ctx, &healthgrpc.HealthCheckRequest{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, count("graylane.server.requests"))

	_, ok := graygrpc.EntryFromContext(context.Background())
	assert.False(t, ok)
}

type healthy struct {
	healthgrpc.UnimplementedHealthServer
}

func (healthy) Check(context.Context, *healthgrpc.HealthCheckRequest) (*healthgrpc.HealthCheckResponse, error) {
	return &healthgrpc.HealthCheckResponse{}, nil
}

func TestEdgeInterceptorsAlone(t *testing.T) {
	engine := newEngine(t, testers)
	unary, err := graygrpc.UnaryEdgeInterceptor(engine)
	require.NoError(t, err)
	stream, err := graygrpc.StreamEdgeInterceptor(engine)
	require.NoError(t, err)
	conn := dial(t, "passthrough:///"+serve(t, &node{}, grpc.UnaryInterceptor(unary), grpc.StreamInterceptor(stream)))
	for kind, call := range kinds {
		require.NoError(t, call(metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "9999"), conn, "version=v2", 3), kind)
	}
	// Called without a server there is neither peer nor answer; it works all the same.
	b, err := baggage.Parse("gray.version=v2")
	require.NoError(t, err)
	_, err = unary(baggage.ContextWithBaggage(peer.NewContext(context.Background(), &peer.Peer{}), b), nil,
		&grpc.UnaryServerInfo{FullMethod: "/a.B/C"}, func(ctx context.Context, _ any) (any, error) {
			assert.True(t, graytag.InScope(ctx))
			assert.True(t, graytag.FromContext(ctx).IsZero())
			assert.Zero(t, baggage.FromContext(ctx).Len())
			return nil, nil
		})
	require.NoError(t, err)
}

func TestWrongEdgeOptions(t *testing.T) {
	engine := newEngine(t, testers)
	value := func(context.Context) (string, bool) { return "", false }
	for want, opt := range map[string]graygrpc.EdgeOption{
		`WithTrustedGateways: range "10.0.0.0/33"`: graygrpc.WithTrustedGateways("10.0.0.0/33"),
		`WithTrustedProxies: range "office"`:       graygrpc.WithTrustedProxies("10.0.0.0/8", "office"),
		`WithAttr: attribute "ip" is built in`:     graygrpc.WithAttr("ip", value),
		`WithAttr: attribute "cookie:a"`:           graygrpc.WithAttr("cookie:a", value),
		"without a service":                        graygrpc.WithSelf(registry.Instance{}),
		"minReady -1":                              graygrpc.WithPolicyFor("payment", subset.Policy{MinReady: -1}),
		`exempt method "x"`:                        graygrpc.WithExempt("x"),
	} {
		opts, err := graygrpc.Edge(engine, opt)
		require.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "graygrpc: ")
		assert.Nil(t, opts)
		_, err = graygrpc.UnaryEdgeInterceptor(engine, opt)
		require.Error(t, err)
		_, err = graygrpc.StreamEdgeInterceptor(engine, opt)
		require.Error(t, err)
	}
	_, err := graygrpc.Edge(nil)
	require.EqualError(t, err, "graygrpc: engine is nil")
	_, err = graygrpc.Edge(engine, nil)
	require.NoError(t, err)
}
