package graygrpc_test

import (
	"bytes"
	"context"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/graygrpc"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// spin keeps a core busy until ctx ends.
//
//go:noinline
func spin(ctx context.Context) (n int) {
	for {
		select {
		case <-ctx.Done():
			return n
		default:
			for i := range 10_000 {
				n += i
			}
		}
	}
}

// profiled runs f under a CPU profile and returns how long each gray.version was in
// spin; "" is none.
func profiled(t *testing.T, f func()) map[string]time.Duration {
	t.Helper()
	var raw bytes.Buffer
	require.NoError(t, pprof.StartCPUProfile(&raw))
	f()
	pprof.StopCPUProfile()
	p, err := profile.Parse(&raw)
	require.NoError(t, err)
	spent := map[string]time.Duration{}
	for _, s := range p.Sample {
		for _, l := range s.Location {
			if len(l.Line) > 0 && l.Line[0].Function.Name == "github.com/graylane/graylane/middleware/graygrpc_test.spin" {
				label := ""
				if v := s.Label["gray.version"]; len(v) > 0 {
					label = v[0]
				}
				spent[label] += time.Duration(s.Value[1])
				break
			}
		}
	}
	return spent
}

func TestCPUProfilesByVersion(t *testing.T) {
	n := &node{next: func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 150*time.Millisecond)
		defer cancel()
		done := make(chan struct{})
		go func() { // which inherits the labels
			defer close(done)
			spin(ctx)
		}()
		spin(ctx)
		<-done
		return nil
	}}
	for name, c := range map[string]struct {
		opts []graygrpc.ServerOption
		want []string
	}{
		"by version":     {[]graygrpc.ServerOption{graygrpc.WithProfileLabels()}, []string{"v2", "stable"}},
		"without a self": {[]graygrpc.ServerOption{graygrpc.WithProfileLabels(), nil}, []string{"v2", "stable"}},
		"users are not named": {[]graygrpc.ServerOption{graygrpc.WithProfileLabels(), graygrpc.WithPolicy(subset.Policy{Key: "uid"}),
			graygrpc.WithSelf(registry.Instance{Service: "inventory"})}, []string{"other", "stable"}},
		"by default there are none": {nil, []string{""}},
	} {
		t.Run(name, func(t *testing.T) {
			if len(c.opts) == 1 {
				c.opts = append(c.opts, graygrpc.WithSelf(instance("v2")))
			}
			conn := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, append(c.opts, silent)...)...), bare(t)...)
			spent := profiled(t, func() {
				for kind, call := range kinds {
					if kind != "unary" && kind != "bidi" {
						continue
					}
					gray := graytag.MustParse("uid=10086;version=v2")
					require.NoError(t, call(graytag.NewContext(context.Background(), gray), conn, gray.String(), 1))
					require.NoError(t, call(graytag.NewContext(context.Background(), graytag.Tag{}), conn, "", 1))
				}
			})
			var got []string
			for label, d := range spent {
				assert.Positive(t, d)
				got = append(got, label)
			}
			assert.ElementsMatch(t, c.want, got)
		})
	}
}

// The connections of a client that a handler dials serve others, too, and burn in
// nobody's name.
func TestProfilesOfCallsAlone(t *testing.T) {
	reg := memory.New()
	register(t, reg, "u1", "user", "", serve(t, &node{}))
	n := &node{next: func(ctx context.Context) error {
		return callUnary(ctx, dial(t, "gray:///user", graygrpc.DialOptions(reg)...))
	}}
	entrance := dial(t, "passthrough:///"+serve(t, n, serverOptions(t, graygrpc.WithSelf(instance("v2")), graygrpc.WithProfileLabels(), silent)...))
	require.NoError(t, callUnary(context.Background(), entrance))
	var buf bytes.Buffer
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&buf, 1))
	assert.Contains(t, buf.String(), "transport.(*http2Client).reader")
	for block := range strings.SplitSeq(buf.String(), "\n\n") {
		if strings.Contains(block, "gray.version") {
			assert.NotContains(t, block, "transport.(*http2Client)")
			assert.NotContains(t, block, "graylane/balancer")
		}
	}
}
