package rollout

import "time"

// Defaults and limits of a [Recorder].
const (
	DefaultSlot      = 10 * time.Second
	DefaultKeep      = time.Hour
	DefaultMaxSeries = 256
	MaxSlots         = 20000 // of keep by slot
)

// RecorderOption changes how a [Recorder] works.
type RecorderOption interface{ applyRecorder(*recorderConfig) }

type recorderOption func(*recorderConfig)

func (f recorderOption) applyRecorder(c *recorderConfig) { f(c) }

type recorderConfig struct {
	slot, keep time.Duration
	series     int
	now        func() time.Time
}

// WithSlot sets the time that is counted together, [DefaultSlot] by default. What
// happens is known when its slot is over. A window is at least two slots long,
// better ten.
func WithSlot(d time.Duration) RecorderOption {
	return recorderOption(func(c *recorderConfig) { c.slot = d })
}

// WithKeep sets for how long slots are kept, [DefaultKeep] by default. A plan asks
// for three windows, or as many as have to be bad one after the other.
func WithKeep(d time.Duration) RecorderOption {
	return recorderOption(func(c *recorderConfig) { c.keep = d })
}

// WithMaxSeries bounds the combinations of service, wanted and served that are
// told apart, [DefaultMaxSeries] by default. One service has a quarter of them at
// most.
func WithMaxSeries(n int) RecorderOption {
	return recorderOption(func(c *recorderConfig) { c.series = n })
}
