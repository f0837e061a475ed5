package resolver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // client-side health checks
	"google.golang.org/grpc/status"

	"github.com/graylane/graylane/balancer/internal/lbtest"
	"github.com/graylane/graylane/balancer/resolver"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/registry"
)

// A proxy is set for the whole package, and nobody listens there: a client that
// asked for it would reach nothing. net/http reads the variable once.
func TestMain(m *testing.M) {
	if err := os.Setenv("HTTPS_PROXY", "http://127.0.0.1:1"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var insecureCreds = grpc.WithTransportCredentials(insecure.NewCredentials())

func TestProxyInTheEnvironmentChangesNothing(t *testing.T) {
	var set static
	// Loopback is never proxied, the unspecified address is; both lead here.
	for id, version := range map[string]string{"s1": "", "g1": "v2"} {
		_, port, err := net.SplitHostPort(lbtest.Start(t, id).Addr)
		require.NoError(t, err)
		set = append(set, registry.Instance{ID: id, Service: "inventory",
			Address: net.JoinHostPort("0.0.0.0", port), Metadata: map[string]string{"version": version}})
	}
	client := lbtest.Dial(t, set, "inventory")
	assert.Equal(t, map[string]int{"g1": 20}, client.Count(t, 20, "version=v2"))
	assert.Equal(t, map[string]int{"s1": 20}, client.Count(t, 20, ""))
}

// static is a discovery of what never changes.
type static []registry.Instance

func (s static) Watch(ctx context.Context, _ string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		if yield(s, nil) {
			<-ctx.Done()
		}
	}
}

func TestC3_ServiceThatNobodyHasRegistered(t *testing.T) {
	cluster := lbtest.NewCluster()
	client := lbtest.Dial(t, cluster, "inventory")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	began := time.Now()
	_, err := client.Who(ctx, "version=v2")
	assert.Less(t, time.Since(began), time.Second)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	for _, part := range []string{`service "inventory"`, `version "v2"`, "registered: none"} {
		assert.Contains(t, err.Error(), part)
	}

	// One that waits for ready waits for the registration.
	waiting := make(chan error, 1)
	go func() {
		_, err := client.Who(ctx, "version=v2", grpc.WaitForReady(true))
		waiting <- err
	}()
	cluster.Add(t, "inventory", "s1", "")
	require.Eventually(t, func() bool {
		id, err := client.Who(ctx, "version=v2")
		return err == nil && id == "s1"
	}, 5*time.Second, time.Millisecond)
	assert.NoError(t, <-waiting)
}

// unreachable is a discovery whose registry is down, until it is not.
type unreachable struct {
	registry.Discovery
	up      chan struct{}
	watches atomic.Int32
}

func (u *unreachable) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		u.watches.Add(1)
		// A status in a cause must not become the status of RPCs.
		err := fmt.Errorf("consul: Get \"http://127.0.0.1:8500\": %w", status.Error(codes.PermissionDenied, "connection refused"))
		for range 3 {
			if !yield(nil, err) {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-u.up:
		}
		for set, err := range u.Discovery.Watch(ctx, service) {
			if !yield(set, err) {
				return
			}
		}
	}
}

func TestC3_RegistryDownAtDial(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "s1", "")
	disc := &unreachable{Discovery: cluster, up: make(chan struct{})}
	var log bytes.Buffer
	var mu sync.Mutex
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	client := lbtest.Dial(t, disc, "inventory", resolver.WithLogger(logger))
	_, err := client.Who(t.Context(), "")
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	assert.Contains(t, err.Error(), "consul")
	assert.Contains(t, err.Error(), "connection refused")
	assert.Contains(t, err.Error(), `"inventory"`)

	close(disc.up)
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), "")
		return err == nil
	}, 5*time.Second, time.Millisecond)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"), "one line per streak of errors: %s", log.String())
	assert.Equal(t, 1, strings.Count(log.String(), "level=INFO"))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestFailedLookUpsKeepTheLastSet(t *testing.T) {
	cluster := lbtest.NewCluster()
	g1 := cluster.Add(t, "inventory", "g1", "v2")
	disc := &failing{Discovery: cluster, errs: make(chan error)}
	client := lbtest.Dial(t, disc, "inventory", resolver.WithLogger(slog.New(slog.DiscardHandler)))
	assert.Equal(t, map[string]int{"g1": 5}, client.Count(t, 5, "version=v2"))
	for range 5 {
		disc.errs <- errors.New("consul: No cluster leader")
	}
	assert.Equal(t, map[string]int{"g1": 50}, client.Count(t, 50, "version=v2"))
	assert.Equal(t, 1, g1.Accepted(), "no connection was closed")
}

