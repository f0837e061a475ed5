package graygrpc_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry/memory"
)

// replacing are the interceptors of somebody who makes the metadata anew.
func replacing(md ...string) []grpc.DialOption {
	anew := func(ctx context.Context) context.Context {
		return metadata.NewOutgoingContext(ctx, metadata.Pairs(md...))
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoker(anew(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return streamer(anew(ctx), desc, cc, method, opts...)
		}),
	}
}

// token is somebody's per-RPC credentials.
type token struct {
	name string
	err  error
}

func (t token) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{t.name: "secret"}, t.err
}
func (token) RequireTransportSecurity() bool { return false }

func TestG1_AnInterceptorReplacesTheMetadata(t *testing.T) {
	theirs := replacing("tenant", "acme")
	for name, opts := range map[string][]grpc.DialOption{
		"before ours":             append(theirs, bare(t)...),
		"after ours":              append(bare(t), theirs...),
		"after ours, wrapped":     append(append(bare(t), bare(t)...), theirs...),
		"after ours, beside OTel": append(append(bare(t), theirs...), otelClient()),
		"after ours, with credentials of the connection": append(append(bare(t), theirs...),
			grpc.WithPerRPCCredentials(token{name: "x-token"})),
		"after ours, with credentials of every call": append(append(bare(t), theirs...),
			grpc.WithDefaultCallOptions(grpc.PerRPCCredentials(token{name: "x-token"}))),
		"after ours, with a baggage": append(bare(t), replacing("tenant", "acme", "baggage", "theirs=1")...),
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{}
			conn := dial(t, "passthrough:///"+serve(t, n, append(serverOptions(t), otelServer())...), opts...)
			ctx := graytag.NewContext(context.Background(), tag)
			for kind, call := range kinds {
				require.NoError(t, call(ctx, conn, tag.String(), 2), kind)
				v := n.last(t)
				assert.Equal(t, []string{"acme"}, v.md.Get("tenant"), kind)
				assert.Equal(t, []string{tag.String()}, v.md.Get("x-gray-tag"), kind)
				assert.Len(t, v.md.Get("baggage"), 1, kind)
				if strings.Contains(name, "credentials") {
					assert.Equal(t, []string{"secret"}, v.md.Get("x-token"), kind)
				}
				if strings.Contains(name, "a baggage") {
					assert.Equal(t, "1", v.baggage.Member("theirs").Value(), kind)
				}
			}
			require.NoError(t, kinds["unary"](graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 1))
		})
	}
}

func TestG1_InboundAuthorizationIsNotForwarded(t *testing.T) {
	nodes, conn := chain(t, 2, serverOptions(t), bare(t))
	ctx := metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), tag), "authorization", "Bearer x", "x-request-id", "1")
	require.NoError(t, callUnary(ctx, conn))
	assert.Equal(t, []string{"Bearer x"}, nodes[0].last(t).md.Get("authorization"))
	assert.Equal(t, tag.String(), nodes[1].last(t).tag)
	assert.Empty(t, nodes[1].last(t).md.Get("authorization"))
	assert.Empty(t, nodes[1].last(t).md.Get("x-request-id"))
}

// What the credentials of a call say stays what they say.
func TestCredentialsOfACall(t *testing.T) {
	n := &node{}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...), append(bare(t), replacing("tenant", "acme")...)...)
	client := testgrpc.NewTestServiceClient(conn)
	ctx := graytag.NewContext(context.Background(), tag)

	// The last of several counts, as without us.
	opts := make([]grpc.CallOption, 0, 8)
	opts = append(opts, grpc.PerRPCCredentials(token{name: "x-first"}), grpc.PerRPCCredentials(token{name: "x-last"}))
	_, err := client.EmptyCall(ctx, &testgrpc.Empty{}, opts...)
	require.NoError(t, err)
	assert.Empty(t, n.last(t).md.Get("x-first"))
	assert.Equal(t, []string{"secret"}, n.last(t).md.Get("x-last"))
	assert.Equal(t, tag.String(), n.last(t).tag)
	assert.Len(t, opts, 2)
	assert.Nil(t, opts[:3][2], "the caller's options are his")

	_, err = client.EmptyCall(ctx, &testgrpc.Empty{}, grpc.PerRPCCredentials(token{err: errors.New("no token")}))
	assert.Equal(t, codes.Internal, status.Code(err))
	assert.ErrorContains(t, err, "no token")

	_, err = client.EmptyCall(ctx, &testgrpc.Empty{}, grpc.PerRPCCredentials(secure{token{name: "x-token"}}))
	assert.Equal(t, codes.Unauthenticated, status.Code(err), "not on an insecure connection: %v", err)
}

