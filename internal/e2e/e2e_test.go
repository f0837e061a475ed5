package e2e_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
)

const tagged = "channel=app;uid=10086;version=v2.1.0"

// request sends one request into a chain and waits for its answer.
func request(t *testing.T, first call, tag graytag.Tag) {
	t.Helper()
	ctx, cancel := context.WithTimeout(graytag.NewContext(context.Background(), tag), wait)
	defer cancel()
	require.NoError(t, first(ctx))
}

func TestT2_FiveHopsOverHTTPAndGRPC(t *testing.T) {
	reg := openRegistry(t, consultest.Start(t))
	l, client := &log{}, newClient(t, reg)
	startHTTP(t, reg, l, "e", "", 1, nil)
	startGRPC(t, reg, l, "d", "", 1, overHTTP(client, "e"))
	startHTTP(t, reg, l, "c", "", 1, overUnary(dial(t, reg, "d")))
	startGRPC(t, reg, l, "b", "", 1, overHTTP(client, "c"))
	startHTTP(t, reg, l, "a", "", 1, overUnary(dial(t, reg, "b")))

	tag, err := graytag.MustParse(tagged).With("channel", "灰度 a+b%")
	require.NoError(t, err)
	request(t, overHTTP(client, "a"), tag)

	first := l.of("a")[0]
	for _, service := range []string{"a", "b", "c", "d", "e"} {
		visits := l.of(service)
		require.Len(t, visits, 1, service)
		v := visits[0]
		assert.Equal(t, tag.String(), v.tag, service)
		assert.Equal(t, []string{tag.String()}, v.header["X-Gray-Tag"], service)
		assert.ElementsMatch(t, members(first.header), members(v.header), "the bytes of each member at %s", service)
		assert.NotContains(t, v.header.Get("Baggage"), "%25E7")
	}
	assert.Len(t, members(first.header), 3)
	last, err := graytag.Parse(l.of("e")[0].tag)
	require.NoError(t, err)
	assert.Equal(t, "灰度 a+b%", last.Get("channel"))
}

func members(h http.Header) []string { return strings.Split(strings.Join(h["Baggage"], ","), ",") }

func TestT6_TheChainKeepsTheTagWithoutHelpOfTheHandlers(t *testing.T) {
	reg := openRegistry(t, consultest.Start(t))
	l, client := &log{}, newClient(t, reg)
	// E, D and B have a gray instance, C has not: the colour passes it all the same.
	for _, v := range []string{"", "v2.1.0"} {
		startHTTP(t, reg, l, "e", v, 1, nil)
		startGRPC(t, reg, l, "d", v, 1, overHTTP(client, "e"))
	}
	startGRPC(t, reg, l, "c", "", 1, overBidi(dial(t, reg, "d")))
	for _, v := range []string{"", "v2.1.0"} {
		startHTTP(t, reg, l, "b", v, 1, overUnary(dial(t, reg, "c")))
	}

	request(t, overHTTP(client, "b"), graytag.MustParse(tagged))
	for _, service := range []string{"b", "c", "d", "e"} {
		visits := l.of(service)
		require.Len(t, visits, 1, "the very first request at %s", service)
		assert.Equal(t, tagged, visits[0].tag, service)
		want := service + "-v2.1.01"
		if service == "c" {
			want = "c-1"
		}
		assert.Equal(t, want, visits[0].instance)
	}
	request(t, overHTTP(client, "b"), graytag.Tag{})
	for _, service := range []string{"b", "c", "d", "e"} {
		want := 1
		if service == "c" {
			want = 2 // it has served the tagged request, too
		}
		assert.Equal(t, want, l.instances(service)[service+"-1"], "untagged is stable at %s", service)
	}
}

// sides runs a test against an HTTP and a gRPC service.
func sides(t *testing.T, f func(t *testing.T, agent *consultest.Agent, startOne func(*testing.T, registry.Registrar, string, int) *instance, do func(*testing.T, registry.Discovery) func(context.Context) (string, error))) {
	t.Run("http", func(t *testing.T) {
		f(t, consultest.Start(t),
			func(t *testing.T, reg registry.Registrar, version string, n int) *instance {
				return startHTTP(t, reg, &log{}, "order", version, n, nil)
			},
			func(t *testing.T, disc registry.Discovery) func(context.Context) (string, error) {
				client := newClient(t, disc)
				return func(ctx context.Context) (string, error) { return ask(ctx, client, "order") }
			})
	})
	t.Run("grpc", func(t *testing.T) {
		f(t, consultest.Start(t),
			func(t *testing.T, reg registry.Registrar, version string, n int) *instance {
				return startGRPC(t, reg, &log{}, "order", version, n, nil)
			},
			func(t *testing.T, disc registry.Discovery) func(context.Context) (string, error) {
				client := dial(t, disc, "order")
				return func(ctx context.Context) (string, error) {
					out, err := client.UnaryCall(ctx, &testgrpc.SimpleRequest{}, grpc.WaitForReady(false))
					return out.GetServerId(), err
				}
			})
	})
}

