package rule

import (
	"maps"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// DefaultAttributes returns the attributes that a set has without declaring
// them. A set that names one of them replaces that one.
func DefaultAttributes() map[string][]string {
	m := maps.Clone(defaultAttributes)
	for name := range m {
		m[name] = slices.Clone(m[name])
	}
	return m
}

var defaultAttributes = map[string][]string{
	"uid":     {"cookie:user_id", "header:X-User-ID", "query:uid"},
	"channel": {"header:X-Channel"},
	"region":  {"header:X-Region"},
	"group":   {"cookie:gray_group"},
	"session": {"cookie:session_id"},
}

// MaxValueBytes is the longest value of an attribute that rules look at: a
// longer one counts as missing, so that a client cannot make decisions slow.
const MaxValueBytes = 8192

// Request is what rules may look at. Absent parts are left zero. The engine
// calls each function at most once per name and decision, and keeps nothing of
// the Request.
type Request struct {
	// Header, Query and Cookie return the first value under a name and whether
	// there is one; nil is none. Header gets the name in canonical MIME form
	// (X-User-Id) and has to find it in any case; the others get it as written in
	// the rules.
	Header, Query, Cookie func(name string) (string, bool)
	// Attr, where it is set, is asked before the sources of an attribute that the
	// set declares or has by default. Where it says replaced, its value is the
	// only one, "" being none: it is how an entrance hands over an authenticated
	// user in place of what a header claims. A rule that names header:N itself
	// still reads the header. Built-in names are the fields below.
	Attr func(name string) (value string, replaced bool)
	// IP is the address of the client. Rules see it unmapped, without zone, in
	// canonical text.
	IP netip.Addr
	// Host is the host that was asked for. Rules see it in lower case and without
	// port.
	Host string
	// Path is the path of an HTTP request, decoded and without query, or the full
	// method of an RPC.
	Path string
	// Method is the HTTP method.
	Method string
	// Source is the name of the calling service, on a hop inside the system.
	Source string
	// Service is the target of a hop inside the system: only rules for it, and
	// rules for all services, apply then. "" is the entrance.
	Service string
	// Time is when the request came; zero is now.
	Time time.Time
}

// sourceKind says where a value comes from.
type sourceKind uint8

const (
	fromHeader sourceKind = iota + 1
	fromCookie
	fromQuery
	fromIP
	fromHost
	fromPath
	fromMethod
	fromSource
)

var builtins = map[string]sourceKind{"ip": fromIP, "host": fromHost, "path": fromPath, "method": fromMethod, "source": fromSource}

// source is one place that a value may come from.
type source struct {
	kind sourceKind
	name string // of the header, cookie or query parameter
	text string // as in cookie:user_id
}

// parseSource reads header:N, cookie:N, query:N or a built-in name. The reason
// is "" where text is one.
func parseSource(text string) (_ source, reason string) {
	if kind, ok := builtins[text]; ok {
		return source{kind, "", text}, ""
	}
	where, name, ok := strings.Cut(text, ":")
	if !ok {
		return source{}, "no such source: write header:N, cookie:N, query:N, ip, host, path, method or source"
	}
	if name == "" {
		return source{}, "a name is missing after " + where + ":"
	}
	if len(name) > MaxIDBytes {
		return source{}, "the name is too long"
	}
	switch where {
	case "header":
		if strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }) {
			return source{}, "not the name of a header"
		}
		name = textproto.CanonicalMIMEHeaderKey(name)
		return source{fromHeader, name, "header:" + name}, ""
	case "cookie":
		if strings.ContainsFunc(name, func(r rune) bool { return !isTokenRune(r) }) {
			return source{}, "not the name of a cookie"
		}
		return source{fromCookie, name, text}, ""
	case "query":
		return source{fromQuery, name, text}, ""
	}
	return source{}, "no such source: write header:N, cookie:N or query:N"
}

// isTokenRune tells whether r may stand in a token (RFC 9110, section 5.6.2).
func isTokenRune(r rune) bool {
	return r < 0x7f && r > ' ' && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// value returns what the source holds of a request, and whether it is there.
func (s *source) value(r *Request) (string, bool) {
	switch s.kind {
	case fromHeader:
		if r.Header != nil {
			return r.Header(s.name)
		}
	case fromCookie:
		if r.Cookie != nil {
			return r.Cookie(s.name)
		}
	case fromQuery:
		if r.Query != nil {
			return r.Query(s.name)
		}
	case fromIP:
		if r.IP.IsValid() {
			return plainAddr(r.IP).String(), true
		}
	case fromHost:
		h := plainHost(r.Host)
		return h, h != ""
	case fromPath:
		return r.Path, r.Path != ""
	case fromMethod:
		return r.Method, r.Method != ""
	case fromSource:
		return r.Source, r.Source != ""
	}
	return "", false
}

func plainAddr(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// plainHost is host in lower case, without port and brackets.
func plainHost(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		if strings.IndexByte(host[:i], ':') < 0 || strings.HasSuffix(host[:i], "]") {
			host = host[:i]
		}
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	return strings.ToLower(host)
}

// sourcesOf returns the sources of a declared or default attribute.
func (s *Set) sourcesOf(name string) ([]string, bool) {
	if sources, ok := s.Attributes[name]; ok {
		return sources, true
	}
	sources, ok := defaultAttributes[name]
	return sources, ok
}

// checkRef checks what stands for an attribute in a condition or in hashBy; the
// reason is "" where it is good.
func (s *Set) checkRef(attr string) (reason string) {
	if attr == "" {
		return "an attribute is required"
	}
	if strings.Contains(attr, ":") {
		_, reason = parseSource(attr)
		return reason
	}
	return s.checkName(attr)
}

// checkName checks a declared, default or built-in name.
func (s *Set) checkName(name string) string {
	if _, ok := builtins[name]; ok {
		return ""
	}
	if _, ok := s.sourcesOf(name); ok {
		return ""
	}
	return "no such attribute: " + shorten(name)
}
