package graygrpc_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/baggage"
	otelprop "go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/propagation"
)

// chain runs nodes one behind the other, each of which calls the next with a
// unary RPC, and returns them and a connection to the first.
func chain(t *testing.T, length int, server []grpc.ServerOption, client []grpc.DialOption) ([]*node, *grpc.ClientConn) {
	t.Helper()
	nodes := make([]*node, length)
	var next *grpc.ClientConn
	for i := length - 1; i >= 0; i-- {
		nodes[i] = &node{}
		if conn := next; conn != nil {
			nodes[i].next = func(ctx context.Context) error { return callUnary(ctx, conn) }
		}
		next = dial(t, "passthrough:///"+serve(t, nodes[i], server...), client...)
	}
	return nodes, next
}

func callUnary(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := testgrpc.NewTestServiceClient(conn).UnaryCall(ctx, &testgrpc.SimpleRequest{})
	return err
}

// sides are the ways in which a service has OTel beside graylane.
func sides(t *testing.T) map[string]struct {
	server []grpc.ServerOption
	client []grpc.DialOption
} {
	type side = struct {
		server []grpc.ServerOption
		client []grpc.DialOption
	}
	ours, client := serverOptions(t), bare(t)
	return map[string]side{
		"alone":            {ours, client},
		"otelgrpc":         {append([]grpc.ServerOption{otelServer()}, ours...), append([]grpc.DialOption{otelClient()}, client...)},
		"otelgrpc, last":   {append(slices.Clone(ours), otelServer()), append(slices.Clone(client), otelClient())},
		"otelgrpc, server": {append([]grpc.ServerOption{otelServer()}, ours...), client},
		"otelgrpc, client": {ours, append([]grpc.DialOption{otelClient()}, client...)},
	}
}

func TestT2_TheSameBytesOnEveryHop(t *testing.T) {
	const value = "灰度 a+b%"
	sent, err := tag.With("channel", value)
	require.NoError(t, err)
	for name, side := range sides(t) {
		t.Run(name, func(t *testing.T) {
			nodes, conn := chain(t, 5, side.server, side.client)
			require.NoError(t, callUnary(graytag.NewContext(context.Background(), sent), conn))
			first := memberLines(nodes[0].last(t).md)
			require.Len(t, first, 3)
			for i, n := range nodes {
				v := n.last(t)
				assert.Equal(t, sent.String(), v.tag, "hop %d", i)
				assert.Equal(t, []string{sent.String()}, v.md.Get("x-gray-tag"), "hop %d", i)
				assert.ElementsMatch(t, first, memberLines(v.md), "hop %d", i)
				got, err := graytag.Parse(v.tag)
				require.NoError(t, err)
				assert.Equal(t, value, got.Get("channel"))
			}
		})
	}
}

func TestT2_ABadEscapeIsRefused(t *testing.T) {
	provider, count := meter(t)
	n := &node{}
	conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithMeterProvider(provider))...))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "channel=%ff")
	require.NoError(t, callUnary(ctx, conn))
	assert.Empty(t, n.last(t).tag)
	assert.True(t, n.last(t).scoped)
	assert.EqualValues(t, 1, count("graylane.propagation.malformed"))
}

func TestT3_SeveralValues(t *testing.T) {
	const v1, v2 = "version=v1", "version=v2"
	for name, c := range map[string]struct {
		md        metadata.MD
		want      string
		malformed int64
	}{
		"two values that differ":                {metadata.Pairs("x-gray-tag", v1, "x-gray-tag", v2), "", 1},
		"two values that differ, and a baggage": {metadata.Pairs("x-gray-tag", v1, "x-gray-tag", v2, "baggage", "gray.version=v3"), "version=v3", 1},
		"joined with a comma":                   {metadata.Pairs("x-gray-tag", v1+","+v2), "", 1},
		"joined, and a baggage":                 {metadata.Pairs("x-gray-tag", v1+", "+v2, "baggage", "gray.version=v3"), "version=v3", 1},
		"two values that are the same":          {metadata.Pairs("x-gray-tag", v1, "x-gray-tag", v1), v1, 0},
		"two lines of baggage":                  {metadata.Pairs("baggage", "tenant=acme,gray.version=v2", "baggage", "gray.uid=7,b=2"), "uid=7;version=v2", 0},
	} {
		for _, otel := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				provider, count := meter(t)
				opts := serverOptions(t, graygrpc.WithMeterProvider(provider))
				if otel {
					opts = append(opts, otelServer())
				}
				n := &node{}
				conn := dial(t, "passthrough:///"+serve(t, n, opts...))
				require.NoError(t, callUnary(metadata.NewOutgoingContext(context.Background(), c.md), conn))
				v := n.last(t)
				assert.Equal(t, c.want, v.tag)
				assert.True(t, v.scoped)
				assert.Equal(t, c.malformed, count("graylane.propagation.malformed"))
				if strings.Contains(name, "two lines") {
					assert.Equal(t, "acme", v.baggage.Member("tenant").Value())
					assert.Equal(t, "2", v.baggage.Member("b").Value())
				}
			})
		}
	}
}

