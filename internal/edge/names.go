package edge

import (
	"net/http"
	"strings"
)

// Names are the headers of ours, and answers which of them a key stands for. The
// zero value holds none. It is safe for concurrent use.
type Names struct {
	canonical []string
	lengths   uint64 // that there are, modulo 64, as bits
}

// NewNames returns the headers of these names, and [TraceHeader].
func NewNames(fields []string) *Names {
	n := &Names{canonical: make([]string, 0, len(fields)+1)}
	for _, f := range append(fields[:len(fields):len(fields)], TraceHeader) {
		n.canonical = append(n.canonical, http.CanonicalHeaderKey(f))
		n.lengths |= 1 << (len(f) % 64)
	}
	return n
}

// Canonical returns the canonical form of key where it is one of them in any case,
// else "".
func (n *Names) Canonical(key string) string {
	if n.lengths&(1<<(len(key)%64)) == 0 {
		return "" // as nearly always
	}
	for _, f := range n.canonical {
		if len(f) == len(key) && (f == key || strings.EqualFold(f, key)) {
			return f
		}
	}
	return ""
}
