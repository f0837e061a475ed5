package consultest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// readyTimeout bounds the start of an agent, on a machine that is busy with other
// packages' tests.
const readyTimeout = 60 * time.Second

// Agent is a Consul server. Its methods end the test when they fail, and are for
// the test's goroutine only.
type Agent struct {
	t      testing.TB
	name   string
	dir    string
	ports  ports
	size   int      // servers of the cluster
	join   []string // Serf addresses of the others
	config []map[string]any
	certs  *Certificates // nil: plain HTTP
	token  string        // of Client
	client *api.Client

	process *process
}

// Start runs one Consul server and returns when it has a leader and answers. It
// takes some seconds. What is in config replaces the agent's configuration, by key
// of the top level; a request without a token must be allowed to read all nodes.
func Start(t testing.TB, config ...map[string]any) *Agent {
	t.Helper()
	return start(t, nil, "", config)
}

// managementToken is the token of a secure agent that may do everything.
const managementToken = "b6d8a1f4-6a54-4f0a-9b61-0d1f0c0a7a11"

// StartSecure is [Start] for an agent that is reached by HTTPS only, asks every
// client for a certificate (verify_incoming), and denies what no ACL policy allows,
// to requests without a token as well. [Agent.Client] may do everything;
// [Agent.Config] has a certificate and no token.
func StartSecure(t testing.TB, certs Certificates, config ...map[string]any) *Agent {
	t.Helper()
	secure := map[string]any{"tls": certs.agent(), "acl": map[string]any{
		"enabled": true, "default_policy": "deny",
		// agent is what the agent registers its own node with.
		"tokens": map[string]any{"initial_management": managementToken, "agent": managementToken},
	}}
	return start(t, &certs, managementToken, append([]map[string]any{secure}, config...))
}

func start(t testing.TB, certs *Certificates, token string, config []map[string]any) *Agent {
	t.Helper()
	bin := binary(t)
	var last error
	for range 5 {
		p, err := freePorts()
		if err != nil {
			t.Fatal(err)
		}
		if certs != nil {
			p.HTTP, p.HTTPS = -1, p.HTTP
		}
		a := &Agent{t: t, name: "solo", dir: t.TempDir(), ports: p, size: 1, config: config, certs: certs, token: token}
		a.connect()
		if err = a.start(bin); err == nil {
			err = a.waitReady()
		}
		if err == nil {
			return a
		}
		a.kill()
		last = err
		if !portTaken(err) {
			break
		}
	}
	t.Fatalf("consultest: %v", last)
	return nil
}

// connect makes the client of an agent, and ends both with the test.
func (a *Agent) connect() {
	a.t.Helper()
	// The client's own transport, so that closing idle connections at the end
	// leaves no goroutine behind.
	cfg := a.Config()
	cfg.Token = a.token
	client, err := api.NewClient(cfg)
	if err != nil {
		a.t.Fatalf("consultest: %v", err)
	}
	a.client = client
	a.t.Cleanup(func() {
		if a.t.Failed() {
			a.t.Logf("consultest: last lines of agent %s:\n%s", a.name, tail(a.log(), 30))
		}
		a.kill()
		cfg.HttpClient.CloseIdleConnections()
	})
}

// Address returns host:port of the agent's HTTP API, or HTTPS. It stays the same
// over [Agent.Restart] and [Agent.Reset].
func (a *Agent) Address() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(max(a.ports.HTTP, a.ports.HTTPS)))
}

// Config returns a new client configuration for the agent. The environment of
// the test process does not reach it.
func (a *Agent) Config() *api.Config {
	c := &api.Config{Address: a.Address(), Scheme: "http", Transport: api.DefaultConfig().Transport}
	if a.certs != nil {
		c.Scheme, c.TLSConfig = "https", a.certs.TLSConfig()
	}
	return c
}

// Client returns a client of the agent.
func (a *Agent) Client() *api.Client { return a.client }

// Kill ends the agent at once, as a crash would, and returns when it is gone.
func (a *Agent) Kill() {
	a.t.Helper()
	a.kill()
}