func TestMalformedTagsLeaveNoMembersOfOTelBehind(t *testing.T) {
	n := &node{}
	conn := dial(t, "passthrough:///"+serve(t, n, append(serverOptions(t), otelServer())...))
	ctx := metadata.AppendToOutgoingContext(context.Background(), "baggage", "gray.version=%ff,tenant=acme")
	require.NoError(t, callUnary(ctx, conn))
	v := n.last(t)
	assert.Empty(t, v.tag)
	assert.Empty(t, v.baggage.Member("gray.version").Key())
	assert.Equal(t, "acme", v.baggage.Member("tenant").Value())
}

func TestAServiceWithNothingButOTelHandsTheTagOn(t *testing.T) {
	last := &node{}
	toLast := dial(t, "passthrough:///"+serve(t, last, serverOptions(t)...), otelClient())
	middle := &node{next: func(ctx context.Context) error { return callUnary(ctx, toLast) }}
	toMiddle := dial(t, "passthrough:///"+serve(t, middle, otelServer()), bare(t)...)
	first := &node{next: func(ctx context.Context) error { return callUnary(ctx, toMiddle) }}
	toFirst := dial(t, "passthrough:///"+serve(t, first, serverOptions(t)...), bare(t)...)

	sent, err := tag.With("channel", "灰度 a+b%")
	require.NoError(t, err)
	ctx := withBaggage(t, graytag.NewContext(context.Background(), sent), "tenant=acme")
	require.NoError(t, callUnary(ctx, toFirst))
	assert.Equal(t, sent.String(), last.last(t).tag)
	assert.Equal(t, "acme", last.last(t).baggage.Member("tenant").Value())
	assert.Equal(t, sent.String(), middle.last(t).tag, "in the context, too, by its baggage")
}

// Wrapped twice on both sides, with OTel's middleware and a propagator of ours
// inside it.
func TestH2_WrappedTwice(t *testing.T) {
	ours, err := propagation.New()
	require.NoError(t, err)
	all := otelgrpc.WithPropagators(otelprop.NewCompositeTextMapPropagator(otelprop.TraceContext{}, otelprop.Baggage{}, ours))
	server := append(serverOptions(t), serverOptions(t)...)
	client := append(bare(t), bare(t)...)
	nodes, conn := chain(t, 3,
		append(server, grpc.StatsHandler(otelgrpc.NewServerHandler(all))),
		append(client, grpc.WithStatsHandler(otelgrpc.NewClientHandler(all))))
	ctx := withBaggage(t, graytag.NewContext(context.Background(), tag), "tenant=acme")
	require.NoError(t, callUnary(ctx, conn))
	for i, n := range nodes {
		v := n.last(t)
		assert.Equal(t, tag.String(), v.tag, "hop %d", i)
		assert.Equal(t, []string{tag.String()}, v.md.Get("x-gray-tag"), "hop %d", i)
		assert.ElementsMatch(t, []string{"tenant=acme", "gray.channel=app", "gray.uid=10086", "gray.version=v2.1.0"}, memberLines(v.md), "hop %d", i)
	}
}

// Three hops of a stale tag: the context is the only truth.
func TestAStaleTagInTheMetadataGoes(t *testing.T) {
	for name, sent := range map[string]graytag.Tag{"tagged": tag, "untagged": {}} {
		t.Run(name, func(t *testing.T) {
			n := &node{}
			conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...), bare(t)...)
			stale := metadata.Pairs("X-Gray-Tag", "version=v9", "x-gray-tag", "version=v8",
				"baggage", "gray.version=v9,tenant=acme", "baggage", "gray.uid=1", "other", "1", "other", "2")
			before := stale.Copy()
			ctx := metadata.NewOutgoingContext(graytag.NewContext(context.Background(), sent), stale)
			require.NoError(t, callUnary(ctx, conn))
			v := n.last(t)
			assert.Equal(t, sent.String(), v.tag)
			assert.Equal(t, []string{"1", "2"}, v.md.Get("other"))
			assert.Contains(t, memberLines(v.md), "tenant=acme")
			assert.Len(t, memberLines(v.md), 1+sent.Len())
			assert.Equal(t, before, stale, "the caller's metadata is his")
			if sent.IsZero() {
				assert.Empty(t, v.md.Get("x-gray-tag"))
			} else {
				assert.Equal(t, []string{sent.String()}, v.md.Get("x-gray-tag"))
			}
		})
	}
}

