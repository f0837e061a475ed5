package consul_test

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
)

// event is one thing that a watch yielded.
type event struct {
	set []registry.Instance
	err error
}

// reader collects what a watch yields.
type reader struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	events []event
}

// watch reads until the test ends.
func watch(t *testing.T, d registry.Discovery, service string) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{t: t, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for set, err := range d.Watch(ctx, service) {
			r.mu.Lock()
			r.events = append(r.events, event{set, err})
			r.mu.Unlock()
		}
	}()
	t.Cleanup(r.stop)
	return r
}

func (r *reader) stop() {
	r.cancel()
	<-r.done
}

// all returns what has been yielded so far.
func (r *reader) all() []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]event(nil), r.events...)
}

// sets returns the sets among it.
func (r *reader) sets() [][]registry.Instance {
	var sets [][]registry.Instance
	for _, e := range r.all() {
		if e.err == nil {
			sets = append(sets, e.set)
		}
	}
	return sets
}

// errs returns the errors among it.
func (r *reader) errs() []error {
	var errs []error
	for _, e := range r.all() {
		if e.err != nil {
			errs = append(errs, e.err)
		}
	}
	return errs
}

// until waits until the last set that was yielded satisfies ok, and returns it.
func (r *reader) until(within time.Duration, ok func([]registry.Instance) bool) []registry.Instance {
	r.t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if sets := r.sets(); len(sets) > 0 && ok(sets[len(sets)-1]) {
			return sets[len(sets)-1]
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			require.FailNow(r.t, "not the set that was waited for", "within %v: %v", within, r.all())
		}
	}
}

// untilIDs waits for a set of exactly these instances.
func (r *reader) untilIDs(within time.Duration, ids ...string) []registry.Instance {
	r.t.Helper()
	return r.until(within, func(set []registry.Instance) bool {
		if len(set) != len(ids) {
			return false
		}
		for n, id := range ids {
			if set[n].ID != id {
				return false
			}
		}
		return true
	})
}

// instance returns an instance of the service order, on a port of its own.
func instance(id, version string) registry.Instance {
	port := 8000
	for _, c := range []byte(id) {
		port += int(c)
	}
	i := registry.Instance{ID: id, Service: "order", Address: "127.0.0.1:" + strconv.Itoa(port)}
	if version != "" {
		i.Metadata = map[string]string{registry.MetadataVersion: version}
	}
	return i
}

// entry returns an instance as the health endpoint answers it.
func entry(id, version string) *api.ServiceEntry {
	e := &api.ServiceEntry{
		Node:    &api.Node{Node: "n", Address: "10.0.0.1"},
		Service: &api.AgentService{ID: id, Service: "order", Address: "127.0.0.1", Port: 8080, CreateIndex: 1},
		Checks:  api.HealthChecks{{CheckID: "service:" + id, Status: api.HealthPassing}},
	}
	if version != "" {
		e.Service.Meta = map[string]string{"version": version}
	}
	return e
}

// fake answers health queries with what a healthy agent cannot be made to answer.
type fake struct {
	*httptest.Server

	mu       sync.Mutex
	answer   response
	changed  chan struct{}
	requests []request
}

type response struct {
	status   int // 0 is 200
	index    string
	filtered bool
	body     any  // marshalled, or a string as it is
	once     bool // never block
	drop     bool // cut the connection off instead
}

type request struct {
	at     time.Time
	query  url.Values
	header http.Header
}

func newFake(t *testing.T, first response) *fake {
	t.Helper()
	f := &fake{answer: first, changed: make(chan struct{})}
	f.Server = httptest.NewServer(f)
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fake) config() *api.Config {
	return &api.Config{Address: f.Listener.Addr().String(), Transport: api.DefaultConfig().Transport}
}

// set changes the answer and releases the queries that wait.
func (f *fake) set(r response) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = r
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fake) seen() []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]request(nil), f.requests...)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	if strings.HasPrefix(r.URL.Path, "/v1/agent/") { // where it has no instances
		http.NotFound(w, r)
		return
	}
	f.mu.Lock()
	f.requests = append(f.requests, request{time.Now(), r.URL.Query(), r.Header.Clone()})
	a, changed := f.answer, f.changed
	f.mu.Unlock()

	if index := r.URL.Query().Get("index"); index != "" && index == a.index && !a.once {
		wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case <-changed:
			f.mu.Lock()
			a = f.answer
			f.mu.Unlock()
		case <-time.After(wait):
		case <-r.Context().Done():
			return
		}
	}
	if a.drop {
		panic(http.ErrAbortHandler)
	}
	if a.index != "" {
		w.Header().Set("X-Consul-Index", a.index)
	}
	if a.filtered {
		w.Header().Set("X-Consul-Results-Filtered-By-ACLs", "true")
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	if s, ok := a.body.(string); ok {
		_, _ = io.WriteString(w, s)
		return
	}
	_ = json.NewEncoder(w).Encode(a.body)
}

func list(entries ...*api.ServiceEntry) []*api.ServiceEntry {
	if entries == nil {
		return []*api.ServiceEntry{}
	}
	return entries
}

func index(n int) string { return strconv.Itoa(n) }

// logBuffer counts what is logged.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) lines() int { return strings.Count(l.String(), "\n") }

// startWithACL runs an agent that denies what no policy allows, and returns what
// makes clients with a policy of their own. What is in more replaces its ACL
// configuration.
func startWithACL(t *testing.T, more ...map[string]any) (*consultest.Agent, func(name, rules string) *api.Config) {
	t.Helper()
	const root = "b6d8a1f4-6a54-4f0a-9b61-0d1f0c0a7a11"
	config := map[string]any{
		"enabled": true, "default_policy": "deny",
		"tokens": map[string]any{"initial_management": root, "default": root},
	}
	for _, m := range more {
		maps.Copy(config, m)
	}
	agent := consultest.Start(t, map[string]any{"acl": config})
	acl := agent.Client().ACL()
	return agent, func(name, rules string) *api.Config {
		policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: name, Rules: rules}, nil)
		require.NoError(t, err)
		tok, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
		require.NoError(t, err)
		c := agent.Config()
		c.Token = tok.SecretID
		return c
	}
}
