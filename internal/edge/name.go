package edge

import "strings"

// SameName tells whether name is that of the header canonical to anybody. Case does
// not matter, and neither do '-' and '_': CGI and what learned from it, WSGI and PHP
// for example, make one of the other (RFC 3875, section 4.1.18).
func SameName(name, canonical string) bool {
	if len(name) != len(canonical) {
		return false
	}
	for i := range len(name) {
		if fold(name[i]) != fold(canonical[i]) {
			return false
		}
	}
	return true
}

func fold(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c + 'a' - 'A'
	case c == '_':
		return '-'
	}
	return c
}

// hasPrefix is strings.HasPrefix as [SameName] compares.
func hasPrefix(name, prefix string) bool {
	return len(name) >= len(prefix) && SameName(name[:len(prefix)], prefix)
}

// HTTPName returns the name of the header, or metadata key, that name stands for:
// grpc-gateway takes a prefix off it
// (https://grpc-ecosystem.github.io/grpc-gateway/docs/mapping/customizing_your_gateway/).
func HTTPName(name string) string {
	const prefix = "Grpc-Metadata-"
	if hasPrefix(name, prefix) {
		return name[len(prefix):]
	}
	return name
}

// IsForgedMember tells whether a header of this name holds a baggage member of a tag
// in a format that has one header for each: those of OpenTracing, Jaeger, and Brave.
// OTel has propagators for them, and hands on as W3C Baggage what they find.
func IsForgedMember(name string) bool {
	for _, prefix := range [...]string{"ot-baggage-", "uberctx-", "baggage-"} {
		if hasPrefix(name, prefix) {
			return IsForged(name[len(prefix):])
		}
	}
	return false
}

// IsUsual tells of nearly every header name, at no cost to speak of, that it is
// neither one of ours, in any spelling, nor another carrier of baggage. The names of
// compatibility formats are for the caller to look for; behind the prefix of
// grpc-gateway none is usual.
func IsUsual(name string) bool {
	if len(name) > 2 {
		switch name[0] | 0x20 {
		case 'b', 'g', 'j': // baggage, grpc-metadata-, jaeger-baggage
			return false
		case 'o': // ot-baggage-
			if name[1]|0x20 == 't' {
				return false
			}
		case 'u': // uberctx-
			if name[1]|0x20 == 'b' {
				return false
			}
		case 'x': // x-gray-tag, x-gray-trace
			if name[2]|0x20 == 'g' {
				return false
			}
		}
	}
	return strings.IndexByte(name, '_') < 0
}
