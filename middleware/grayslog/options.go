package grayslog

import (
	"slices"

	"github.com/graylane/graylane/balancer/subset"
)

// Option configures [NewHandler].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

var _ Option = optionFunc(nil)

type config struct {
	service  string
	policy   subset.Policy
	selector *subset.Selector // of policy and service

	tag      bool
	clearUID bool
	uidKey   []byte
}

// newConfig applies opts to a copy of base, nil for the defaults. The error is
// about the policy; the config then has the default one.
func newConfig(base *config, opts []Option) (*config, error) {
	c := &config{}
	if base != nil {
		*c = *base
	}
	for _, o := range opts {
		if o != nil {
			o.apply(c)
		}
	}
	var err error
	if c.selector, err = c.policy.Compile(c.service); err != nil {
		c.policy = subset.Policy{}
		c.selector, _ = c.policy.Compile(c.service)
	}
	return c, err
}

// WithService names the service that writes the log: gray.version is then what the
// tag asks of it, version.<service> where the tag has such a pair. Without it, or
// with an empty name, gray.version is what the tag asks of services in general.
func WithService(name string) Option {
	return optionFunc(func(c *config) {
		if name != "" {
			c.service = name
		}
	})
}

// WithPolicy sets which pair of the tag is the version, and which versions are
// stable; give it what the middleware of the service has. Fallbacks do not matter.
// The default is the zero Policy. A policy that the middleware would refuse is not
// used; the handler then has the default and logs one line that says so.
func WithPolicy(p subset.Policy) Option {
	p.Stable = slices.Clone(p.Stable)
	p.Fallback = slices.Clone(p.Fallback)
	return optionFunc(func(c *config) { c.policy = p })
}

// WithTag adds the whole tag, as the group gray.tag with one attribute per pair. In
// place of the uid, and of every uid.<service>, stands "#" and the first eight hex
// digits of its SHA-256, as in [github.com/graylane/graylane/graytag.Tag.LogValue].
func WithTag() Option { return optionFunc(func(c *config) { c.tag = true }) }

// WithClearUID has [WithTag] write the uid as it is. Without WithTag it does nothing.
func WithClearUID() Option { return optionFunc(func(c *config) { c.clearUID = true }) }

// WithUIDKey has [WithTag] hash the uid with HMAC-SHA-256 under a key, so that a
// reader of the log cannot find it by trying all uids. Services whose lines are to be
// joined by user need the same key. An empty key is ignored; [WithClearUID] wins.
func WithUIDKey(key []byte) Option {
	key = slices.Clone(key)
	return optionFunc(func(c *config) {
		if len(key) > 0 {
			c.uidKey = key
		}
	})
}
