package consul

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
)

// Option configures a [Registry].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	ttl             time.Duration
	check           func(registry.Instance) *api.AgentServiceCheck // nil: TTL
	deregisterAfter time.Duration
	logger          *slog.Logger
	allowStale      bool
	wait            time.Duration
	grace           time.Duration
	retryMin        time.Duration // delay after the first failure
	retryMax        time.Duration
	maxTxn          int // bytes
	agent           string

	err error // what an option found wrong
}

func newConfig(opts []Option) (config, error) {
	c := config{
		ttl:        15 * time.Second,
		grace:      -1, // the TTL
		logger:     slog.Default(),
		allowStale: true,
		// Below the minute after which proxies commonly cut idle requests off.
		wait:     55 * time.Second,
		retryMin: 500 * time.Millisecond,
		retryMax: 30 * time.Second,
		maxTxn:   maxTxnBytes,
	}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	if c.grace < 0 {
		c.grace = c.ttl
	}
	return c, c.err
}

// refuse notes an invalid option; New returns all of them.
func (c *config) refuse(format string, args ...any) {
	c.err = errors.Join(c.err, fmt.Errorf("consul: "+format, args...))
}

// WithAddress sets the address of the agent, host:port or a URL, in place of that
// of the config: programs that need nothing else of it have no need of Consul's own
// package. "" changes nothing.
func WithAddress(address string) Option {
	return optionFunc(func(c *config) { c.agent = address })
}

// WithTTL sets the time after which Consul takes a process for dead that has not
// been heard of; the library reports three times as often. Default 15 s, at least
// 1 s. With a check that the agent does ([WithHTTPCheck] and the like), a third of
// it is how often the library looks whether the agent still knows the instance.
func WithTTL(d time.Duration) Option {
	return optionFunc(func(c *config) {
		if d < time.Second {
			c.refuse("WithTTL: expected at least 1s, got %v", d)
			return
		}
		c.ttl = d
	})
}

// WithHTTPCheck lets the agent check instances itself, every interval (at least
// 1 s), with a GET for path at the instance's address; an answer 2xx is passing,
// 429 warning, others critical. Instances start in the status that they are
// registered with. It replaces the TTL check; of several checks the last one counts.
func WithHTTPCheck(path string, interval time.Duration) Option {
	return optionFunc(func(c *config) {
		if !strings.HasPrefix(path, "/") {
			c.refuse("WithHTTPCheck: expected a path beginning with /, got %q", path)
			return
		}
		if interval < time.Second {
			c.refuse("WithHTTPCheck: expected an interval of at least 1s, got %v", interval)
			return
		}
		c.check = func(i registry.Instance) *api.AgentServiceCheck {
			return &api.AgentServiceCheck{HTTP: "http://" + i.Address + path, Interval: interval.String()}
		}
	})
}

// WithGRPCCheck lets the agent check instances itself, every interval (at least
// 1 s), with the gRPC health checking protocol (grpc.health.v1) at the instance's
// address, without TLS. service is the name asked for there; empty asks for the
// server as a whole. It replaces the TTL check; of several checks the last one
// counts.
func WithGRPCCheck(service string, interval time.Duration) Option {
	return optionFunc(func(c *config) {
		if interval < time.Second {
			c.refuse("WithGRPCCheck: expected an interval of at least 1s, got %v", interval)
			return
		}
		c.check = func(i registry.Instance) *api.AgentServiceCheck {
			target := i.Address
			if service != "" {
				target += "/" + service
			}
			return &api.AgentServiceCheck{GRPC: target, Interval: interval.String()}
		}
	})
}

// WithCheck lets the agent do whatever check f returns for an instance: with TLS,
// another port, a script. f is called for every registration and must be safe for
// concurrent use. CheckID, Status and DeregisterCriticalServiceAfter are filled in
// by the library where they are empty. It replaces the TTL check; of several
// checks the last one counts. A nil f is ignored.
func WithCheck(f func(registry.Instance) api.AgentServiceCheck) Option {
	return optionFunc(func(c *config) {
		if f == nil {
			return
		}
		c.check = func(i registry.Instance) *api.AgentServiceCheck {
			check := f(i)
			return &check
		}
	})
}

// WithDeregisterCriticalAfter lets Consul deregister an instance that has been
// critical for d, at least a minute, which is Consul's own lower limit. Without it
// instances of dead processes stay, as critical, until somebody removes them.
func WithDeregisterCriticalAfter(d time.Duration) Option {
	return optionFunc(func(c *config) {
		if d < time.Minute {
			c.refuse("WithDeregisterCriticalAfter: expected at least 1m0s, got %v", d)
			return
		}
		c.deregisterAfter = d
	})
}

// WithLogger sets where trouble with Consul is logged; default [slog.Default], as
// it is when New is called. Nil is ignored.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithAllowStale sets whether any Consul server may answer discovery, which is the
// default: answers may be some milliseconds old, discovery scales with the number
// of servers and works while there is no leader. With false every answer comes
// from the leader.
func WithAllowStale(allow bool) Option {
	return optionFunc(func(c *config) { c.allowStale = allow })
}

// WithWaitTime sets how long Consul may hold a blocking query when nothing
// changes, from 1 s to Consul's limit of 10 minutes. Default 55 s. It says how
// soon a connection that died silently is noticed (over HTTP/2, which TLS brings,
// within about 10 s), not how soon a change is seen.
func WithWaitTime(d time.Duration) Option {
	return optionFunc(func(c *config) {
		if d < time.Second || d > 10*time.Minute {
			c.refuse("WithWaitTime: expected 1s to 10m0s, got %v", d)
			return
		}
		c.wait = d
	})
}

// WithOutageGrace sets how long discovery keeps instances that served before the
// agent could not be reached and that it does not know, or calls critical, when it
// is back. An agent that has lost its data gets its registrations back within a
// third of their TTL; until then requests go on. Default: the TTL. With 0 the first
// answer after an outage counts.
func WithOutageGrace(d time.Duration) Option {
	return optionFunc(func(c *config) {
		if d < 0 {
			c.refuse("WithOutageGrace: expected 0 or more, got %v", d)
			return
		}
		c.grace = d
	})
}

// WithMaxTransaction tells a [RuleStore] what Consul's servers take as one
// transaction, in bytes (limits.txn_max_req_len, or limits.kv_max_value_size where
// that is larger), from 64 KiB to 64 MiB. Default 512 KiB, as it is Consul's.
func WithMaxTransaction(bytes int) Option {
	return optionFunc(func(c *config) {
		if bytes < 64<<10 || bytes > 64<<20 {
			c.refuse("WithMaxTransaction: expected 65536 to 67108864 bytes, got %d", bytes)
			return
		}
		c.maxTxn = bytes
	})
}
