package promsource

import (
	"net/http"
	"time"
)

// Defaults and limits.
const (
	DefaultTimeout      = 5 * time.Second
	MaxTimeout          = time.Minute
	DefaultServiceLabel = "job"
	MaxAnswerBytes      = 4 << 20 // of one query
	MaxSeries           = 10_000  // of one query
)

// Option changes how a [Source] works.
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	client   *http.Client
	timeout  time.Duration
	header   http.Header
	label    string
	matchers string
	queries  Queries
}

func newConfig(opts []Option) config {
	c := config{client: http.DefaultClient, timeout: DefaultTimeout, header: http.Header{}, label: DefaultServiceLabel, queries: DefaultQueries()}
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	return c
}

// WithTimeout bounds how long one call of Samples takes, all its queries together;
// [DefaultTimeout] by default, and [MaxTimeout] at most.
func WithTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) { c.timeout = d })
}

// WithHTTPClient sets the client, for TLS, a proxy, or a token that changes;
// http.DefaultClient by default. It is copied. Redirects are followed as its
// CheckRedirect says, and not at all where it has none.
func WithHTTPClient(client *http.Client) Option {
	return optionFunc(func(c *config) {
		if client != nil {
			c.client = client
		}
	})
}

// WithBearerToken sends "Authorization: Bearer token" with each query.
func WithBearerToken(token string) Option {
	return WithHeader("Authorization", "Bearer "+token)
}

// WithHeader sends a header with each query, such as X-Scope-OrgID.
func WithHeader(key, value string) Option {
	return optionFunc(func(c *config) { c.header.Set(key, value) })
}

// WithServiceLabel sets the label whose value is the name of the service,
// [DefaultServiceLabel] by default.
func WithServiceLabel(name string) Option {
	return optionFunc(func(c *config) { c.label = name })
}

// WithMatchers narrows all queries down that hold $matchers, as the default ones do:
//
//	promsource.WithMatchers(`namespace="shop",env="prod"`)
func WithMatchers(matchers string) Option {
	return optionFunc(func(c *config) { c.matchers = matchers })
}

// WithQueries replaces all queries. What is left empty is not asked for.
func WithQueries(q Queries) Option {
	return optionFunc(func(c *config) { c.queries = q })
}
