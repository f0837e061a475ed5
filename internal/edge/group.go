package edge

import (
	"crypto/rand"
	"net/http"
	"time"
)

// GroupCookie names the sticky cookie, and the source of the default attribute
// "group".
const (
	GroupCookie = "gray_group"
	GroupSource = "cookie:" + GroupCookie
)

const maxGroupBytes = 64

// validGroup tells whether v may be a sticky group. Whoever sends the cookie has
// chosen it: it goes into answers and hashes, and must not carry anything else.
func validGroup(v string) bool {
	if v == "" || len(v) > maxGroupBytes {
		return false
	}
	for i := range len(v) {
		c := v[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// NewGroup returns a group that nobody has: 26 characters, at least 128 random
// bits.
func NewGroup() string { return rand.Text() }

// GroupSetCookie returns the cookie that makes a browser keep a group. What it
// holds decides nothing by itself; it is hidden from scripts because none needs
// it, and Lax because links from other sites should not change the group.
func GroupSetCookie(group, domain string, maxAge time.Duration, secure bool) *http.Cookie {
	return &http.Cookie{
		Name: GroupCookie, Value: group, Path: "/", Domain: domain,
		MaxAge: int(maxAge / time.Second), HttpOnly: true, Secure: secure, SameSite: http.SameSiteLaxMode,
	}
}
