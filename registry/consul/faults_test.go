package consul_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// stubAgent records what an agent is asked, and does with registrations what the
// test says.
type stubAgent struct {
	*httptest.Server

	mu         sync.Mutex
	registered []api.AgentServiceRegistration
	calls      []string
	onRegister func(n int, w http.ResponseWriter, r *http.Request) // n counts from 1
	onUpdate   http.HandlerFunc
}

func newStubAgent(t *testing.T) *stubAgent {
	t.Helper()
	s := &stubAgent{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

func (s *stubAgent) config() *api.Config {
	return &api.Config{Address: s.Listener.Addr().String(), Transport: api.DefaultConfig().Transport}
}

func (s *stubAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1/agent/")
	s.mu.Lock()
	s.calls = append(s.calls, path)
	s.mu.Unlock()
	switch {
	case path == "service/register":
		var reg api.AgentServiceRegistration
		if err := json.NewDecoder(r.Body).Decode(&reg); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		s.registered = append(s.registered, reg)
		n := len(s.registered)
		s.mu.Unlock()
		if s.onRegister != nil {
			s.onRegister(n, w, r)
		}
	case strings.HasPrefix(path, "check/update/") && s.onUpdate != nil:
		s.onUpdate(w, r)
	}
}

func (s *stubAgent) registrations() []api.AgentServiceRegistration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]api.AgentServiceRegistration(nil), s.registered...)
}

func (s *stubAgent) called(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == path {
			return true
		}
	}
	return false
}

// An agent that takes the request and never answers: Register returns within its
// context, and what the agent may have done is taken back.
func TestRegister_AgentHangs(t *testing.T) {
	agent := newStubAgent(t)
	agent.onRegister = func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	reg := open(t, agent.config())
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := reg.Register(ctx, instance("o1", ""))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, agent.Listener.Addr().String())
	require.Eventually(t, func() bool { return agent.called("service/deregister/o1") }, patience, time.Millisecond)
}

// The instance is registered and its first report fails: nothing stays.
func TestRegister_FirstReportFails(t *testing.T) {
	agent := newStubAgent(t)
	agent.onUpdate = func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) }
	reg := open(t, agent.config())
	_, err := reg.Register(context.Background(), instance("o1", ""))
	var status api.StatusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, http.StatusForbidden, status.Code)
	require.Eventually(t, func() bool { return agent.called("service/deregister/o1") }, patience, time.Millisecond)
}

// "After an error the metadata from before stays": also where the agent has done
// what its answer did not tell.
func TestUpdate_AnswerLost(t *testing.T) {
	agent := newStubAgent(t)
	agent.onRegister = func(n int, _ http.ResponseWriter, r *http.Request) {
		if n == 2 {
			<-r.Context().Done()
		}
	}
	reg := open(t, agent.config())
	g, err := reg.Register(context.Background(), instance("o1", "v1"))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, g.Update(ctx, map[string]string{"version": "v2"}), context.DeadlineExceeded)
	require.Eventually(t, func() bool { return len(agent.registrations()) == 3 }, patience, time.Millisecond)
	assert.Equal(t, "v2", agent.registrations()[1].Meta["version"])
	assert.Equal(t, "v1", agent.registrations()[2].Meta["version"])
}

// An agent that refuses an update has done nothing: nothing is restored.
func TestUpdate_Refused(t *testing.T) {
	agent := newStubAgent(t)
	agent.onRegister = func(n int, w http.ResponseWriter, _ *http.Request) {
		if n == 2 {
			http.Error(w, "Permission denied", http.StatusForbidden)
		}
	}
	reg := open(t, agent.config(), consul.WithTTL(time.Second))
	g, err := reg.Register(context.Background(), instance("o1", "v1"))
	require.NoError(t, err)
	require.ErrorContains(t, g.Update(context.Background(), map[string]string{"version": "v2"}), "Permission denied")
	require.NoError(t, g.Update(context.Background(), map[string]string{"version": "v3"}))
	assert.Len(t, agent.registrations(), 3)
}

// While the agent refuses reports the log stays small, and it is asked less than
// once per third of the TTL.
func TestKeepalive_Trouble(t *testing.T) {
	var logged logBuffer
	var mu sync.Mutex
	reports := 0
	agent := newStubAgent(t)
	agent.onUpdate = func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if reports++; reports > 1 {
			http.Error(w, "rate limit", http.StatusTooManyRequests)
		}
	}
	reg := open(t, agent.config(), consul.WithTTL(time.Second), consul.WithRetry(time.Millisecond, 10*time.Millisecond),
		consul.WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	_, err := reg.Register(context.Background(), instance("o1", ""))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return reports > 20
	}, patience, time.Millisecond)
	assert.Equal(t, 1, logged.lines(), logged.String())
	assert.Contains(t, logged.String(), "o1")
}

