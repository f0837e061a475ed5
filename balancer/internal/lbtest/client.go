package lbtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
)

// Client asks the instances of one service who they are.
type Client struct {
	Conn *grpc.ClientConn
}

// Dial returns a client of service, which is closed when the test ends.
func Dial(tb testing.TB, disc registry.Discovery, service string, opts ...resolver.Option) *Client {
	tb.Helper()
	return DialWith(tb, disc, service, nil, opts...)
}

// DialWith is Dial with more options of gRPC.
func DialWith(tb testing.TB, disc registry.Discovery, service string, more []grpc.DialOption, opts ...resolver.Option) *Client {
	tb.Helper()
	dial, err := resolver.DialOptions(disc, opts...)
	require.NoError(tb, err)
	dial = append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	conn, err := grpc.NewClient("gray:///"+service, append(dial, more...)...)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return &Client{Conn: conn}
}

// Who sends one RPC with tag, "" for untagged, and returns the ID of the
// instance that answered.
func (c *Client) Who(ctx context.Context, tag string, opts ...grpc.CallOption) (string, error) {
	parsed, err := graytag.Parse(tag)
	if err != nil {
		return "", err
	}
	var header metadata.MD
	_, err = grpc_health_v1.NewHealthClient(c.Conn).Check(graytag.NewContext(ctx, parsed),
		&grpc_health_v1.HealthCheckRequest{}, append(opts, grpc.Header(&header))...)
	if err != nil {
		return "", err
	}
	ids := header.Get(instanceHeader)
	if len(ids) != 1 {
		return "", nil
	}
	return ids[0], nil
}

// Count sends n RPCs, one after the other, and returns how many each instance
// answered. All have to succeed.
func (c *Client) Count(tb testing.TB, n int, tag string) map[string]int {
	tb.Helper()
	got := make(map[string]int)
	for range n {
		id, err := c.Who(tb.Context(), tag)
		require.NoError(tb, err)
		got[id]++
	}
	return got
}