// Restart kills the agent if it runs and starts it on the same ports with the
// data that it had. It returns when the agent has a leader and answers.
func (a *Agent) Restart() {
	a.t.Helper()
	a.kill()
	// The ports are below the ephemeral range, but a test of another process may
	// have picked one for a moment.
	var err error
	for deadline := time.Now().Add(readyTimeout); time.Now().Before(deadline); {
		if err = a.start(binary(a.t)); err == nil {
			err = a.waitReady()
		}
		if err == nil {
			return
		}
		a.kill()
		if !portTaken(err) {
			break
		}
	}
	a.t.Fatalf("consultest: restart: %v", err)
}

// Reset is [Agent.Restart] of an agent that has lost its data: no services, no
// keys, and an index that begins anew.
func (a *Agent) Reset() {
	a.t.Helper()
	a.kill()
	if err := os.RemoveAll(filepath.Join(a.dir, "data")); err != nil {
		a.t.Fatalf("consultest: reset: %v", err)
	}
	a.Restart()
}

// start writes the configuration and starts the process.
func (a *Agent) start(bin string) error {
	config := map[string]any{
		"server":           true,
		"bootstrap_expect": a.size,
		"node_name":        a.name,
		"data_dir":         filepath.Join(a.dir, "data"),
		"bind_addr":        "127.0.0.1",
		"client_addr":      "127.0.0.1",
		"ports":            a.ports,
		"log_level":        "INFO",
		"retry_join":       a.join,
		"retry_interval":   "200ms",
		// The smallest is the quickest to elect a leader.
		"performance": map[string]any{"raft_multiplier": 1},
		// A test must not ask the internet for newer versions.
		"disable_update_check": true,
		"connect":              map[string]any{"enabled": false},
	}
	for _, c := range a.config {
		maps.Copy(config, c)
	}
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	file := filepath.Join(a.dir, "agent.json")
	if err := os.WriteFile(file, data, 0o644); err != nil {
		return err
	}
	log, err := os.OpenFile(a.logFile(), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(bin, "agent", "-config-file="+file)
	cmd.Stdout, cmd.Stderr = log, log
	a.process, err = startProcess(cmd)
	return err
}

// waitReady returns when there is a leader and the agent's own node passes, so
// that the catalog does not change by itself any more.
func (a *Agent) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), readyTimeout)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if a.ready(ctx) {
			return nil
		}
		select {
		case <-a.process.done:
			return fmt.Errorf("agent %s ended: %v\n%s", a.name, a.process.err, tail(a.log(), 20))
		case <-ctx.Done():
			return fmt.Errorf("agent %s is not ready after %v\n%s", a.name, readyTimeout, tail(a.log(), 20))
		case <-tick.C:
		}
	}
}

func (a *Agent) ready(ctx context.Context) bool {
	q := (&api.QueryOptions{}).WithContext(ctx)
	leader, err := a.client.Status().LeaderWithQueryOptions(q)
	if err != nil || leader == "" {
		return false
	}
	peers, err := a.client.Status().PeersWithQueryOptions(q)
	if err != nil || len(peers) < a.size {
		return false
	}
	checks, _, err := a.client.Health().Node(a.name, q)
	if err != nil {
		return false
	}
	// Those of services are among them.
	for _, c := range checks {
		if c.CheckID == "serfHealth" {
			return c.Status == api.HealthPassing
		}
	}
	return false
}

func (a *Agent) kill() {
	if a.process != nil {
		a.process.kill()
	}
}

func (a *Agent) logFile() string { return filepath.Join(a.dir, "agent.log") }

func (a *Agent) log() string {
	data, err := os.ReadFile(a.logFile())
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// portTaken reports whether a start failed because of somebody else's port.
func portTaken(err error) bool {
	return err != nil && strings.Contains(err.Error(), "address already in use")
}

// process is a child process with an owner: one goroutine that starts it and
// waits for its end.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid when done is closed
	once sync.Once
}

func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// See dieWithParent: the thread has to outlive the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithParent(cmd)
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends the process and returns when it is gone.
func (p *process) kill() {
	p.once.Do(func() { _ = p.cmd.Process.Kill() })
	<-p.done
}