// failing yields errors among the sets.
type failing struct {
	registry.Discovery
	errs chan error
}

func (f *failing) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		for set := range f.Discovery.Watch(ctx, service) {
			if !yield(set, nil) {
				return
			}
			break
		}
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-f.errs:
				if !yield(nil, err) {
					return
				}
			}
		}
	}
}

func TestC9_WarningAndMaintenance(t *testing.T) {
	cluster := lbtest.NewCluster()
	for _, id := range []string{"passing", "warning", "critical", "maintenance"} {
		cluster.Add(t, "inventory", id, "")
	}
	require.NoError(t, cluster.SetStatus("warning", registry.StatusWarning))
	require.NoError(t, cluster.SetStatus("critical", registry.StatusCritical))
	require.NoError(t, cluster.SetStatus("maintenance", registry.StatusMaintenance))

	client := lbtest.Dial(t, cluster, "inventory")
	assert.Equal(t, map[string]int{"passing": 20}, client.Count(t, 20, ""))

	client = lbtest.Dial(t, cluster, "inventory", resolver.WithWarning())
	require.Eventually(t, func() bool { return len(client.Count(t, 4, "")) == 2 }, 5*time.Second, time.Millisecond)
	got := client.Count(t, 40, "")
	assert.Equal(t, 40, got["passing"]+got["warning"])
	assert.Len(t, got, 2)
}

// What is registered and must not serve is not missing: waiting for it has a
// point, and the counters tell the two apart. httplb says the same.
func TestInstancesThatMustNotServeAreRegistered(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "s1", "")
	g1 := cluster.Add(t, "inventory", "g1", "v2")
	require.NoError(t, cluster.SetStatus("g1", registry.StatusCritical))
	fallback := lbtest.Labels{Service: "inventory", Wanted: "v2", Served: "stable", Outcome: "fallback_stable", Reason: "unhealthy"}
	decisions := lbtest.NewDecisions()
	client := lbtest.Dial(t, cluster, "inventory", decisions.Options()...)
	assert.Equal(t, map[string]int{"s1": 10}, client.Count(t, 10, "version=v2"))
	assert.Equal(t, map[lbtest.Labels]int{fallback: 10}, decisions.Counted(t))
	assert.Zero(t, g1.Accepted(), "nobody dials it")

	strict := lbtest.Dial(t, cluster, "inventory", resolver.WithPolicy(subset.Policy{Strict: true}))
	_, err := strict.Who(t.Context(), "version=v2")
	require.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "(unhealthy); registered: stable=1 v2=1")
	_, err = strict.Who(t.Context(), "version=v9", grpc.WaitForReady(true))
	require.Equal(t, codes.Unavailable, status.Code(err), "waiting for what nobody registered is pointless")

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	waiting := make(chan error, 1)
	go func() {
		id, err := strict.Who(ctx, "version=v2", grpc.WaitForReady(true))
		if err == nil && id != "g1" {
			err = fmt.Errorf("served by %s", id)
		}
		waiting <- err
	}()
	// An RPC of the same kind is over by now where it does not wait.
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	_, err = strict.Who(short, "version=v2", grpc.WaitForReady(true))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
	require.NoError(t, cluster.SetStatus("g1", registry.StatusPassing))
	require.NoError(t, <-waiting)

	// A service all of whose instances must not serve.
	require.NoError(t, cluster.SetStatus("s1", registry.StatusMaintenance))
	require.NoError(t, cluster.SetStatus("g1", registry.StatusMaintenance))
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), "")
		return err != nil && strings.Contains(err.Error(), "(unhealthy); registered: stable=1 v2=1")
	}, 5*time.Second, time.Millisecond)
	require.NoError(t, cluster.SetStatus("s1", registry.StatusPassing))
	require.Eventually(t, func() bool { _, err := client.Who(t.Context(), ""); return err == nil }, 5*time.Second, time.Millisecond)
}

