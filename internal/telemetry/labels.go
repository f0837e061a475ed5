package telemetry

import (
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// DistinctValues is how many values a label takes before the rest is "other".
const DistinctValues = 100

// Other stands for every value past the bound, and for those that are not
// UTF-8 or too long for a label.
const Other = "other"

const maxLabelBytes = 256

// Labels bounds the distinct values of a label that somebody outside can
// choose. It is safe for concurrent use; a value that is known costs one
// look-up without a lock.
type Labels struct {
	known sync.Map // string -> string
	left  atomic.Int64
}

// NewLabels allows n distinct values.
func NewLabels(n int) *Labels {
	l := &Labels{}
	l.left.Store(int64(n))
	return l
}

// Bound returns v while it is one of the first values that were seen, else
// [Other].
func (l *Labels) Bound(v string) string {
	if k, ok := l.known.Load(v); ok {
		return k.(string)
	}
	if l.left.Load() <= 0 || len(v) > maxLabelBytes || !utf8.ValidString(v) {
		return Other
	}
	if l.left.Add(-1) < 0 {
		return Other
	}
	if k, loaded := l.known.LoadOrStore(v, v); loaded {
		l.left.Add(1)
		return k.(string)
	}
	return v
}
