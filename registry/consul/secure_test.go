package consul_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/consultest"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
)

// secureAgent is an agent as in production: mTLS, and ACLs that deny.
type secureAgent struct {
	*consultest.Agent
	certs  consultest.Certificates
	grants *atomic.Int64
}

func startSecure(t *testing.T) secureAgent {
	t.Helper()
	certs := consultest.NewCertificates(t)
	return secureAgent{consultest.StartSecure(t, certs), certs, new(atomic.Int64)}
}

// grant is a token with a policy of its own, which can be changed.
type grant struct {
	agent  secureAgent
	policy *api.ACLPolicy
	token  *api.ACLToken
}

func (a secureAgent) grant(t *testing.T, rules string) *grant {
	t.Helper()
	acl := a.Client().ACL()
	policy, _, err := acl.PolicyCreate(&api.ACLPolicy{Name: fmt.Sprintf("policy-%d", a.grants.Add(1)), Rules: rules}, nil)
	require.NoError(t, err)
	token, _, err := acl.TokenCreate(&api.ACLToken{Policies: []*api.ACLLink{{ID: policy.ID}}}, nil)
	require.NoError(t, err)
	return &grant{a, policy, token}
}

// config reaches the agent with the token, by mTLS.
func (g *grant) config() *api.Config {
	c := g.agent.Config()
	c.Token = g.token.SecretID
	return c
}

// set changes what the token may do.
func (g *grant) set(t *testing.T, rules string) {
	t.Helper()
	changed := *g.policy
	changed.Rules = rules
	_, _, err := g.agent.Client().ACL().PolicyUpdate(&changed, nil)
	require.NoError(t, err)
}

// open returns a registry that may do what rules say.
func (a secureAgent) open(t *testing.T, rules string, opts ...consul.Option) *consul.Registry {
	t.Helper()
	return open(t, a.grant(t, rules).config(), opts...)
}

func logTo(b *logBuffer) consul.Option {
	return consul.WithLogger(slog.New(slog.NewTextHandler(b, nil)))
}

func instanceOf(service, id string) registry.Instance {
	i := instance(id, "v1")
	i.Service = service
	return i
}

const (
	everything = `service_prefix "" { policy = "write" } node_prefix "" { policy = "read" } key_prefix "" { policy = "write" } session_prefix "" { policy = "write" }`
	watchOrder = `service "order" { policy = "read" } node_prefix "" { policy = "read" }`
)

// works uses all that a registry has.
func works(t *testing.T, r *consul.Registry, key string) {
	t.Helper()
	g, err := r.Register(t.Context(), instanceOf(key, key))
	require.NoError(t, err)
	watch(t, r, key).untilIDs(patience, key)
	at := put(t, ruleStore(t, r, key+"/rules"), setOf("v1"), 0)
	watchRules(t, ruleStore(t, r, key+"/rules")).untilRevision(at)
	e, err := r.Elector(key+"/leader", consul.WithCandidate("a"))
	require.NoError(t, err)
	l := &election{t: t}
	l.stand(e, "a")
	l.nth(1)
	require.NoError(t, g.Deregister(t.Context()))
}

// A configuration, and what Consul's own tools take from the environment, reaches the
// agent.
func TestSecure_Environment(t *testing.T) {
	agent := startSecure(t)
	token := agent.grant(t, everything).token.SecretID
	withConfig := func(t *testing.T, cfg *api.Config, opts ...consul.Option) {
		t.Helper()
		r, err := consul.New(cfg, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		works(t, r, t.Name()[len("TestSecure_Environment/"):])
	}
	t.Run("config", func(t *testing.T) {
		withConfig(t, &api.Config{
			Address: agent.Address(), Scheme: "https", Token: token,
			TLSConfig: api.TLSConfig{CAFile: agent.certs.CA, CertFile: agent.certs.ClientCert, KeyFile: agent.certs.ClientKey},
		})
	})
	t.Setenv("CONSUL_CACERT", agent.certs.CA)
	t.Setenv("CONSUL_CLIENT_CERT", agent.certs.ClientCert)
	t.Setenv("CONSUL_CLIENT_KEY", agent.certs.ClientKey)
	t.Run("ssl", func(t *testing.T) {
		t.Setenv("CONSUL_HTTP_ADDR", agent.Address())
		t.Setenv("CONSUL_HTTP_SSL", "true")
		t.Setenv("CONSUL_HTTP_TOKEN", token)
		withConfig(t, nil)
	})
	t.Run("url", func(t *testing.T) {
		file := t.TempDir() + "/token"
		require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
		t.Setenv("CONSUL_HTTP_ADDR", "https://"+agent.Address())
		t.Setenv("CONSUL_HTTP_TOKEN_FILE", file)
		withConfig(t, nil)
	})
	t.Run("address", func(t *testing.T) {
		t.Setenv("CONSUL_HTTP_TOKEN", token)
		withConfig(t, nil, consul.WithAddress("https://"+agent.Address()))
	})
}

// A transport that brings its own TLS, with client certificates that change.
func secureOwnTransport(t *testing.T, agent secureAgent) {
	ca, err := os.ReadFile(agent.certs.CA)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	var loaded atomic.Int64
	cfg := agent.grant(t, everything).config()
	cfg.TLSConfig = api.TLSConfig{}
	cfg.Transport = &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			loaded.Add(1)
			c, err := tls.LoadX509KeyPair(agent.certs.ClientCert, agent.certs.ClientKey)
			return &c, err
		},
	}}
	works(t, open(t, cfg), "own-transport")
	assert.Positive(t, loaded.Load())
}