type secure struct{ token }

func (secure) RequireTransportSecurity() bool { return true }

func TestCallsWithoutScope(t *testing.T) {
	n := &node{}
	provider, count := meter(t)
	orphans := func() int64 { return count("graylane.propagation.orphans") }
	addr := "passthrough:///" + serve(t, n, serverOptions(t)...)
	conn := dial(t, addr, bare(t, graygrpc.WithMeterProvider(provider))...)

	require.NoError(t, callUnary(context.Background(), conn))
	assert.Empty(t, n.last(t).tag)
	assert.EqualValues(t, 1, orphans(), "a context that nobody has seen")

	require.NoError(t, callUnary(graytag.NewContext(context.Background(), graytag.Tag{}), conn))
	assert.EqualValues(t, 1, orphans(), "untagged is not lost")

	require.NoError(t, callUnary(metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", tag.String()), conn))
	assert.Equal(t, tag.String(), n.last(t).tag)
	assert.Equal(t, []string{tag.String()}, n.last(t).md.Get("x-gray-tag"))
	assert.EqualValues(t, 1, orphans(), "the caller has put a tag there himself")

	_, err := testgrpc.NewTestServiceClient(conn).EmptyCall(context.Background(), &testgrpc.Empty{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, orphans())
	exempt := dial(t, addr, bare(t, graygrpc.WithMeterProvider(provider), graygrpc.WithExempt(testgrpc.TestService_EmptyCall_FullMethodName))...)
	_, err = testgrpc.NewTestServiceClient(exempt).EmptyCall(context.Background(), &testgrpc.Empty{})
	require.NoError(t, err)
	assert.EqualValues(t, 2, orphans(), "exempt")
}

func TestDefaultTag(t *testing.T) {
	n := &node{}
	provider, count := meter(t)
	own := graytag.MustParse("version=v2.1.0")
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...), bare(t, graygrpc.WithDefaultTag(own), graygrpc.WithMeterProvider(provider))...)
	for kind, call := range kinds {
		require.NoError(t, call(context.Background(), conn, own.String(), 2), kind)
		require.NoError(t, call(graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 2), kind)
		require.NoError(t, call(graytag.NewContext(context.Background(), tag), conn, tag.String(), 2), kind)
		require.NoError(t, call(metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "version=v3"), conn, "version=v3", 2), kind)
	}
	assert.Zero(t, count("graylane.propagation.orphans"))
}

// toLoopback sends a connection to addr, whatever its target says.
func toLoopback(addr string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	})
}