func TestH4_WhateverTheValue(t *testing.T) {
	formats, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"), propagation.WithFlagHeader("gray"), propagation.WithCanaryHeader("X-Canary"))
	require.NoError(t, err)
	for i, value := range []string{"灰度 小程序", "ends in a space ", " starts with one", "a,b;c=d\"e\\f", "%0d%0aX-Evil: 1", "\u00a0\u2028\U0001F680", strings.Repeat("é", 64)} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			sent, err := graytag.New(map[string]string{"version": value, "channel": value})
			require.NoError(t, err)
			for name, kind := range kinds {
				n := &node{}
				conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithPropagator(formats))...), append(bare(t, graygrpc.WithPropagator(formats)), otelClient())...)
				require.NoError(t, kind(graytag.NewContext(context.Background(), sent), conn, sent.String(), 2), name)
				got, err := graytag.Parse(n.last(t).tag)
				require.NoError(t, err)
				assert.Equal(t, value, got.Get("channel"))
				assert.Empty(t, n.last(t).md.Get("x-evil"))
			}
		})
	}
	for _, control := range []string{"a\r\nX-Evil: 1", "a\tb", "a\x7fb", "a\u0085b"} {
		_, err := graytag.New(map[string]string{"channel": control})
		assert.Error(t, err, "control characters are refused when the tag is made: %q", control)
	}
}

// Nor does it fail because of what others have put into the context's baggage
// or the metadata under our key.
func TestH4_WhateverIsInTheWay(t *testing.T) {
	odd, err := baggage.NewMemberRaw("租户", "acme")
	require.NoError(t, err)
	bag, err := baggage.New(odd)
	require.NoError(t, err)
	scoped := graytag.NewContext(baggage.ContextWithBaggage(context.Background(), bag), tag)
	for name, c := range map[string]struct {
		ctx  context.Context
		want graytag.Tag
	}{
		"a baggage key that is no token": {scoped, tag},
		"raw bytes in foreign members": {metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), tag),
			"baggage", "a=1,city=上海,b=2"), tag},
		"a raw tag without scope":            {metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "channel=灰度"), graytag.MustParse("channel=灰度")},
		"a broken tag without scope":         {metadata.AppendToOutgoingContext(context.Background(), "x-gray-tag", "channel=灰\r\n"), graytag.Tag{}},
		"a broken tag in scope and untagged": {metadata.AppendToOutgoingContext(graytag.NewContext(context.Background(), graytag.Tag{}), "x-gray-tag", "\x00"), graytag.Tag{}},
	} {
		t.Run(name, func(t *testing.T) {
			n := &node{}
			conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t)...), bare(t)...)
			for kind, call := range kinds {
				require.NoError(t, call(c.ctx, conn, c.want.String(), 2), kind)
			}
			if strings.Contains(name, "foreign") {
				lines := memberLines(n.last(t).md)
				assert.Contains(t, lines, "a=1")
				assert.Contains(t, lines, "b=2")
			}
		})
	}
}

func TestCompatibilityFormats(t *testing.T) {
	formats, err := propagation.New(propagation.WithVersionHeader("X-Gray-Version"), propagation.WithFlagHeader("gray"))
	require.NoError(t, err)
	n := &node{}
	server := serverOptions(t, graygrpc.WithPropagator(formats))
	conn := dial(t, "passthrough:///"+serve(t, n, server...), bare(t, graygrpc.WithPropagator(formats))...)
	require.NoError(t, callUnary(graytag.NewContext(context.Background(), tag), conn))
	assert.Equal(t, []string{"v2.1.0"}, n.last(t).md.Get("x-gray-version"))

	old := dial(t, "passthrough:///"+serve(t, n, server...))
	require.NoError(t, callUnary(metadata.AppendToOutgoingContext(context.Background(), "gray", "TRUE"), old))
	assert.Equal(t, "gray=true", n.last(t).tag)
}
