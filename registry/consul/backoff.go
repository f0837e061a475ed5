package consul

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/graylane/graylane/internal/loglimit"
)

// backoff is a delay that doubles from low to high with every failure.
type backoff struct {
	low, high time.Duration
	d         time.Duration
}

// next returns the next delay: three quarters to the whole of the doubled value.
// The spread keeps many clients of a Consul that was down from coming back at
// once; it is small so that the number of tries has a firm bound.
func (b *backoff) next() time.Duration {
	b.d = min(max(2*b.d, b.low), b.high)
	return b.d - rand.N(b.d/4+1)
}

func (b *backoff) reset() { b.d = 0 }

// bucket lets burst events through at once and then one per interval.
type bucket struct {
	burst    int
	interval time.Duration
	used     int
	since    time.Time
}

// delay returns how long to wait before the event that happens now may go on.
func (b *bucket) delay(now time.Time) time.Duration {
	if refilled := int(now.Sub(b.since) / b.interval); refilled > 0 {
		b.used = max(0, b.used-refilled)
		b.since = b.since.Add(time.Duration(refilled) * b.interval)
		if b.used == 0 {
			b.since = now
		}
	}
	b.used++
	if b.used <= b.burst {
		return 0
	}
	return b.interval // by then this event is paid for
}

// sleep returns false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// logInterval is the least time between two lines about the same trouble.
const logInterval = time.Minute

// watchLines bounds the lines on trouble of all watches in a logInterval: names
// of services may come from outside.
const watchLines = 64

// trouble logs a run of failures: its beginning, once a minute that it lasts, and
// its end. Failures that come and go are one trouble: the log gets two lines a
// minute at most. It is not safe for concurrent use.
type trouble struct {
	logger   *slog.Logger
	limit    *loglimit.Limit // of all watches together, or nil
	failures int
	logged   time.Time
	told     bool // the log knows of the present run
}

func (t *trouble) failed(message string, err error) {
	t.failures++
	if now := time.Now(); now.Sub(t.logged) >= logInterval && (t.limit == nil || t.limit.Allow(now)) {
		t.logged, t.told = now, true
		t.logger.Warn(message, slog.Any("error", err), slog.Int("failures", t.failures))
	}
}

func (t *trouble) over(message string) {
	if t.told {
		t.logger.Info(message, slog.Int("failures", t.failures))
	}
	t.failures, t.told = 0, false
}
