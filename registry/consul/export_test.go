package consul

import "time"

// WithRetry sets the delays between tries, which a user has no reason to.
func WithRetry(low, high time.Duration) Option {
	return optionFunc(func(c *config) { c.retryMin, c.retryMax = low, high })
}
