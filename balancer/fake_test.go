package balancer_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/experimental/stats"
	"google.golang.org/grpc/resolver"

	"github.com/graylane/graylane/balancer/internal/lbattr"
	"github.com/graylane/graylane/internal/telemetry"
)

// channel stands for a grpc.ClientConn without sockets: every connection comes
// up as soon as events are run, unless its address is in stuck. It drives the
// real policies, one call at a time, as gRPC does.
type channel struct {
	balancer.ClientConn // for what no policy calls here
	balancer            balancer.Balancer
	config              balancer.ClientConnState

	events  []func()
	picker  balancer.Picker
	state   connectivity.State
	updates int // pickers
	created []string
	stuck   map[string]bool
}

func (c *channel) UpdateState(s balancer.State) {
	c.picker, c.state = s.Picker, s.ConnectivityState
	c.updates++
}

func (c *channel) ResolveNow(resolver.ResolveNowOptions)  {}
func (c *channel) MetricsRecorder() stats.MetricsRecorder { return nil }

func (c *channel) NewSubConn(addrs []resolver.Address, opts balancer.NewSubConnOptions) (balancer.SubConn, error) {
	c.created = append(c.created, addrs[0].Addr)
	return &subConn{channel: c, address: addrs[0].Addr, listener: opts.StateListener}, nil
}

func (c *channel) run() {
	for len(c.events) > 0 {
		f := c.events[0]
		c.events = c.events[1:]
		f()
	}
}

type subConn struct {
	balancer.SubConn // for what no policy calls here
	channel          *channel
	address          string
	listener         func(balancer.SubConnState)
	closed           bool
}

func (s *subConn) report(state connectivity.State) {
	s.channel.events = append(s.channel.events, func() {
		if !s.closed || state == connectivity.Shutdown {
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
	s.closed = true
	s.report(connectivity.Shutdown)
}

func (s *subConn) RegisterHealthListener(f func(balancer.SubConnState)) {
	s.channel.events = append(s.channel.events, func() { f(balancer.SubConnState{ConnectivityState: connectivity.Ready}) })
}

// newChannel builds the policy name with the config js over endpoints.
func newChannel(tb testing.TB, name, js string, endpoints []resolver.Endpoint) *channel {
	tb.Helper()
	builder := balancer.Get(name)
	require.NotNil(tb, builder)
	c := &channel{stuck: map[string]bool{}}
	if parser, ok := builder.(balancer.ConfigParser); ok {
		cfg, err := parser.ParseConfig(json.RawMessage(js))
		require.NoError(tb, err)
		c.config.BalancerConfig = cfg
	}
	// As the resolver does: metrics are on, and nobody records.
	c.config.ResolverState = lbattr.SetClient(resolver.State{}, &lbattr.Client{Service: "inventory", Metrics: telemetry.New(nil)})
	c.balancer = builder.Build(c, balancer.BuildOptions{})
	c.update(tb, endpoints)
	tb.Cleanup(c.balancer.Close)
	return c
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
