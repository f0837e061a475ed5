package graygrpc_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry/memory"
)

// here is the label of the line after that of its call.
func here(after int) string {
	_, _, line, _ := runtime.Caller(1)
	return fmt.Sprintf("graygrpc/orphan_test.go:%d", line+after)
}

func TestOrphansAreCountedByCallSite(t *testing.T) {
	var log syncBuffer
	logger := graygrpc.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	reg := memory.New()
	register(t, reg, "o1", "order", "", serve(t, &node{}))
	provider, count := meter(t)
	conn := dial(t, "gray:///order", append(graygrpc.DialOptions(reg, graygrpc.WithMeterProvider(provider), logger), otelClient())...)
	// Somebody's own interceptors in front of ours are a place in a program, too; a
	// stub is none.
	client := testgrpc.NewTestServiceClient(conn)
	const orphans = "graylane.propagation.orphans"

	_, err := client.EmptyCall(graytag.NewContext(context.Background(), graytag.Tag{}), &testgrpc.Empty{})
	require.NoError(t, err)
	assert.Zero(t, count(orphans))

	want := map[string]int64{}
	want[here(2)] = 10_000
	for range 10_000 {
		if _, err := client.EmptyCall(context.Background(), &testgrpc.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	want[here(1)] = 1
	output, err := client.StreamingOutputCall(t.Context(), &testgrpc.StreamingOutputCallRequest{})
	require.NoError(t, err)
	_, _ = output.Recv()
	want[here(1)] = 1
	input, err := client.StreamingInputCall(t.Context())
	require.NoError(t, err)
	_, _ = input.CloseAndRecv()
	want[here(1)] = 1
	both, err := client.FullDuplexCall(t.Context())
	require.NoError(t, err)
	require.NoError(t, both.CloseSend())
	_, _ = both.Recv()
	want[here(1)] = 1
	require.NoError(t, conn.Invoke(context.Background(), testgrpc.TestService_EmptyCall_FullMethodName, &testgrpc.Empty{}, &testgrpc.Empty{}))
	done := make(chan error, 1)
	want[here(2)] = 1
	go func() {
		_, err := client.EmptyCall(context.Background(), &testgrpc.Empty{})
		done <- err
	}()
	require.NoError(t, <-done)

	total := int64(0)
	for site, n := range want {
		assert.Equal(t, n, count(orphans, "site="+site), site)
		total += n
	}
	assert.Equal(t, total, count(orphans))
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	assert.Len(t, lines, len(want), "one per site")
	for _, line := range lines {
		assert.Contains(t, line, "level=DEBUG")
		assert.Contains(t, line, "orphan_test.go")
		assert.Contains(t, line, "to=/grpc.testing.TestService/")
	}
}

// Where the call goes through an interceptor of the program's own, that is the place.
func TestTheSiteOfACallThroughInterceptors(t *testing.T) {
	provider, count := meter(t)
	var site string
	own := grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		site = here(1)
		return invoker(ctx, method, req, reply, cc, opts...)
	})
	conn := dial(t, "passthrough:///"+serve(t, &node{}), append([]grpc.DialOption{own}, bare(t, graygrpc.WithMeterProvider(provider))...)...)
	require.NoError(t, callUnary(context.Background(), conn))
	assert.EqualValues(t, 1, count("graylane.propagation.orphans", "site="+site))
}
