package rollout

import "time"

// WithWebhookBackoff replaces the delays between attempts.
func WithWebhookBackoff(first, longest time.Duration) WebhookOption {
	return webhookOption(func(c *webhookConfig) { c.first, c.longest = first, longest })
}