// What Consul would refuse is refused before it is asked.
func TestRegister_ConsulLimits(t *testing.T) {
	agent := newStubAgent(t)
	reg := open(t, agent.config())
	g, err := reg.Register(context.Background(), instance("good", ""))
	require.NoError(t, err)
	many := map[string]string{}
	for n := range 65 {
		many["k"+index(n)] = "v"
	}
	for name, metadata := range map[string]map[string]string{
		"a dot in the key":   {"version.order": "v1"},
		"a key not in ASCII": {"版本": "v1"},
		"a long key":         {strings.Repeat("k", 129): "v"},
		"a long value":       {"k": strings.Repeat("v", 513)},
		"65 pairs":           many,
		"a reserved prefix":  {"consul-version": "1"},
		"an empty key":       {"": "v"},
	} {
		i := instance("o1", "")
		i.Metadata = metadata
		var invalid *registry.InvalidError
		_, err := reg.Register(context.Background(), i)
		require.ErrorAs(t, err, &invalid, name)
		assert.Equal(t, "Metadata", invalid.Field, name)
		require.ErrorAs(t, g.Update(context.Background(), metadata), &invalid, name)
	}
	assert.Len(t, agent.registrations(), 1)

	delete(many, "k0")
	delete(many, "k1")
	many[strings.Repeat("k", 128)] = strings.Repeat("v", 512)
	require.Len(t, many, 64)
	require.NoError(t, g.Update(context.Background(), many), "the limits themselves are allowed")
}

// What is sent to the agent.
func TestRegister_Definition(t *testing.T) {
	agent := newStubAgent(t)
	reg := open(t, agent.config(), consul.WithDeregisterCriticalAfter(2*time.Minute), consul.WithTTL(9*time.Second))
	i := instance("o1", "v1")
	i.Address, i.Weight = "[2001:db8::1]:8080", 1_000_000
	_, err := reg.Register(context.Background(), i)
	require.NoError(t, err)
	got := agent.registrations()[0]
	assert.Equal(t, "o1", got.ID)
	assert.Equal(t, "order", got.Name)
	assert.Equal(t, "2001:db8::1", got.Address)
	assert.Equal(t, 8080, got.Port)
	assert.Equal(t, 65535, got.Weights.Passing)
	assert.Equal(t, "9s", got.Check.TTL)
	assert.Equal(t, api.HealthPassing, got.Check.Status)
	assert.Equal(t, "2m0s", got.Check.DeregisterCriticalServiceAfter)

	reg = open(t, agent.config(), consul.WithCheck(func(i registry.Instance) api.AgentServiceCheck {
		return api.AgentServiceCheck{TCP: i.Address, Interval: "1s"}
	}))
	_, err = reg.Register(context.Background(), instance("o2", ""))
	require.NoError(t, err)
	got = agent.registrations()[1]
	assert.Equal(t, instance("o2", "").Address, got.Check.TCP)
	assert.Equal(t, "service:o2", got.Check.CheckID)
	assert.Nil(t, got.Weights)
	assert.False(t, agent.called("check/update/service:o2"), "the agent does the check")
}

// Whatever an answer holds, nothing panics, and what cannot be dialled is left out.
func TestWatch_OddAnswers(t *testing.T) {
	f := newFake(t, response{index: "1", body: "null"})
	r := watch(t, open(t, f.config()), "order")
	r.untilIDs(patience)
	f.set(response{index: "2", body: `[null, {}, {"Node":null,"Service":null,"Checks":null},
		{"Service":{"ID":"no-address","Service":"order","Port":80}},
		{"Node":{"Address":"10.0.0.1"},"Service":{"ID":"no-port","Service":"order"}},
		{"Node":{"Address":"10.0.0.1"},"Service":{"ID":"node-address","Service":"order","Port":80,"Weights":{"Passing":3}},"Checks":[null]},
		{"Node":null,"Service":{"ID":"ipv6","Service":"order","Address":"2001:db8::1","Port":80,"Meta":{}},"Checks":[{"Status":"passing"}]},
		{"Node":null,"Service":{"ID":"odd-check","Service":"order","Address":"h","Port":80},"Checks":[{"Status":"new"}]}]`})
	set := r.untilIDs(patience, "ipv6", "node-address", "odd-check")
	assert.Equal(t, "[2001:db8::1]:80", set[0].Address)
	assert.Nil(t, set[0].Metadata)
	assert.Equal(t, "10.0.0.1:80", set[1].Address)
	assert.Equal(t, 3, set[1].Weight)
	assert.Equal(t, registry.StatusPassing, set[1].Status)
	assert.Equal(t, registry.StatusCritical, set[2].Status, "a status that does not exist serves nobody")
}

