package rollout

import "time"

// SetState and SetStop are what all writing goes through.
var SetState, SetStop = setState, setStop

// WithWebhookBackoff replaces the delays between attempts.
func WithWebhookBackoff(first, longest time.Duration) WebhookOption {
	return webhookOption(func(c *webhookConfig) { c.first, c.longest = first, longest })
}

// WithRecorderClock replaces time.Now.
func WithRecorderClock(now func() time.Time) RecorderOption {
	return recorderOption(func(c *recorderConfig) { c.now = now })
}

// RecordAt is Record by another clock.
func (r *Recorder) RecordAt(q Request, now time.Time) { r.record(&q, now) }
