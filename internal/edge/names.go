package edge

import (
	"net/http"
	"strings"
)

// Names are header names that are looked for in every name of a request. The zero
// value holds none. It is safe for concurrent use.
type Names struct {
	canonical []string
	lengths   uint64 // that there are, modulo 64, as bits
}

// NewNames returns these names.
func NewNames(names ...string) *Names {
	n := &Names{}
	for _, name := range names {
		n.canonical = append(n.canonical, http.CanonicalHeaderKey(name))
		n.lengths |= 1 << (len(name) % 64)
	}
	return n
}

// May tells of nearly every key, at no cost to speak of, that it is none of them in any
// spelling.
func (n *Names) May(key string) bool { return n.lengths&(1<<(len(key)%64)) != 0 }

// Canonical returns the canonical form of key where it is one of them in any case,
// else "".
func (n *Names) Canonical(key string) string {
	if !n.May(key) {
		return ""
	}
	for _, name := range n.canonical {
		if len(name) == len(key) && (name == key || strings.EqualFold(name, key)) {
			return name
		}
	}
	return ""
}

// Same tells whether key is one of them to anybody, see [SameName].
func (n *Names) Same(key string) bool {
	for _, name := range n.canonical {
		if SameName(key, name) {
			return true
		}
	}
	return false
}
