package resolver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	grpcbalancer "google.golang.org/grpc/balancer"

	"github.com/graylane/graylane/balancer"
	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/internal/telemetry"
)

type config struct {
	policy        subset.Policy
	policies      map[string]subset.Policy
	childPolicy   string
	connectWait   *time.Duration
	warning       bool
	serviceConfig string
	meterProvider metric.MeterProvider
	observe       func(context.Context, subset.Decision)
	logger        *slog.Logger

	metrics *telemetry.Metrics
	extra   map[string]json.RawMessage // of serviceConfig
}

func newConfig(opts []Option) (*config, error) {
	c := &config{policies: make(map[string]subset.Policy), logger: slog.Default()}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	c.metrics = telemetry.New(c.meterProvider)
	if c.connectWait != nil && *c.connectWait < 0 {
		return nil, fmt.Errorf("resolver: connect wait %v, want 0 or more", *c.connectWait)
	}
	if err := c.parseServiceConfig(); err != nil {
		return nil, err
	}
	if err := c.check(""); err != nil {
		return nil, err
	}
	for service := range c.policies {
		if service == "" {
			return nil, errors.New("resolver: policy for a service without a name")
		}
		if err := c.check(service); err != nil {
			return nil, fmt.Errorf("%w (policy for %q)", err, service)
		}
	}
	return c, nil
}

// parseServiceConfig reads the object; gRPC reads what is in it.
func (c *config) parseServiceConfig() error {
	if c.serviceConfig == "" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader([]byte(c.serviceConfig)))
	if err := dec.Decode(&c.extra); err != nil {
		return fmt.Errorf("resolver: service config: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("resolver: service config: text after the object")
	}
	known := map[string]bool{"methodConfig": true, "retryThrottling": true, "healthCheckConfig": true}
	for field := range c.extra {
		switch {
		case field == "loadBalancingConfig" || field == "loadBalancingPolicy":
			return fmt.Errorf("resolver: service config: %s is set by graylane; the policy inside a version is an option of its own", field)
		case !known[field]:
			return fmt.Errorf("resolver: service config: unknown field %q, want methodConfig, retryThrottling or healthCheckConfig", field)
		}
	}
	return nil
}

// check reads the balancer's part as the balancer will.
func (c *config) check(service string) error {
	js, err := c.balancerJSON(service)
	if err != nil {
		return err
	}
	_, err = grpcbalancer.Get(balancer.Name).(grpcbalancer.ConfigParser).ParseConfig(js)
	return err
}

func (c *config) policyFor(service string) subset.Policy {
	if p, ok := c.policies[service]; ok {
		return p
	}
	return c.policy
}

func (c *config) balancerJSON(service string) (json.RawMessage, error) {
	p := c.policyFor(service)
	fields := struct {
		Service     string          `json:"service,omitempty"`
		Key         string          `json:"key,omitempty"`
		Stable      []string        `json:"stable"` // null is the default, [] is none
		FoldCase    bool            `json:"foldCase,omitempty"`
		Fallback    []string        `json:"fallback,omitempty"`
		Strict      bool            `json:"strict,omitempty"`
		MinReady    int             `json:"minReady,omitempty"`
		ConnectWait string          `json:"connectWait,omitempty"`
		ChildPolicy json.RawMessage `json:"childPolicy,omitempty"`
	}{
		Service: service, Key: p.Key, Stable: p.Stable, FoldCase: p.FoldCase,
		Fallback: p.Fallback, Strict: p.Strict, MinReady: p.MinReady,
	}
	if c.connectWait != nil {
		fields.ConnectWait = c.connectWait.String()
	}
	if c.childPolicy != "" {
		if !json.Valid([]byte(c.childPolicy)) {
			return nil, fmt.Errorf("resolver: child policy %q is not JSON", c.childPolicy)
		}
		fields.ChildPolicy = json.RawMessage(c.childPolicy)
	}
	js, err := json.Marshal(fields)
	if err != nil {
		return nil, fmt.Errorf("resolver: config: %w", err)
	}
	return js, nil
}

// serviceConfigJSON is the service config for one service, "" for any.
func (c *config) serviceConfigJSON(service string) (string, error) {
	js, err := c.balancerJSON(service)
	if err != nil {
		return "", err
	}
	all := map[string]any{"loadBalancingConfig": []map[string]json.RawMessage{{balancer.Name: js}}}
	for field, value := range c.extra {
		all[field] = value
	}
	out, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("resolver: service config: %w", err)
	}
	return string(out), nil
}
