package consul_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// An agent that is killed and comes back with its data: readers keep their set
// throughout, and see what changes afterwards.
func TestAgentRestart_NothingIsLost(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	gray, err := reg.Register(context.Background(), instance("o1", "v2"))
	require.NoError(t, err)
	_, err = reg.Register(context.Background(), instance("o2", ""))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1", "o2")
	before := len(r.sets())

	agent.Kill()
	require.Eventually(t, func() bool { return len(r.errs()) > 0 }, patience, 5*time.Millisecond)
	agent.Restart()

	require.NoError(t, gray.Update(context.Background(), map[string]string{"version": "v3"}))
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 2 && set[0].Metadata["version"] == "v3"
	})
	for _, set := range r.sets()[before-1:] {
		require.Len(t, set, 2)
		for _, i := range set {
			assert.Equal(t, registry.StatusPassing, i.Status, i.ID)
		}
	}
}

// An agent that comes back without its data: every registration is made again by
// itself, with the metadata of its last update.
func TestAgentRestart_Forgotten(t *testing.T) {
	for name, option := range map[string]consul.Option{
		"TTL":   nil,
		"check": consul.WithHTTPCheck("/healthz", time.Hour),
	} {
		t.Run(name, func(t *testing.T) {
			agent := consultest.Start(t)
			reg := open(t, agent.Config(), consul.WithTTL(3*time.Second), option)
			g, err := reg.Register(context.Background(), instance("o1", "v1"))
			require.NoError(t, err)
			out := instance("o2", "")
			out.Status = registry.StatusMaintenance
			_, err = reg.Register(context.Background(), out)
			require.NoError(t, err)
			require.NoError(t, g.Update(context.Background(), map[string]string{"version": "v2"}))
			r := watch(t, reg, "order")
			r.untilIDs(patience, "o1", "o2")
			before := len(r.sets())

			agent.Reset()
			// A reader of its own: the old one keeps what was before the restart.
			late := open(t, agent.Config())
			back := func(set []registry.Instance) bool {
				return len(set) == 2 &&
					set[0].Metadata["version"] == "v2" && set[0].Status == registry.StatusPassing &&
					set[1].Status == registry.StatusMaintenance
			}
			watch(t, late, "order").until(patience, back)
			r.until(patience, back)
			for _, set := range r.sets()[before-1:] {
				// o2 serves nobody, so nothing is lost while it is not back.
				require.NotEmpty(t, set)
				require.Equal(t, "o1", set[0].ID, "the instance that serves stays throughout")
				require.Equal(t, registry.StatusPassing, set[0].Status)
			}

			// Both work on.
			require.NoError(t, g.Deregister(context.Background()))
			r.untilIDs(patience, "o2")
		})
	}
}

// What does not come back after an outage goes when the grace is over.
func TestAgentRestart_GraceEnds(t *testing.T) {
	agent := consultest.Start(t)
	put := func(id string, port int) {
		t.Helper()
		require.NoError(t, agent.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
			ID: id, Name: "order", Address: "127.0.0.1", Port: port,
		}))
	}
	put("o1", 8081)
	put("o2", 8082)
	put("o3", 8083)
	const grace = 4 * time.Second
	r := watch(t, open(t, agent.Config(), consul.WithOutageGrace(grace)), "order")
	r.untilIDs(patience, "o1", "o2", "o3")
	none := watch(t, open(t, agent.Config(), consul.WithOutageGrace(0)), "order")
	none.untilIDs(patience, "o1", "o2", "o3")

	agent.Reset()
	none.untilIDs(patience)
	require.Len(t, r.sets()[len(r.sets())-1], 3)
	put("o2", 8082)
	put("new", 8083) // has the address of o3
	r.untilIDs(patience, "new", "o1", "o2")
	r.untilIDs(patience, "new", "o2")
}

func TestDeregister(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	g, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1")
	require.NoError(t, g.Deregister(context.Background()))
	r.untilIDs(time.Second)
	require.ErrorIs(t, g.Update(context.Background(), nil), registry.ErrNotRegistered)
}