func TestNewestRegistrationOfAnAddressWins(t *testing.T) {
	cluster := lbtest.NewCluster()
	one := lbtest.Start(t, "one")
	cluster.Add(t, "inventory", "s1", "")
	cluster.AddAddress(t, "inventory", "z-old", one.Addr, "v1")
	cluster.AddAddress(t, "inventory", "a-new", one.Addr, "v2")
	client := lbtest.Dial(t, cluster, "inventory")
	assert.Equal(t, map[string]int{"one": 10}, client.Count(t, 10, "version=v2"))
	assert.Equal(t, map[string]int{"s1": 10}, client.Count(t, 10, "version=v1"))
	assert.Equal(t, 1, one.Accepted())

	// The newest is not healthy yet: the old version is gone all the same.
	require.NoError(t, cluster.SetStatus("a-new", registry.StatusCritical))
	require.Eventually(t, func() bool { return client.Count(t, 1, "version=v2")["s1"] == 1 }, 5*time.Second, time.Millisecond)
	assert.Equal(t, map[string]int{"s1": 10}, client.Count(t, 10, "version=v1"))
}

func TestIdleModeRebuilds(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "s1", "")
	g1 := cluster.Add(t, "inventory", "g1", "v2")
	client := lbtest.DialWith(t, cluster, "inventory", []grpc.DialOption{grpc.WithIdleTimeout(50 * time.Millisecond)})
	for round := 1; round <= 3; round++ {
		assert.Equal(t, map[string]int{"g1": 5}, client.Count(t, 5, "version=v2"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		for s := client.Conn.GetState(); s != connectivity.Idle; s = client.Conn.GetState() {
			require.True(t, client.Conn.WaitForStateChange(ctx, s), "it goes idle")
		}
		cancel()
		assert.Equal(t, round, g1.Accepted())
	}
	assert.Equal(t, map[string]int{"g1": 5}, client.Count(t, 5, "version=v2"))
}

func TestPoliciesPerService(t *testing.T) {
	cluster := lbtest.NewCluster()
	for _, service := range []string{"payment", "search"} {
		cluster.Add(t, service, service+"-s1", "")
	}
	opts := []resolver.Option{
		nil,
		resolver.WithPolicy(subset.Policy{Fallback: []string{"stable", "any"}}),
		resolver.WithPolicyFor("payment", subset.Policy{Strict: true}),
	}
	search := lbtest.Dial(t, cluster, "search", opts...)
	assert.Equal(t, map[string]int{"search-s1": 5}, search.Count(t, 5, "version=v2"))
	payment := lbtest.Dial(t, cluster, "payment", opts...)
	_, err := payment.Who(t.Context(), "version=v2")
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.Equal(t, map[string]int{"payment-s1": 5}, payment.Count(t, 5, ""))
}

func TestServiceConfigOfTheUserHolds(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.AddAddress(t, "inventory", "s1", lbtest.BlackHole(t), "")
	client := lbtest.Dial(t, cluster, "inventory", resolver.WithServiceConfig(`{"methodConfig":[{"name":[{}],"timeout":"0.1s"}]}`))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := client.Who(ctx, "")
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	assert.NoError(t, ctx.Err(), "the timeout was that of the method")
}

// A default service config that the user adds himself does not turn routing off.
func TestB7_ForeignDefaultServiceConfigNeverMeansPickFirst(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "a-gray", "v2")
	cluster.Add(t, "inventory", "b-stable", "")
	for _, js := range []string{`{"loadBalancingPolicy":"graylan"}`, `{}`, `{"loadBalancingConfig":[{"round_robin":{}}]}`} {
		client := lbtest.DialWith(t, cluster, "inventory", []grpc.DialOption{grpc.WithDefaultServiceConfig(js)})
		assert.Equal(t, map[string]int{"b-stable": 20}, client.Count(t, 20, ""), js)
		assert.Equal(t, map[string]int{"a-gray": 20}, client.Count(t, 20, "version=v2"), js)
	}
	client := lbtest.DialWith(t, cluster, "inventory", []grpc.DialOption{grpc.WithDisableServiceConfig()})
	_, err := client.Who(t.Context(), "")
	assert.Equal(t, codes.Unavailable, status.Code(err))
	assert.ErrorContains(t, err, "WithDisableServiceConfig")
}

