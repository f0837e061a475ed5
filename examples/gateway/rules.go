package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// rulesAt is the rule set with a percentage: testers are gray at once, all others
// by and by. The salt stays while the percentage grows, so that who is gray stays
// gray.
func rulesAt(percent int) string {
	return fmt.Sprintf(`{
  "rules": [
    {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["99"]}], "tag": "version=v2"},
    {"id": "everyone", "percent": %d, "hashBy": ["uid", "group"], "salt": "v2", "tag": "version=v2"}
  ]
}
`, percent)
}

// stopped takes everyone back to stable, and leaves the rules for later in the
// history.
const stopped = `{"rules": [], "stop": true}` + "\n"

// place says where rules and services are to be found.
type place struct {
	file       string // "" is one in a temporary directory
	agent, key string // agent "" is a file
}

// backend is where they are.
type backend struct {
	place
	registry interface {
		registry.Registrar
		registry.Discovery
	}
	rules rule.Store

	// write changes the rules, remove takes them away, as an operator does by hand.
	write  func(ctx context.Context, document string) error
	remove func(ctx context.Context) error
	close  func() error
}

func (p place) open() (*backend, error) {
	if p.agent != "" {
		if p.file != "" {
			return nil, errors.New("gateway: both -rules and -consul, want one")
		}
		return p.onConsul()
	}
	return p.inFile()
}

func (p place) inFile() (*backend, error) {
	b := &backend{place: p, registry: memory.New(), close: func() error { return nil }}
	if b.file == "" {
		dir, err := os.MkdirTemp("", "graylane")
		if err != nil {
			return nil, err
		}
		b.file = filepath.Join(dir, "rules.json")
		b.close = func() error { return os.RemoveAll(dir) }
	}
	b.rules = rule.NewFileStore(b.file)
	b.write = func(_ context.Context, document string) error {
		return os.WriteFile(b.file, []byte(document), 0o644)
	}
	b.remove = func(context.Context) error { return os.Remove(b.file) }
	return b, nil
}

func (p place) onConsul() (*backend, error) {
	reg, err := consul.New(nil, consul.WithAddress(p.agent))
	if err != nil {
		return nil, err
	}
	b := &backend{place: p, registry: reg, close: reg.Close}
	if b.rules, err = reg.RuleStore(p.key); err != nil {
		return nil, errors.Join(err, reg.Close())
	}
	// As an operator does it with curl, and not by RuleStore.Put.
	b.write = func(ctx context.Context, document string) error { return p.kv(ctx, http.MethodPut, document) }
	b.remove = func(ctx context.Context) error { return p.kv(ctx, http.MethodDelete, "") }
	return b, nil
}

// kv changes the key by Consul's HTTP API.
func (p place) kv(ctx context.Context, method, body string) error {
	url := p.agent + "/v1/kv/" + p.key
	if !strings.Contains(p.agent, "://") {
		url = "http://" + url
	}
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && (resp.StatusCode != http.StatusOK || strings.TrimSpace(string(answer)) != "true") {
		err = fmt.Errorf("consul: %s %s: %s: %s", method, url, resp.Status, answer)
	}
	return err
}

// howTo tells how to change the rules while the gateway runs.
func (b *backend) howTo() string {
	const half = `sed 's/"percent": 10/"percent": 50/'`
	if b.agent == "" {
		return fmt.Sprintf(`The rules are in %[1]s. Edit them, with an editor or, for 50 %%,
  %[2]s '%[1]s' > '%[1]s.new' && mv '%[1]s.new' '%[1]s'
Everyone back to stable:
  echo '{"rules": [], "stop": true}' > '%[1]s'`, b.file, half)
	}
	return fmt.Sprintf(`The rules are at %[2]s in Consul KV. Edit them in Consul's UI or, for 50 %%,
  consul kv get -http-addr=%[1]s %[2]s | %[3]s | consul kv put -http-addr=%[1]s %[2]s -
or, without Consul's own program,
  curl -s '%[1]s/v1/kv/%[2]s?raw' | %[3]s | curl -s -X PUT --data-binary @- '%[1]s/v1/kv/%[2]s'
Everyone back to stable:
  consul kv put -http-addr=%[1]s %[2]s '{"rules": [], "stop": true}'`, b.agent, b.key, half)
}
