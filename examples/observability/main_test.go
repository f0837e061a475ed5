package main

import (
	"bytes"
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func output(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, run(context.Background(), args, &out), out.String())
	return out.String()
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

func TestOutput(t *testing.T) {
	dir := t.TempDir()
	out := output(t, "-dir", dir)
	assert.Equal(t, "requests=200 gray=50 failed=0 spans=800", lastLine(out))
	for _, want := range []string{
		"200 OK from order-v2 inventory-v2", "200 OK from order-stable inventory-stable",
		`graylane_server_requests_total{outcome="matched",service_instance_id="inventory-v2",service_name="inventory",wanted="v2"} 50`,
		`graylane_server_duration_seconds_count{service_instance_id="order-v2",service_name="order",status="200",version="v2",wanted="v2"} 50`,
		`graylane_rules_revision{service_instance_id="entrance",service_name="entrance"} 1`,
		"\n    order-v2 GET /orders/{id} gray.version=v2 gray.served=v2 gray.outcome=matched\n", "\n        inventory-v2 grpc.testing.TestService/UnaryCall gray.version=v2",
		`"gray.version":"v2"`, `"gray.version":"stable"`,
	} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "misrouted")

	// Each request is one trace: entrance, order, its call, inventory.
	all, err := spansOf(filepath.Join(dir, "traces.json"))
	require.NoError(t, err)
	traces := map[string][]span{}
	for _, s := range all {
		traces[s.SpanContext.TraceID] = append(traces[s.SpanContext.TraceID], s)
	}
	require.Len(t, traces, 200)
	for id, trace := range traces {
		require.Len(t, trace, 4, id)
		ids, parents, services, versions := map[string]bool{}, 0, map[any]int{}, map[any]int{}
		for _, s := range trace {
			ids[s.SpanContext.SpanID] = true
			services[value(s.Resource, "service.name")]++
			attrs := s.Attributes
			for _, e := range s.Events { // the entrance has no span of its own for its call
				if e.Name == "gray.decision" {
					attrs = e.Attributes
				}
			}
			versions[value(attrs, "gray.version")]++
		}
		for _, s := range trace {
			if ids[s.Parent.SpanID] {
				parents++
			}
		}
		assert.Equal(t, 3, parents, "all but the first have a parent in the trace")
		assert.Equal(t, map[any]int{"entrance": 1, "order": 2, "inventory": 1}, services)
		assert.True(t, versions["v2"] == 4 || versions["stable"] == 4, "%v", versions)
	}
}

func TestAFaultOfTheNewVersion(t *testing.T) {
	out := output(t, "-fail", "0.5")
	assert.Equal(t, "requests=200 gray=50 failed=25 spans=800", lastLine(out))
	for _, status := range []string{"OK", "INTERNAL"} {
		assert.Contains(t, out, `graylane_server_duration_seconds_count{service_instance_id="inventory-v2",service_name="inventory",status="`+status+`",version="v2",wanted="v2"} 25`)
	}
	assert.Contains(t, out, "502 Bad Gateway from order-v2, and inventory failed")
}

func TestForATime(t *testing.T) {
	out := output(t, "-for", "300ms", "-every", "1ms", "-requests", "1")
	assert.Regexp(t, regexp.MustCompile(`^requests=([2-9]|\d\d+) gray=\d+ failed=0 spans=\d+$`), lastLine(out))
}

// interrupter interrupts a run when it shows its first request.
type interrupter struct {
	bytes.Buffer
	stop context.CancelFunc
}

func (i *interrupter) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("  user")) {
		i.stop()
	}
	return i.Buffer.Write(p)
}

func TestInterruptedItShowsWhatThereIs(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	out := &interrupter{stop: cancel}
	require.NoError(t, run(ctx, []string{"-for", "1h"}, out), out.String())
	assert.Equal(t, "requests=1 gray=0 failed=0 spans=4", lastLine(out.String()))
	assert.Contains(t, out.String(), "graylane_server_requests_total")
}

func TestFailuresAreErrors(t *testing.T) {
	for _, args := range [][]string{{"-fail", "2"}, {"-fail", "NaN"}, {"-requests", "0"}, {"-every", "0s"}, {"-listen", "nowhere:x"}, {"-dir", "/nonsense"}, {"extra"}, {"-nonsense"}} {
		assert.Error(t, run(context.Background(), args, &bytes.Buffer{}), "%v", args)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Error(t, run(ctx, nil, &bytes.Buffer{}), "interrupted before there was anything to show")
}
