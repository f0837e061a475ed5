package balancer_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"

	graylane "github.com/graylane/graylane/balancer"
	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/internal/telemetry"
)

// channel stands for a grpc.ClientConn without sockets: every connection comes
// up as soon as events are run, unless its address is in stuck. It drives the
// real policies, one call at a time, as gRPC does.
type channel struct {
	balancer.ClientConn // for what no policy calls here
	name                string
	balancer            balancer.Balancer
	config              balancer.ClientConnState

	created  []string
	subConns map[string]*subConn // the latest of each address
	stuck    map[string]bool

	mu      sync.Mutex // timers and goroutines of policies come beside
	events  []func()
	current balancer.Picker
	state   connectivity.State
	updates int // pickers
}

func (c *channel) UpdateState(s balancer.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current, c.state = s.Picker, s.ConnectivityState
	c.updates++
}

func (c *channel) picker() balancer.Picker {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *channel) seen() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.updates
}

func (c *channel) ResolveNow(resolver.ResolveNowOptions)  {}
func (c *channel) MetricsRecorder() stats.MetricsRecorder { return noRecorder{} }

type noRecorder struct{ stats.MetricsRecorder }

func (noRecorder) RecordInt64Count(*stats.Int64CountHandle, int64, ...string)       {}
func (noRecorder) RecordFloat64Histo(*stats.Float64HistoHandle, float64, ...string) {}

func (c *channel) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	sc := &subConn{channel: c, address: addrs[0].Addr, listener: opts.StateListener}
	c.created = append(c.created, sc.address)
	if c.subConns == nil {
		c.subConns = make(map[string]*subConn)
	}
	c.subConns[sc.address] = sc
	return sc, nil
}

// later makes f an event.
func (c *channel) later(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, f)
}

// run runs the events, and those that they make.
func (c *channel) run() {
	for {
		c.mu.Lock()
		if len(c.events) == 0 {
			c.mu.Unlock()
			return
		}
		f := c.events[0]
		c.events = c.events[1:]
		c.mu.Unlock()
		f()
	}
}

type subConn struct {
	balancer.SubConn // for what no policy calls here
	channel          *channel
	address          string
	listener         func(balancer.SubConnState)
	closed           atomic.Bool
}

func (s *subConn) report(state connectivity.State) {
	s.channel.later(func() {
		if !s.closed.Load() || state == connectivity.Shutdown {
			s.listener(balancer.SubConnState{ConnectivityState: state})
		}
	})
}

func (s *subConn) Connect() {
	s.report(connectivity.Connecting)
	if !s.channel.stuck[s.address] {
		s.report(connectivity.Ready)
	}
}

func (s *subConn) Shutdown() {
	s.closed.Store(true)
	s.report(connectivity.Shutdown)
}

func (s *subConn) RegisterHealthListener(f func(balancer.SubConnState)) {
	s.channel.later(func() { f(balancer.SubConnState{ConnectivityState: connectivity.Ready}) })
}

// newChannel builds the policy name with the config js over endpoints.
func newChannel(tb testing.TB, name, js string, endpoints []resolver.Endpoint) *channel {
	tb.Helper()
	c := &channel{name: name}
	c.start(tb, js, endpoints)
	return c
}

func (c *channel) start(tb testing.TB, js string, endpoints []resolver.Endpoint) {
	tb.Helper()
	if c.name == "" {
		c.name = graylane.Name
	}
	if c.stuck == nil {
		c.stuck = map[string]bool{}
	}
	c.configure(tb, js)
	// As the resolver does: metrics are on, and nobody records.
	c.config.ResolverState = lbattr.SetClient(resolver.State{}, &lbattr.Client{Service: "inventory", Metrics: telemetry.New(nil)})
	c.balancer = balancer.Get(c.name).Build(c, balancer.BuildOptions{})
	tb.Cleanup(c.balancer.Close)
	c.update(tb, endpoints)
}

func (c *channel) configure(tb testing.TB, js string) {
	tb.Helper()
	if parser, ok := balancer.Get(c.name).(balancer.ConfigParser); ok {
		cfg, err := parser.ParseConfig(json.RawMessage(js))
		require.NoError(tb, err)
		c.config.BalancerConfig = cfg
	}
}

func (c *channel) update(tb testing.TB, endpoints []resolver.Endpoint) {
	tb.Helper()
	s := c.config
	s.ResolverState.Endpoints = endpoints
	require.NoError(tb, c.balancer.UpdateClientConnState(s))
	c.run()
}

// endpoints returns n of them, the versions in turn; "" is stable.
func endpoints(n int, versions ...string) []resolver.Endpoint {
	all := make([]resolver.Endpoint, n)
	for i := range all {
		all[i] = endpoint(fmt.Sprintf("10.0.%d.%d:80", i/250, i%250), versions[i%len(versions)])
	}
	return all
}

func endpoint(address, version string) resolver.Endpoint {
	e := resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}}
	if version != "" {
		e = lbattr.SetMetadata(e, map[string]string{"version": version, "zone": "a"})
	}
	return e
}
