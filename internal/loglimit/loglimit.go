// Package loglimit bounds how many lines of one kind are logged. Names that are
// asked for may come from outside, by the thousand: who may choose them must not
// be able to fill the log with them.
package loglimit

import (
	"sync"
	"time"
)

// Limit allows a number of lines in every interval. It is safe for concurrent
// use. Make one with [New].
type Limit struct {
	lines    int
	interval time.Duration

	mu      sync.Mutex // of what follows; taken where something is about to be logged
	since   time.Time
	used    int
	dropped int
}

// New returns a Limit of so many lines per interval.
func New(lines int, interval time.Duration) *Limit {
	return &Limit{lines: lines, interval: interval}
}

// Allow tells whether one more line may be logged at now, and counts it.
func (l *Limit) Allow(now time.Time) bool {
	ok, _ := l.Take(now)
	return ok
}

// Take is Allow, and where it allows a line it says how many it has not allowed
// since the last one.
func (l *Limit) Take(now time.Time) (ok bool, dropped int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= l.interval {
		l.since, l.used = now, 0
	}
	if l.used >= l.lines {
		l.dropped++
		return false, 0
	}
	l.used++
	dropped, l.dropped = l.dropped, 0
	return true, dropped
}
