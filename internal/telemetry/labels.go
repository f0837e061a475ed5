package telemetry

import (
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/graylane/graylane/graytag"
)

// DistinctValues is how many values a label takes from each of two sources
// before the rest is "other": what the registry knows, and what a caller says.
const DistinctValues = 100

// Other stands for every value past the bound, and for those that are not
// UTF-8 or too long for a label.
const Other = "other"

const maxLabelBytes = 256

// Hidden tells whether the versions of a routing key are names of people, which no
// metric may hold.
func Hidden(key string) bool { return key == graytag.KeyUID }

// Hide returns the label of a version of a hidden key: stable is told, the others
// are not.
func Hide(version string) string {
	if version == "" || version == "stable" {
		return version
	}
	return Other
}

// Labels bounds the distinct values of a label that somebody outside can
// choose. Values that are known to be real have room of their own, so that
// nobody can use it up. It is safe for concurrent use; a value that has room
// costs one look-up without a lock.
type Labels struct {
	known      sync.Map // string -> string
	real, said atomic.Int64
}

// NewLabels allows n distinct values that are real and n that somebody said.
func NewLabels(n int) *Labels {
	l := &Labels{}
	l.real.Store(int64(n))
	l.said.Store(int64(n))
	return l
}

// Real returns v, which is known to be real, or [Other] past the bound of those.
func (l *Labels) Real(v string) string { return l.bound(v, &l.real) }

// Bound returns v where it has room, or is one of the first values that
// somebody said, else [Other].
func (l *Labels) Bound(v string) string { return l.bound(v, &l.said) }

func (l *Labels) bound(v string, left *atomic.Int64) string {
	if v == Other {
		return Other
	}
	if k, ok := l.known.Load(v); ok {
		return k.(string)
	}
	if left.Load() <= 0 || len(v) > maxLabelBytes || !utf8.ValidString(v) {
		return Other
	}
	if left.Add(-1) < 0 {
		return Other
	}
	v = strings.Clone(v) // which may be a piece of a header that would be kept with it
	if k, loaded := l.known.LoadOrStore(v, v); loaded {
		left.Add(1)
		return k.(string)
	}
	return v
}
