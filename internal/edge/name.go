package edge

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