func TestB7_WrongOptionsAreErrors(t *testing.T) {
	cluster := lbtest.NewCluster()
	for want, opt := range map[string]resolver.Option{
		"round_robbin":         resolver.WithChildPolicy(`[{"round_robbin":{}}]`),
		"is not JSON":          resolver.WithChildPolicy(`round_robin`),
		"strict and fallback":  resolver.WithPolicy(subset.Policy{Strict: true, Fallback: []string{"any"}}),
		`policy for "payment"`: resolver.WithPolicyFor("payment", subset.Policy{MinReady: -1}),
		"without a name":       resolver.WithPolicyFor("", subset.Policy{}),
		"connect wait -1s":     resolver.WithConnectWait(-time.Second),
		"loadBalancingPolicy":  resolver.WithServiceConfig(`{"loadBalancingPolicy":"graylane"}`),
		`"methodConfg"`:        resolver.WithServiceConfig(`{"methodConfg":[]}`),
		"service config":       resolver.WithServiceConfig(`{`),
	} {
		_, err := resolver.DialOptions(cluster, opt)
		require.Error(t, err, want)
		assert.Contains(t, err.Error(), want)
		_, err = resolver.NewBuilder(cluster, opt)
		assert.Error(t, err)
	}
	_, err := resolver.DialOptions(nil)
	assert.ErrorContains(t, err, "discovery is nil")

	// What only gRPC understands fails when the client is made.
	opts, err := resolver.DialOptions(cluster, resolver.WithServiceConfig(`{"methodConfig":[{"name":[{"method":"M"}]}]}`))
	require.NoError(t, err)
	_, err = grpc.NewClient("gray:///inventory", append(opts, insecureCreds)...)
	assert.Error(t, err)
}

func TestInvalidDialOptionsFailTheDial(t *testing.T) {
	invalid := resolver.InvalidDialOptions(errors.New(`graygrpc: policy: key "a b"`))
	_, err := grpc.NewClient("gray:///inventory", append(invalid, insecureCreds)...)
	require.ErrorContains(t, err, `graygrpc: policy: key "a b"`)

	// Even where a later option hides it.
	conn, err := grpc.NewClient("gray:///inventory", append(invalid, insecureCreds, grpc.WithDefaultServiceConfig("{}"))...)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err = (&lbtest.Client{Conn: conn}).Who(t.Context(), "")
	assert.ErrorContains(t, err, `graygrpc: policy: key "a b"`)
}

func TestTargetWithoutAService(t *testing.T) {
	opts, err := resolver.DialOptions(lbtest.NewCluster())
	require.NoError(t, err)
	for _, target := range []string{"gray:///", "gray://inventory", "gray://inventory/order"} {
		conn, err := grpc.NewClient(target, append(opts, insecureCreds)...)
		require.NoError(t, err)
		_, err = (&lbtest.Client{Conn: conn}).Who(t.Context(), "")
		assert.ErrorContains(t, err, "want gray:///service", target)
		require.NoError(t, conn.Close())
	}
}