func TestWatch_NoService(t *testing.T) {
	f := newFake(t, response{index: "1", body: "[]"})
	r := watch(t, open(t, f.config()), "")
	require.Eventually(t, func() bool { return len(r.errs()) == 1 }, patience, time.Millisecond)
	var invalid *registry.InvalidError
	assert.ErrorAs(t, r.errs()[0], &invalid)
	r.stop()
	assert.Empty(t, f.seen())
}

// Many readers of a service are one query.
func TestWatch_IsShared(t *testing.T) {
	f := newFake(t, response{index: "1", body: list(entry("a", ""))})
	reg := open(t, f.config())
	for range 10 {
		watch(t, reg, "order").untilIDs(patience, "a")
	}
	require.Eventually(t, func() bool { return len(f.seen()) == 2 }, patience, time.Millisecond)
	assert.Equal(t, "1", f.seen()[1].query.Get("index"))
	assert.Equal(t, "55000ms", f.seen()[1].query.Get("wait"))
}

// After a wait that brought nothing, what there is is read without waiting.
func TestWatch_ReadsAfresh(t *testing.T) {
	f := newFake(t, response{index: "7", body: list(entry("a", ""))})
	r := watch(t, open(t, f.config(), consul.WithWaitTime(time.Second)), "order")
	require.Eventually(t, func() bool { return len(f.seen()) >= 4 }, patience, time.Millisecond)
	var indexes []string
	for _, q := range f.seen()[:4] {
		indexes = append(indexes, q.query.Get("index"))
		assert.Equal(t, "_agent", q.query.Get("near"), "not from the streaming cache")
	}
	assert.Equal(t, []string{"", "7", "", "7"}, indexes)
	assert.Len(t, r.sets(), 1)
}

// The client's own timeout must not cut blocking queries off, nor must the wait end
// them with an error.
func TestWatch_WaitsLongerThanTheClientsTimeout(t *testing.T) {
	f := newFake(t, response{index: "1", body: list(entry("a", ""))})
	cfg := f.config()
	cfg.Transport = nil
	cfg.HttpClient = &http.Client{Timeout: 50 * time.Millisecond, Transport: &http.Transport{ResponseHeaderTimeout: 50 * time.Millisecond}}
	r := watch(t, open(t, cfg, consul.WithWaitTime(time.Second)), "order")
	r.untilIDs(patience, "a")
	require.Eventually(t, func() bool { return len(f.seen()) >= 3 }, patience, time.Millisecond)
	assert.Equal(t, 50*time.Millisecond, cfg.HttpClient.Timeout, "the caller's client is not changed")
	assert.Empty(t, r.errs())
	assert.Len(t, r.sets(), 1)
}

// No compression towards the agent of the same machine; elsewhere it stays.
func TestCompression(t *testing.T) {
	for address, want := range map[string]string{
		"":                   "",
		"consul.example:80":  "gzip",
		"http://[::1]:80":    "",
		"http://localhost":   "",
		"192.0.2.1:80":       "gzip",
		"http://10.0.0.1:80": "gzip",
	} {
		f := newFake(t, response{index: "1", body: list(entry("a", ""))})
		cfg := f.config()
		if address != "" {
			cfg.Address = address
			cfg.Transport.Proxy = nil
			cfg.Transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", f.Listener.Addr().String())
			}
		}
		watch(t, open(t, cfg), "order").untilIDs(patience, "a")
		assert.Equal(t, want, f.seen()[0].header.Get("Accept-Encoding"), "address %q", address)
		assert.False(t, cfg.Transport.DisableCompression, "the caller's transport is not changed")
	}
}

// Neither the token nor a proxy's page ends up in errors and logs.
func TestErrors_AreBoundedAndTellNoSecrets(t *testing.T) {
	var logged logBuffer
	f := newFake(t, response{status: http.StatusBadGateway, body: strings.Repeat("<p>sorry</p>", 10_000)})
	cfg := f.config()
	cfg.Token = "s3cr3t-t0ken"
	cfg.HttpAuth = &api.HttpBasicAuth{Username: "user", Password: "s3cr3t-passw0rd"}
	r := watch(t, open(t, cfg, consul.WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), "order")
	require.Eventually(t, func() bool { return len(r.errs()) > 0 && logged.lines() > 0 }, patience, time.Millisecond)
	for _, text := range []string{r.errs()[0].Error(), logged.String()} {
		assert.NotContains(t, text, "s3cr3t")
		assert.Less(t, len(text), 2000)
		assert.Contains(t, text, "502")
	}
}

