package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylane/graylane/internal/loglimit"
)

// Alerter tells people what has happened. A [Controller] calls it once for each
// event, one event at a time and in their order, and does not wait for it.
type Alerter interface {
	// Alert returns when the event has been told, or cannot be. ctx ends after
	// MaxAlertTime, and when the controller does.
	Alert(ctx context.Context, e Event) error
}

// AlerterFunc is a function as an [Alerter].
type AlerterFunc func(ctx context.Context, e Event) error

// Alert calls f.
func (f AlerterFunc) Alert(ctx context.Context, e Event) error { return f(ctx, e) }

// Bounds of what a [Controller] does for one alerter.
const (
	MaxAlertTime   = 2 * time.Minute // for one event, all tries together
	MaxAlertsQueue = 256             // events that wait, more than one for each plan; what comes then is dropped
)

// NewLogAlerter returns an alerter that writes to l, nil for slog.Default(): an
// error where gray was worse than stable, a warning where something was taken back
// or is not watched, and information else.
func NewLogAlerter(l *slog.Logger) Alerter {
	return AlerterFunc(func(ctx context.Context, e Event) error {
		logger := l
		if logger == nil {
			logger = slog.Default()
		}
		attrs := []slog.Attr{slog.String("kind", string(e.Kind))}
		if e.Plan != "" {
			attrs = append(attrs, slog.String("plan", e.Plan), slog.String("phase", string(e.To.phase())),
				slog.Int("stage", e.To.Stage))
			if e.Percent.IsSet() {
				attrs = append(attrs, slog.String("percent", e.Percent.String()))
			}
		}
		attrs = append(attrs, slog.String("who", e.Who), slog.String("why", e.Why), slog.Uint64("revision", e.Revision))
		logger.LogAttrs(ctx, e.level(), "gray rollout: "+e.Text(), attrs...)
		return nil
	})
}

func (e *Event) level() slog.Level {
	switch {
	case e.Breach():
		return slog.LevelError
	case e.Kind == KindRolledBack || e.Kind == KindStopped || e.Kind == KindBlind:
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// Text says the event in a line, without who and why.
func (e *Event) Text() string {
	switch e.Kind {
	case KindStopped:
		return "the kill switch is on, everyone is stable"
	case KindUnstopped:
		return "the kill switch is off"
	case KindRevision:
		return "an old revision of the rules is in force again"
	case KindRolledBack:
		return fmt.Sprintf("plan %s is rolled back, its rules are off", e.Plan)
	case KindFinished:
		return fmt.Sprintf("plan %s is finished, its rules are cleared", e.Plan)
	case KindSuggestAdvance:
		return fmt.Sprintf("plan %s could go on from %s %%", e.Plan, e.Percent)
	case KindSuggestBreach:
		return fmt.Sprintf("plan %s should be taken back: gray is worse at %s %%", e.Plan, e.Percent)
	case KindUnwritten:
		return fmt.Sprintf("plan %s is rolled back in this process alone, the rules cannot be written", e.Plan)
	case KindBlind:
		return fmt.Sprintf("plan %s is not watched: its samples cannot be read", e.Plan)
	}
	return fmt.Sprintf("plan %s: %s, at %s %%", e.Plan, e.Kind, e.Percent)
}

// outbox hands events to one alerter, in a goroutine that lives while there are some.
type outbox struct {
	alerter Alerter
	logger  func() *slog.Logger
	lines   *loglimit.Limit

	mu      sync.Mutex // guards what follows, for moments only
	queue   []Event
	idle    chan struct{} // closed when the goroutine has ended; nil while there is none
	stop    context.CancelFunc
	failed  uint64
	dropped uint64
	err     error // of the last alert that failed
}

func newOutbox(a Alerter, logger func() *slog.Logger) *outbox {
	return &outbox{alerter: a, logger: logger, lines: loglimit.New(10, time.Minute)}
}

func (o *outbox) push(e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) >= MaxAlertsQueue {
		o.dropped++
		o.warn("gray rollout: an alert was dropped, the alerter is too slow", &e, nil)
		return
	}
	o.queue = append(o.queue, e)
	if o.idle == nil {
		ctx, cancel := context.WithCancel(context.Background())
		o.idle, o.stop = make(chan struct{}), cancel
		go o.run(ctx, cancel, o.idle)
	}
}

// run ends when the queue is empty, or when ctx has ended.
func (o *outbox) run(ctx context.Context, cancel context.CancelFunc, idle chan struct{}) {
	defer close(idle)
	defer cancel()
	for {
		o.mu.Lock()
		if n := len(o.queue); ctx.Err() != nil && n > 0 {
			o.warn("gray rollout: alerts were dropped, the controller has ended", &o.queue[0], fmt.Errorf("rollout: %d alerts, this is the first", n))
			o.dropped += uint64(n)
			o.queue = nil
		}
		if len(o.queue) == 0 {
			o.idle, o.stop = nil, nil
			o.mu.Unlock()
			return
		}
		e := o.queue[0]
		o.queue = o.queue[1:]
		o.mu.Unlock()
		if err := o.deliver(ctx, e); err != nil {
			o.mu.Lock()
			o.failed++
			o.err = err
			o.warn("gray rollout: an alert could not be sent", &e, err)
			o.mu.Unlock()
		}
	}
}

func (o *outbox) deliver(ctx context.Context, e Event) (err error) {
	ctx, cancel := context.WithTimeout(ctx, MaxAlertTime)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("rollout: the alerter panicked: %v", p)
		}
	}()
	return o.alerter.Alert(ctx, e)
}

func (o *outbox) warn(message string, e *Event, err error) {
	if !o.lines.Allow(time.Now()) {
		return
	}
	o.logger().LogAttrs(context.Background(), slog.LevelWarn, message,
		slog.String("kind", string(e.Kind)), slog.String("plan", e.Plan), slog.Any("error", err))
}

// flush waits until everything is told, or ctx ends.
func (o *outbox) flush(ctx context.Context) error {
	for {
		o.mu.Lock()
		idle := o.idle
		o.mu.Unlock()
		if idle == nil {
			return nil
		}
		select {
		case <-idle:
		case <-ctx.Done():
			return errors.New("rollout: alerts are still under way")
		}
	}
}

// abortTime is how long an alerter has to return when the controller ends.
const abortTime = time.Second

// abort gives up what has not been told yet, and waits for the alerter to return. One
// that goes on though its context has ended keeps its goroutine, and nobody else.
func (o *outbox) abort() {
	o.mu.Lock()
	idle, stop := o.idle, o.stop
	o.mu.Unlock()
	if idle == nil {
		return
	}
	stop()
	timer := time.NewTimer(abortTime)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		o.logger().Warn("gray rollout: an alerter does not return though its time is over")
	}
}