func TestH3_HostsOutsideTheScope(t *testing.T) {
	const outside = "passthrough:///api.example.com:443"
	ours := func(extra ...graygrpc.ClientOption) []grpc.DialOption {
		var opts []graygrpc.DialOption
		for _, o := range extra {
			opts = append(opts, o)
		}
		return graygrpc.DialOptions(memory.New(), opts...)
	}
	for name, with := range map[string]func(...graygrpc.ClientOption) []grpc.DialOption{
		"alone": ours,
		"OTel":  func(o ...graygrpc.ClientOption) []grpc.DialOption { return append(ours(o...), otelClient()) },
		"twice": func(o ...graygrpc.ClientOption) []grpc.DialOption {
			return append(append(ours(o...), bare(t, o...)...), otelClient())
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			provider, count := meter(t)
			n := &node{}
			addr := serve(t, n)
			options := []graygrpc.ClientOption{graygrpc.WithMeterProvider(provider), graygrpc.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}
			conn := dial(t, outside, append(with(options...), toLoopback(addr))...)

			tagged := withBaggage(t, graytag.NewContext(context.Background(), tag), "tenant=acme")
			stale := metadata.AppendToOutgoingContext(tagged, "x-gray-tag", "version=v9", "baggage", "gray.version=v9,other=1", "keep", "it")
			explicit := metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", tag.String(), "baggage", "gray.version=v9,tenant=acme")
			for i, ctx := range []context.Context{tagged, stale, explicit} {
				for kind, call := range kinds {
					require.NoError(t, call(ctx, conn, "", 2), kind)
					v := n.last(t)
					assert.Empty(t, v.md.Get("x-gray-tag"), "%d %s", i, kind)
					for _, m := range memberLines(v.md) {
						assert.False(t, strings.HasPrefix(m, "gray."), "%d %s: %s", i, kind, m)
					}
					assert.Contains(t, memberLines(v.md), "tenant=acme", "%d %s", i, kind)
				}
			}
			assert.Equal(t, 1, strings.Count(log.String(), "api.example.com"), "one line per host")
			assert.GreaterOrEqual(t, count("graylane.propagation.withheld"), int64(12))

			allowed := dial(t, outside, append(with(graygrpc.WithInjectTo(func(host string) bool { return host == "api.example.com" })), toLoopback(addr))...)
			require.NoError(t, callUnary(tagged, allowed))
			assert.Equal(t, []string{tag.String()}, n.last(t).md.Get("x-gray-tag"))
		})
	}
}

func TestTargetsInsideTheScope(t *testing.T) {
	n := &node{}
	addr := serve(t, n, serverOptions(t)...)
	ctx := graytag.NewContext(context.Background(), tag)
	for target, inside := range map[string]bool{
		"passthrough:///" + addr: true,
		"dns:///" + addr:         true,
		addr:                     true,
		"dns:///localhost:" + addr[1+strings.LastIndex(addr, ":"):]: true,
		"passthrough:///inventory:8080":                             true,
		"passthrough:///inventory.svc.cluster.local:8080":           true,
		"passthrough:///inventory.prod.internal":                    true,
		"passthrough:///bufnet":                                     true,
		"passthrough:///":                                           true,
		"passthrough:///[fd00::1]:80":                               true,
		"passthrough:///10.1.2.3:80":                                true,
		"passthrough:///8.8.8.8:80":                                 false,
		"passthrough:///[2001:db8::1]:80":                           false,
		"passthrough:///example.com":                                false,
		"passthrough://inventory/example.com:80":                    false,
		"passthrough:///10.1.2.3:80,8.8.8.8:80":                     false,
	} {
		t.Run(target, func(t *testing.T) {
			conn := dial(t, target, append(bare(t), toLoopback(addr))...)
			want := ""
			if inside {
				want = tag.String()
			}
			for range 2 { // worked out, then remembered
				require.NoError(t, kinds["unary"](ctx, conn, want, 1))
			}
		})
	}

	t.Run("unix", func(t *testing.T) {
		path := t.TempDir() + "/s"
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		require.NoError(t, kinds["unary"](ctx, dial(t, "unix:"+path, append(bare(t), serveOn(t, l))...), tag.String(), 1))
	})
	t.Run("in memory", func(t *testing.T) {
		l := bufconn.Listen(1 << 16)
		inMemory := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
		require.NoError(t, kinds["unary"](ctx, dial(t, "passthrough:///bufconn", append(bare(t), serveOn(t, l), inMemory)...), tag.String(), 1))
	})
	t.Run("interceptors shared by many connections", func(t *testing.T) {
		shared := bare(t)
		for i := range 300 {
			conn := dial(t, "passthrough:///host"+strings.Repeat("x", i), append(shared, toLoopback(addr))...)
			require.NoError(t, kinds["unary"](ctx, conn, tag.String(), 1))
			conn.Close()
		}
		conn := dial(t, "passthrough:///example.com", append(shared, toLoopback(addr))...)
		require.NoError(t, kinds["unary"](ctx, conn, "", 1))
	})
}

// serveOn serves a node on l, and returns an option that does nothing.
func serveOn(t *testing.T, l net.Listener) grpc.DialOption {
	server := grpc.NewServer(serverOptions(t)...)
	testgrpc.RegisterTestServiceServer(server, &node{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return grpc.EmptyDialOption{}
}