// An instance that could not be deregistered is not given up.
func TestDeregister_ConsulDown(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	g, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	agent.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.ErrorContains(t, g.Deregister(ctx), agent.Address())
	agent.Restart()
	require.NoError(t, g.Deregister(ctx))
	require.NoError(t, g.Deregister(ctx))
	services, err := agent.Client().Agent().Services()
	require.NoError(t, err)
	assert.Empty(t, services)
}

// Registrations in quick succession, to a watch that has only just begun: none gets
// lost. Without ?near=, one in a thousand or so does on a busy machine.
func TestWatch_NothingIsLostAtTheStart(t *testing.T) {
	ctx := context.Background()
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	for n := range 100 {
		a, b := instance("a", ""), instance("b", "")
		for _, i := range []*registry.Instance{&a, &b} {
			i.Service = fmt.Sprintf("order-%d", n)
			i.ID = i.Service + i.ID
		}
		r := watch(t, reg, a.Service)
		for _, i := range []registry.Instance{a, b} {
			g, err := reg.Register(ctx, i)
			require.NoError(t, err)
			defer func() { require.NoError(t, g.Deregister(ctx)) }()
		}
		r.untilIDs(patience, a.ID, b.ID)
		r.stop()
	}
}

// The library keeps the TTL check alive, and a process that is gone turns critical.
func TestTTL(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config(), consul.WithTTL(time.Second))
	_, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	// What a process that died right after its registration leaves behind.
	require.NoError(t, agent.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
		ID: "o2", Name: "order", Address: "127.0.0.1", Port: 8081,
		Check: &api.AgentServiceCheck{TTL: "1s", Status: api.HealthPassing},
	}))
	r := watch(t, reg, "order")
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 2 && set[1].Status == registry.StatusCritical
	})
	<-time.After(2 * time.Second) // two more TTLs
	for _, set := range r.sets() {
		for _, i := range set {
			if i.ID == "o1" {
				assert.Equal(t, registry.StatusPassing, i.Status)
			}
		}
	}

	// The process comes back under the same ID: it serves at once.
	_, err = reg.Register(context.Background(), instance("o2", ""))
	require.NoError(t, err)
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 2 && set[1].Status == registry.StatusPassing
	})
}

// Somebody deregisters a living instance with the agent: it comes back.
func TestForgottenOnPurpose(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config(), consul.WithTTL(time.Second))
	_, err := reg.Register(context.Background(), instance("o1", "v1"))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1")
	require.NoError(t, agent.Client().Agent().ServiceDeregister("o1"))
	r.untilIDs(patience)
	r.untilIDs(patience, "o1")
}

// Consul's maintenance mode of an instance is not ended by an update, and one that
// an operator has ended is not brought back by it.
func TestUpdate_LeavesMaintenanceAlone(t *testing.T) {
	ctx := context.Background()
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	g, err := reg.Register(ctx, instance("o1", "v1"))
	require.NoError(t, err)
	require.NoError(t, agent.Client().Agent().EnableServiceMaintenance("o1", "drain"))
	require.NoError(t, g.Update(ctx, map[string]string{"version": "v2"}))
	r := watch(t, reg, "order")
	is := func(version string, s registry.Status) func([]registry.Instance) bool {
		return func(set []registry.Instance) bool {
			return len(set) == 1 && set[0].Metadata["version"] == version && set[0].Status == s
		}
	}
	r.until(patience, is("v2", registry.StatusMaintenance))

	i := instance("o1", "v3")
	i.Status = registry.StatusMaintenance
	g, err = reg.Register(ctx, i)
	require.NoError(t, err)
	r.until(patience, is("v3", registry.StatusMaintenance))
	require.NoError(t, agent.Client().Agent().DisableServiceMaintenance("o1"))
	r.until(patience, is("v3", registry.StatusPassing))
	require.NoError(t, g.Update(ctx, map[string]string{"version": "v4"}))
	r.until(patience, is("v4", registry.StatusPassing))
}