// counted counts what a watch yields.
type counted struct {
	registry.Discovery
	yields atomic.Int32
}

func (c *counted) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		for set, err := range c.Discovery.Watch(ctx, service) {
			c.yields.Add(1)
			if !yield(set, err) {
				return
			}
		}
	}
}

func TestBurstsAreCoalesced(t *testing.T) {
	cluster := lbtest.NewCluster()
	disc := &counted{Discovery: cluster}
	s1 := cluster.Add(t, "inventory", "s1", "")
	client := lbtest.Dial(t, disc, "inventory", resolver.WithPolicy(subset.Policy{Strict: true}))
	client.Count(t, 1, "")
	began := time.Now()
	const n = 300
	for i := range n {
		cluster.SetMetadata(t, "s1", map[string]string{"build": fmt.Sprint(i)})
	}
	cluster.SetVersion(t, "s1", "v2")
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), "version=v2")
		return err == nil
	}, 5*time.Second, time.Millisecond)
	// One state in 20 ms at most, and some room for a slow machine.
	most := 3 + int32(time.Since(began)/(20*time.Millisecond))
	assert.LessOrEqual(t, disc.yields.Load(), most)
	assert.Less(t, most, int32(n), "the bound says nothing")
	assert.Equal(t, 2, s1.Accepted())
}

// ending is a discovery that breaks its contract once: its watch ends.
type ending struct {
	registry.Discovery
	watches atomic.Int32
}

func (e *ending) Watch(ctx context.Context, service string) iter.Seq2[[]registry.Instance, error] {
	if e.watches.Add(1) == 1 {
		return func(func([]registry.Instance, error) bool) {}
	}
	return e.Discovery.Watch(ctx, service)
}

func TestWatchThatEndsIsStartedAgain(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "s1", "")
	disc := &ending{Discovery: cluster}
	client := lbtest.Dial(t, disc, "inventory", resolver.WithLogger(slog.New(slog.DiscardHandler)))
	_, err := client.Who(t.Context(), "")
	assert.ErrorContains(t, err, "ended")
	require.Eventually(t, func() bool {
		_, err := client.Who(t.Context(), "")
		return err == nil
	}, 10*time.Second, 10*time.Millisecond)
	assert.EqualValues(t, 2, disc.watches.Load())
}

func TestHealthChecksOfGRPCCount(t *testing.T) {
	cluster := lbtest.NewCluster()
	cluster.Add(t, "inventory", "s1", "")
	g1 := cluster.Add(t, "inventory", "g1", "v2")
	g2 := cluster.Add(t, "inventory", "g2", "v2")
	decisions := lbtest.NewDecisions()
	client := lbtest.Dial(t, cluster, "inventory", append(decisions.Options(),
		resolver.WithPolicy(subset.Policy{MinReady: 2}),
		resolver.WithServiceConfig(`{"healthCheckConfig":{"serviceName":"inventory"}}`))...)
	served := func(reason subset.Reason, id string) func() bool {
		return func() bool {
			got, err := client.Who(t.Context(), "version=v2")
			all := decisions.Take()
			return err == nil && all[len(all)-1].Reason == reason && (id == "" || got == id)
		}
	}
	require.Eventually(t, served("", ""), 10*time.Second, time.Millisecond)
	g1.SetSick(true)
	require.Eventually(t, served(subset.Warming, "s1"), 10*time.Second, time.Millisecond, "connected and sick is not ready")
	g2.SetSick(true)
	require.Eventually(t, served(subset.Unhealthy, "s1"), 10*time.Second, time.Millisecond)
	g1.SetSick(false)
	g2.SetSick(false)
	require.Eventually(t, served("", ""), 10*time.Second, time.Millisecond)
	assert.Equal(t, 1, g1.Accepted())
}