func TestNew_Invalid(t *testing.T) {
	for name, option := range map[string]consul.Option{
		"WithTTL":                     consul.WithTTL(time.Millisecond),
		"WithHTTPCheck: ":             consul.WithHTTPCheck("healthz", time.Second),
		"WithHTTPCheck":               consul.WithHTTPCheck("/healthz", 0),
		"WithGRPCCheck":               consul.WithGRPCCheck("", 0),
		"WithDeregisterCriticalAfter": consul.WithDeregisterCriticalAfter(time.Second),
		"WithOutageGrace":             consul.WithOutageGrace(-1),
		"WithWaitTime":                consul.WithWaitTime(time.Hour),
		"WithMaxTransaction":          consul.WithMaxTransaction(1000),
	} {
		_, err := consul.New(nil, option)
		require.ErrorContains(t, err, name)
		assert.ErrorContains(t, err, "consul: ")
	}
	_, err := consul.New(&api.Config{Address: "ftp://consul"})
	require.ErrorContains(t, err, "ftp")
	_, err = consul.New(&api.Config{Address: "http://user:s3cr3t@127.0.0.1:8500"})
	require.ErrorContains(t, err, "HttpAuth")
	assert.NotContains(t, err.Error(), "s3cr3t")
	_, err = consul.New(&api.Config{TLSConfig: api.TLSConfig{CAFile: "/does/not/exist"}})
	require.Error(t, err)

	r, err := consul.New(nil, nil, consul.WithLogger(nil), consul.WithCheck(nil))
	require.NoError(t, err, "nil is ignored")
	require.NoError(t, r.Close())
}

// An agent that was away for longer than a TTL calls critical what has not reported
// to it yet: what served before goes on until it is back, and is believed then.
func TestOutage_CriticalIsDoubted(t *testing.T) {
	with := func(id, status string) *api.ServiceEntry {
		e := entry(id, "")
		e.Service.Address = "host-" + id
		e.Checks[0].Status = status
		return e
	}
	maintenance := with("b", api.HealthCritical)
	maintenance.Checks[0].CheckID = "_service_maintenance:b"
	f := newFake(t, response{index: "10", body: list(with("a", "passing"), with("b", "passing"), with("c", "critical"), with("d", "passing"))})
	r := watch(t, open(t, f.config(), consul.WithRetry(time.Millisecond, 5*time.Millisecond), consul.WithOutageGrace(time.Hour)), "order")
	r.untilIDs(patience, "a", "b", "c", "d")
	require.Eventually(t, func() bool { return len(f.seen()) == 2 }, patience, time.Millisecond)

	statuses := func(want ...registry.Status) func([]registry.Instance) bool {
		return func(set []registry.Instance) bool {
			var got []registry.Status
			for _, i := range set {
				got = append(got, i.Status)
			}
			return assert.ObjectsAreEqual(want, got)
		}
	}
	f.set(response{drop: true})
	require.Eventually(t, func() bool { return len(r.errs()) > 0 }, patience, time.Millisecond)
	f.set(response{index: "11", body: list(with("a", "critical"), maintenance, with("c", "critical"))})
	r.until(patience, statuses(registry.StatusPassing, registry.StatusMaintenance, registry.StatusCritical, registry.StatusPassing))
	f.set(response{index: "12", body: list(with("a", "passing"), with("b", "passing"))})
	r.until(patience, statuses(registry.StatusPassing, registry.StatusPassing, registry.StatusPassing))
	f.set(response{index: "13", body: list(with("a", "critical"), with("d", "warning"))})
	r.until(patience, statuses(registry.StatusCritical, registry.StatusWarning))
	f.set(response{index: "14", body: list()})
	r.untilIDs(patience)
}

// Trouble that Consul itself reports is no outage of the agent: its next answer
// counts.
func TestOutage_NotByErrorsOfServers(t *testing.T) {
	f := newFake(t, response{index: "10", body: list(entry("a", ""))})
	r := watch(t, open(t, f.config(), consul.WithRetry(time.Millisecond, 5*time.Millisecond)), "order")
	r.untilIDs(patience, "a")
	f.set(response{status: http.StatusInternalServerError, body: "No cluster leader"})
	require.Eventually(t, func() bool { return len(r.errs()) > 0 }, patience, time.Millisecond)
	f.set(response{index: "11", body: list()})
	r.untilIDs(time.Second)
}

// Names of services may come from outside, by the thousand, and Consul be down.
func TestTheLogOfManyWatchesIsBounded(t *testing.T) {
	f := newFake(t, response{status: http.StatusInternalServerError, body: "No cluster leader"})
	var log logBuffer
	reg := open(t, f.config(), consul.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	var readers []*reader
	for i := range 300 {
		readers = append(readers, watch(t, reg, "host"+strconv.Itoa(i)))
	}
	for _, r := range readers {
		require.Eventually(t, func() bool { return len(r.errs()) > 0 }, patience, time.Millisecond)
	}
	assert.LessOrEqual(t, log.lines(), 100)
	assert.Contains(t, log.String(), "No cluster leader")
}