func TestWithHTTPCheck(t *testing.T) {
	agent := consultest.Start(t)
	sick := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-sick:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			if r.URL.Path != "/healthz" {
				w.WriteHeader(http.StatusNotFound)
			}
		}
	}))
	defer server.Close()
	reg := open(t, agent.Config(), consul.WithHTTPCheck("/healthz", time.Second))
	i := instance("o1", "")
	i.Address = server.Listener.Addr().String()
	i.Status = registry.StatusCritical // until the agent has looked
	_, err := reg.Register(context.Background(), i)
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Status == registry.StatusPassing
	})
	close(sick)
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Status == registry.StatusCritical
	})
}

func TestWithGRPCCheck(t *testing.T) {
	agent := consultest.Start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server, state := grpc.NewServer(), health.NewServer()
	state.SetServingStatus("order", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, state)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() {
		server.Stop()
		require.NoError(t, <-done)
	}()

	reg := open(t, agent.Config(), consul.WithGRPCCheck("order", time.Second))
	i := instance("o1", "")
	i.Address = l.Addr().String()
	i.Status = registry.StatusCritical
	_, err = reg.Register(context.Background(), i)
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Status == registry.StatusPassing
	})
	state.SetServingStatus("order", healthpb.HealthCheckResponse_NOT_SERVING)
	r.until(patience, func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Status == registry.StatusCritical
	})
}

func TestClose(t *testing.T) {
	ctx := context.Background()
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	for _, id := range []string{"o1", "o2"} {
		_, err := reg.Register(ctx, instance(id, ""))
		require.NoError(t, err)
	}
	gone, err := reg.Register(ctx, instance("o3", ""))
	require.NoError(t, err)
	require.NoError(t, gone.Deregister(ctx))
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1", "o2")

	require.NoError(t, reg.Close())
	<-r.done // the loop ends by itself
	services, err := agent.Client().Agent().Services()
	require.NoError(t, err)
	assert.Empty(t, services)
	assert.NoError(t, reg.Close())

	_, err = reg.Register(ctx, instance("o1", ""))
	require.ErrorIs(t, err, consul.ErrClosed)
	var errs []error
	for _, err := range reg.Watch(ctx, "order") {
		errs = append(errs, err)
	}
	require.Len(t, errs, 1)
	assert.ErrorIs(t, errs[0], consul.ErrClosed)
}

func TestClose_ConsulDown(t *testing.T) {
	agent := consultest.Start(t)
	reg := open(t, agent.Config())
	_, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1")
	agent.Kill()
	require.ErrorContains(t, reg.Close(), `"o1"`)
	<-r.done
}

// Three servers, and the leader is killed: readers through the others lose nothing,
// and see what changes once there is a new leader.
func TestLeaderKilled(t *testing.T) {
	ctx := context.Background()
	cluster := consultest.StartCluster(t, 3)
	follower := cluster.Followers()[0]
	reg := open(t, follower.Config())
	g, err := reg.Register(ctx, instance("o1", "v1"))
	require.NoError(t, err)
	_, err = reg.Register(ctx, instance("o2", ""))
	require.NoError(t, err)
	r := watch(t, reg, "order")
	r.untilIDs(patience, "o1", "o2")
	before := len(r.sets())

	cluster.KillLeader()
	// Asked while there may be no leader: any server can answer.
	fresh := watch(t, open(t, follower.Config()), "order")
	fresh.untilIDs(patience, "o1", "o2")
	cluster.Leader()
	require.Eventually(t, func() bool {
		return g.Update(ctx, map[string]string{"version": "v2"}) == nil
	}, patience, 50*time.Millisecond)
	for _, reader := range []*reader{r, fresh} {
		reader.until(patience, func(set []registry.Instance) bool {
			return len(set) == 2 && set[0].Metadata["version"] == "v2"
		})
	}
	for _, set := range r.sets()[before-1:] {
		require.Len(t, set, 2)
		for _, i := range set {
			assert.Equal(t, registry.StatusPassing, i.Status)
		}
	}
}

// Consistent reads are an option.
func TestWithAllowStale(t *testing.T) {
	f := newFake(t, response{index: "5", body: list(entry("a", ""))})
	watch(t, open(t, f.config(), consul.WithAllowStale(false)), "order").untilIDs(patience, "a")
	assert.False(t, f.seen()[0].query.Has("stale"))
}
