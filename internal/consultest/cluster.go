package consultest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// Cluster is several Consul servers that elect a leader among them.
type Cluster struct {
	t testing.TB
	// Agents are the servers, running or killed.
	Agents []*Agent
}

// StartCluster runs n Consul servers and returns when all of them know a leader
// and each other. Three is the smallest number that survives the loss of one.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	bin := binary(t)
	var last error
	for range 5 {
		c, err := startCluster(t, bin, n)
		if err == nil {
			return c
		}
		for _, a := range c.Agents {
			a.kill()
		}
		last = err
		if !portTaken(err) {
			break
		}
	}
	t.Fatalf("consultest: %v", last)
	return nil
}

func startCluster(t testing.TB, bin string, n int) (*Cluster, error) {
	t.Helper()
	c := &Cluster{t: t}
	var all []ports
	var join []string
	for range n {
		p, err := freePorts()
		if err != nil {
			return c, err
		}
		all = append(all, p)
		join = append(join, net.JoinHostPort("127.0.0.1", strconv.Itoa(p.SerfLAN)))
	}
	for i, p := range all {
		a := &Agent{t: t, name: fmt.Sprintf("server-%d", i+1), dir: t.TempDir(), ports: p, size: n, join: join}
		a.connect()
		c.Agents = append(c.Agents, a)
		if err := a.start(bin); err != nil {
			return c, err
		}
	}
	for _, a := range c.Agents {
		if err := a.waitReady(); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Leader returns the server that the others follow, waiting for an election.
func (c *Cluster) Leader() *Agent {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, a := range c.Agents {
			leader, err := a.client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
			if err != nil {
				continue
			}
			for _, l := range c.Agents {
				if l.running() && leader == net.JoinHostPort("127.0.0.1", strconv.Itoa(l.ports.Server)) {
					return l
				}
			}
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("consultest: the cluster has no leader after %v", readyTimeout)
		case <-tick.C:
		}
	}
}

// KillLeader kills the leader and returns it, while the others have not elected
// another one yet.
func (c *Cluster) KillLeader() *Agent {
	c.t.Helper()
	a := c.Leader()
	a.kill()
	return a
}

// Followers returns the running servers that are not the leader.
func (c *Cluster) Followers() []*Agent {
	c.t.Helper()
	leader := c.Leader()
	var followers []*Agent
	for _, a := range c.Agents {
		if a != leader && a.running() {
			followers = append(followers, a)
		}
	}
	return followers
}

// running reports whether the process of the agent lives.
func (a *Agent) running() bool {
	if a.process == nil {
		return false
	}
	select {
	case <-a.process.done:
		return false
	default:
		return true
	}
}
