package edge

import (
	"strings"

	"github.com/graylane/graylane/graytag"
)

// Headers of the answer.
const (
	VersionHeader = "X-Version"
	GroupHeader   = "X-Canary-Group"
)

// Stable is what the answer says of a request for stable.
const Stable = "stable"

// VersionOf returns the version that t asks of service under key, in the form in
// which it goes into the answer: [Stable] where there is none, and escaped as the
// values in the wire form of a tag are, so that HTTP and gRPC take it.
func VersionOf(t graytag.Tag, key, service string) string {
	if key == "" {
		key = graytag.KeyVersion
	}
	v := t.Route(key, service)
	if v == "" {
		return Stable
	}
	return escape(v)
}

func escape(v string) string {
	i := 0
	for i < len(v) && bare(v[i]) {
		i++
	}
	if i == len(v) {
		return v
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(v) {
		if bare(v[i]) {
			b.WriteByte(v[i])
		} else {
			b.Write([]byte{'%', hex[v[i]>>4], hex[v[i]&15]})
		}
	}
	return b.String()
}

func bare(c byte) bool { return bareByte[c] }

var bareByte = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~!$'()*+:@/", byte(c)) >= 0
	}
	return t
}()
