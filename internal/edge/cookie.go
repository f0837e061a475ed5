package edge

import (
	"net/textproto"
	"strings"
)

type cookie struct{ name, value string }

const (
	// maxCookies is how many cookies of a request are looked at; browsers send
	// some 200 at most.
	maxCookies = 512
	// keptCookies is how many of them a pooled request keeps room for.
	keptCookies = 64
)

// cookie returns the first cookie under a name, as [net/http.Request.Cookie]
// does; of sticky groups the first that is one.
func (q *Request) cookie(name string) (string, bool) {
	if name == GroupCookie && q.group != "" {
		return q.group, true
	}
	if !q.parsed {
		q.cookies, q.parsed = parseCookies(q.cookies[:0], q.headers.Values("Cookie")), true
	}
	for i := range q.cookies {
		if q.cookies[i].name == name {
			v := q.cookies[i].value
			if name == GroupCookie && !validGroup(v) {
				continue // put there by somebody else: ours is behind it
			}
			return v, true
		}
	}
	return "", false
}

// parseCookies reads the lines of a Cookie header (RFC 6265, section 4.2) as
// net/http reads them: what is no cookie is passed over.
func parseCookies(into []cookie, lines []string) []cookie {
	for _, line := range lines {
		for line != "" {
			var part string
			part, line, _ = strings.Cut(line, ";")
			name, value, _ := strings.Cut(textproto.TrimString(part), "=")
			if name = textproto.TrimString(name); !isToken(name) {
				continue
			}
			value, ok := cookieValue(value)
			if !ok {
				continue
			}
			if len(into) == maxCookies {
				return into
			}
			into = append(into, cookie{name, value})
		}
	}
	return into
}

func cookieValue(v string) (string, bool) {
	if len(v) > 1 && v[0] == '"' && v[len(v)-1] == '"' {
		v = v[1 : len(v)-1]
	}
	for i := range len(v) {
		if c := v[i]; c < 0x20 || c >= 0x7F || c == '"' || c == ';' || c == '\\' {
			return "", false
		}
	}
	return v, true
}

// isToken tells whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != ""
}

var tokenByte = func() (t [256]bool) {
	for c := '!'; c < 0x7F; c++ {
		t[c] = strings.IndexByte(`"(),/:;<=>?@[\]{}`, byte(c)) < 0
	}
	return t
}()