// Whoever is not let in hears why from every call, once in the log for each thing
// that goes on in the background, and nothing hangs.
func secureRefused(t *testing.T, agent secureAgent) {
	_, err := agent.open(t, everything).Register(t.Context(), instanceOf("refused", "refused"))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*testing.T, *api.Config)
		want   string
	}{
		"plain HTTP": {func(_ *testing.T, c *api.Config) { c.Scheme = "http" }, "HTTPS server"},
		"another CA": {func(t *testing.T, c *api.Config) { c.TLSConfig.CAFile = consultest.NewCertificates(t).CA }, "unknown authority"},
		"no CA":      {func(_ *testing.T, c *api.Config) { c.TLSConfig.CAFile = "" }, "unknown authority"},
		"no client certificate": {func(_ *testing.T, c *api.Config) {
			c.TLSConfig.CertFile, c.TLSConfig.KeyFile = "", ""
		}, "certificate required"},
		"a foreign client certificate": {func(t *testing.T, c *api.Config) {
			foreign := consultest.NewCertificates(t)
			c.TLSConfig.CertFile, c.TLSConfig.KeyFile = foreign.ClientCert, foreign.ClientKey
		}, "unknown certificate authority"},
		"TLSConfig beside a client": {func(_ *testing.T, c *api.Config) {
			c.HttpClient = &http.Client{Transport: &http.Transport{}}
		}, "unknown authority"},
		"another name":     {func(_ *testing.T, c *api.Config) { c.TLSConfig.Address = "consul.example" }, "not consul.example"},
		"no token":         {func(_ *testing.T, c *api.Config) { c.Token = "" }, "403"},
		"an unknown token": {func(_ *testing.T, c *api.Config) { c.Token = "2fb2b9a7-2b7c-4a54-8d7c-6c8b8a6fd001" }, "ACL not found"},
		"a token without rights": {func(t *testing.T, c *api.Config) {
			c.Token = agent.grant(t, `key "other" { policy = "read" }`).token.SecretID
		}, "Permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := agent.grant(t, everything).config()
			token := cfg.Token
			c.change(t, cfg)
			var logs logBuffer
			r := open(t, cfg, logTo(&logs), consul.WithRetry(5*time.Millisecond, 20*time.Millisecond))
			unclear := 0
			told := func(what string, err error) {
				t.Helper()
				require.ErrorContains(t, err, agent.Address(), what)
				require.NotContains(t, err.Error(), token, what)
				if !strings.Contains(err.Error(), c.want) {
					// A server that refuses a client may be gone before it is heard.
					require.Regexp(t, "broken pipe|connection reset", err.Error(), what)
					unclear++
				}
			}
			for range 3 {
				_, err := r.Register(t.Context(), instanceOf("refused", "x"))
				told("register", err)
			}
			s := ruleStore(t, r, "refused/rules")
			_, err := s.Put(t.Context(), rule.Document{Data: []byte("{}")}, 0)
			told("put", err)
			_, err = s.History(t.Context())
			told("history", err)
			e := elector(t, r)
			_, err = e.Leader(t.Context())
			told("leader", err)
			require.Less(t, unclear, 3)
			assert.LessOrEqual(t, logs.lines(), unclear, "the caller was told: %v", &logs)

			w, d := watchRules(t, s), watch(t, r, "refused")
			l := &election{t: t}
			resign := l.stand(e, "x")
			require.Eventually(t, func() bool { return len(w.errs()) > 5 && len(d.errs()) > 5 }, patience, time.Millisecond)
			require.Eventually(t, func() bool { return logs.lines() >= 3 }, patience, time.Millisecond)
			told("watch of rules", w.errs()[0])
			for _, err := range d.errs() {
				require.ErrorContains(t, err, agent.Address())
				require.Regexp(t, c.want+"|filtered by ACLs|refuse a client's certificate|broken pipe|connection reset", err.Error())
			}
			assert.Empty(t, w.docs(), "no rules are not the same as no answer")
			assert.Empty(t, d.sets(), "nor are no instances")
			assert.Empty(t, l.all())
			assert.LessOrEqual(t, logs.lines(), 3+unclear, "%v", &logs)
			resign()
			require.NoError(t, r.Close())
		})
	}
}

// A connection that swallows everything, as after a firewall has lost its state:
// over TLS, where requests share one, instances stay registered and watches go on.
func secureBlackHole(t *testing.T, agent secureAgent) (finish func()) {
	const ttl = 6 * time.Second
	front := newRelay(t, agent.Address())
	cfg := agent.grant(t, everything).config()
	cfg.Address = front.Addr().String()
	r := open(t, cfg, consul.WithTTL(ttl))
	_, err := r.Register(t.Context(), instanceOf("swallowed", "a"))
	require.NoError(t, err)
	direct := agent.open(t, everything)
	observer, w := watch(t, direct, "swallowed"), watch(t, r, "swallowed")
	observer.untilIDs(patience, "a")
	w.untilIDs(patience, "a")
	require.Positive(t, front.swallow())
	swallowed := time.Now()

	_, err = direct.Register(t.Context(), instanceOf("swallowed", "b"))
	require.NoError(t, err)
	return func() {
		w.untilIDs(patience, "a", "b")
		require.Eventually(t, func() bool { return time.Since(swallowed) > ttl+time.Second }, patience, 10*time.Millisecond)
		for _, set := range observer.sets() {
			for _, i := range set {
				assert.Equal(t, registry.StatusPassing, i.Status, i.ID)
			}
		}
	}
}
