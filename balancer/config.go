package balancer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/serviceconfig"

	"github.com/graylane/graylane/balancer/subset"
)

const (
	defaultConnectWait = time.Second
	defaultChild       = roundrobin.Name

	ringHash = "ring_hash_experimental" // not imported: that is for who uses it
)

// wireConfig is the JSON form of the configuration.
type wireConfig struct {
	Service     string          `json:"service"`
	Key         string          `json:"key"`
	Stable      []string        `json:"stable"`
	FoldCase    bool            `json:"foldCase"`
	Fallback    []string        `json:"fallback"`
	Strict      bool            `json:"strict"`
	MinReady    int             `json:"minReady"`
	ConnectWait *string         `json:"connectWait"`
	ChildPolicy json.RawMessage `json:"childPolicy"`
	// Invalid carries an error to grpc.NewClient, the one place that can
	// return it: a dial option cannot.
	Invalid string `json:"invalid"`
}

// config is the parsed configuration.
type config struct {
	serviceconfig.LoadBalancingConfig

	raw         string // what it was parsed from: equal texts are equal configs
	policy      subset.Policy
	service     string // "" where the target names it
	connectWait time.Duration
	child       balancer.Builder
	childConfig serviceconfig.LoadBalancingConfig
}

func parseConfig(js json.RawMessage) (*config, error) {
	var w wireConfig
	dec := json.NewDecoder(bytes.NewReader(js))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&w); err != nil {
		return nil, fmt.Errorf("balancer: config: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("balancer: config: text after the object")
	}
	if w.Invalid != "" {
		return nil, errors.New(w.Invalid)
	}
	c := &config{
		raw:         string(js),
		service:     w.Service,
		connectWait: defaultConnectWait,
		policy: subset.Policy{
			Key: w.Key, Stable: w.Stable, FoldCase: w.FoldCase,
			Fallback: w.Fallback, Strict: w.Strict, MinReady: w.MinReady,
		},
	}
	if _, err := c.policy.Compile(c.service); err != nil {
		return nil, fmt.Errorf("balancer: config: %w", err)
	}
	if w.ConnectWait != nil {
		d, err := time.ParseDuration(*w.ConnectWait)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("balancer: config: connectWait %q, want a duration of 0 or more such as \"1s\"", *w.ConnectWait)
		}
		c.connectWait = d
	}
	if err := c.parseChild(w.ChildPolicy); err != nil {
		return nil, err
	}
	return c, nil
}

// parseChild reads a list of policies as gRPC writes it: each an object with
// one entry, the first that is registered counts.
func (c *config) parseChild(js json.RawMessage) error {
	if len(js) == 0 || string(js) == "null" {
		js = json.RawMessage(`[{"` + defaultChild + `":{}}]`)
	}
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(js, &list); err != nil {
		return fmt.Errorf("balancer: config: childPolicy: %w", err)
	}
	var names []string
	for i, entry := range list {
		if len(entry) != 1 {
			return fmt.Errorf("balancer: config: childPolicy[%d] has %d entries, want one policy", i, len(entry))
		}
		for name, cfg := range entry {
			names = append(names, name)
			if c.child == nil {
				if err := c.setChild(name, cfg); err != nil {
					return err
				}
			}
		}
	}
	if c.child == nil {
		return fmt.Errorf("balancer: config: childPolicy %q: no such policy is registered; is its package imported?", names)
	}
	return nil
}

func (c *config) setChild(name string, js json.RawMessage) error {
	b := balancer.Get(name)
	if b == nil {
		return nil
	}
	if name == Name {
		return fmt.Errorf("balancer: config: childPolicy %q inside itself, want a policy that chooses among equal instances", name)
	}
	if parser, ok := b.(balancer.ConfigParser); ok {
		cfg, err := parser.ParseConfig(js)
		if err != nil {
			return fmt.Errorf("balancer: config: childPolicy %q: %w", name, err)
		}
		c.childConfig = cfg
	}
	if name == ringHash {
		var ring struct{ RequestHashHeader string }
		if err := json.Unmarshal(js, &ring); err == nil && ring.RequestHashHeader == "" {
			return fmt.Errorf("balancer: config: childPolicy %q has no requestHashHeader: it could serve no request", name)
		}
	}
	// Those two connect to one instance at a time, or to those that are asked
	// for: a version would wait for itself for ever.
	if c.policy.MinReady > 1 && (name == ringHash || name == pickfirst.Name) {
		return fmt.Errorf("balancer: config: minReady %d with childPolicy %q, which does not connect to every instance, want minReady 1", c.policy.MinReady, name)
	}
	c.child = b
	return nil
}