// exact allows stable for the untagged and v2 for v2 alone.
func exact(tag, instance string) bool {
	return (tag != "") == strings.HasPrefix(instance, "order-v2")
}

func TestAgentKilledAndStartedUnderLoad(t *testing.T) {
	sides(t, func(t *testing.T, agent *consultest.Agent, startOne func(*testing.T, registry.Registrar, string, int) *instance, do func(*testing.T, registry.Discovery) func(context.Context) (string, error)) {
		reg := openRegistry(t, agent)
		startOne(t, reg, "", 1)
		startOne(t, reg, "v2", 1)
		// The client sees Consul through a registry of its own, as it would in a
		// process of its own.
		disc := openRegistry(t, agent)
		visible(t, disc, 2)
		l := startLoad(t, []string{"", "version=v2"}, exact, do(t, disc))
		l.until("version=v2", "order-v21")

		agent.Kill()
		l.until("version=v2", "order-v21")
		l.until("", "order-1")
		agent.Restart()
		l.until("version=v2", "order-v21")

		// Now the agent comes back and knows of nothing: the registrations come
		// back by themselves, and nobody notices.
		agent.Reset()
		require.Eventually(t, func() bool {
			entries, _, err := agent.Client().Health().Service("order", "", true, nil)
			return err == nil && len(entries) == 2
		}, wait, 50*time.Millisecond, "the registrations come back")
		l.until("version=v2", "order-v21")
		l.until("", "order-1")
		l.end()
	})
}

func TestMetadataChangedInPlaceUnderLoad(t *testing.T) {
	sides(t, func(t *testing.T, agent *consultest.Agent, startOne func(*testing.T, registry.Registrar, string, int) *instance, do func(*testing.T, registry.Discovery) func(context.Context) (string, error)) {
		reg := openRegistry(t, agent)
		startOne(t, reg, "", 1)
		changing := startOne(t, reg, "", 2)
		disc := openRegistry(t, agent)
		visible(t, disc, 2)
		l := startLoad(t, []string{"", "version=v2"}, func(string, string) bool { return true }, do(t, disc))
		l.until("", "order-2")
		l.until("version=v2", "order-2") // the fallback

		require.NoError(t, changing.Update(context.Background(), map[string]string{"version": "v2"}))
		l.never("", "order-2")
		l.never("version=v2", "order-1")
		require.NoError(t, changing.Update(context.Background(), nil))
		l.until("", "order-2")
		l.until("version=v2", "order-1")
		l.end()
	})
}

func TestInstanceDeregisteredUnderLoad(t *testing.T) {
	sides(t, func(t *testing.T, agent *consultest.Agent, startOne func(*testing.T, registry.Registrar, string, int) *instance, do func(*testing.T, registry.Discovery) func(context.Context) (string, error)) {
		reg := openRegistry(t, agent)
		startOne(t, reg, "", 1)
		startOne(t, reg, "v2", 1)
		leaving := startOne(t, reg, "v2", 2)
		allowed := func(tag, instance string) bool { return tag != "" || instance == "order-1" }
		disc := openRegistry(t, agent)
		visible(t, disc, 3)
		l := startLoad(t, []string{"", "version=v2"}, allowed, do(t, disc))
		l.until("version=v2", "order-v22")

		// As a service shuts down: deregister, wait until nobody comes, stop.
		require.NoError(t, leaving.Deregister(context.Background()))
		l.never("version=v2", "order-v22")
		leaving.stop()
		l.until("version=v2", "order-v21")
		l.end()
	})
}

func TestLeaderKilledUnderLoad(t *testing.T) {
	cluster := consultest.StartCluster(t, 3)
	follower := cluster.Followers()[0]
	reg := openRegistry(t, follower)
	startHTTP(t, reg, &log{}, "order", "", 1, nil)
	v2 := startHTTP(t, reg, &log{}, "order", "v2", 1, nil)
	disc := openRegistry(t, follower)
	visible(t, disc, 2)
	client := newClient(t, disc)
	l := startLoad(t, []string{"", "version=v2"}, func(tag, instance string) bool { return tag != "" || instance == "order-1" },
		func(ctx context.Context) (string, error) { return ask(ctx, client, "order") })
	l.until("version=v2", v2.id)

	cluster.KillLeader()
	l.until("version=v2", v2.id)
	// A new leader takes writes again, and changes are seen again.
	require.Eventually(t, func() bool { return v2.Update(context.Background(), map[string]string{"version": "v3"}) == nil }, 2*wait, 100*time.Millisecond)
	l.never("version=v2", v2.id)
	l.until("version=v2", "order-1")
	l.end()
}
