package edge

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/graylane/graylane/graytag/rule"
)

// Headers finds the values of a header or a metadata key by its canonical name.
// They must not be changed.
type Headers interface {
	Values(canonical string) []string
}

// Request is a request as rules see it. It is made to be used again: what it
// hands to the engine is bound once, cookies are taken apart when the first rule
// asks for one. It is not safe for concurrent use.
type Request struct {
	rule    rule.Request
	headers Headers
	query   string
	group   string // in place of the cookie

	cookies []cookie
	parsed  bool
}

// Bind makes q ready for use. attr, which may be nil, is [rule.Request]'s Attr.
func (q *Request) Bind(attr func(name string) (string, bool)) {
	q.rule.Header, q.rule.Cookie, q.rule.Query = q.header, q.cookie, q.queryValue
	q.rule.Attr = attr
}

// Fields are the plain parts of a request, see [rule.Request].
type Fields struct {
	Host, Path, Method, RawQuery string
	Client                       netip.Addr
	Source, Service              string
}

// Set makes q the request of h and f.
func (q *Request) Set(h Headers, f Fields) {
	q.headers, q.query, q.group = h, f.RawQuery, ""
	q.cookies, q.parsed = q.cookies[:0], false
	q.rule.IP, q.rule.Host, q.rule.Path, q.rule.Method = f.Client, f.Host, f.Path, f.Method
	q.rule.Source, q.rule.Service = f.Source, f.Service
}

// Clear forgets the request, so that nothing keeps it alive.
func (q *Request) Clear() {
	clear(q.cookies)
	if cap(q.cookies) > keptCookies {
		q.cookies = nil
	}
	q.Set(nil, Fields{})
}

// Decide returns the decision of e.
func (q *Request) Decide(e *rule.Engine) rule.Decision { return e.Decide(&q.rule) }

// DecideSticky is Decide for a visitor who may be given a sticky group: where a
// percentage found nothing to hash, it decides as for one who has a new group
// already, so that this answer and the next agree. group is "" where none was
// given, since there is no need or no rule that would hash it.
func (q *Request) DecideSticky(e *rule.Engine) (d rule.Decision, group string) {
	d = q.Decide(e)
	if d.NoKey == 0 {
		return d, ""
	}
	if _, ok := q.cookie(GroupCookie); ok {
		return d, "" // no rule hashes it, or other attributes are missing
	}
	q.group = NewGroup()
	with := q.Decide(e)
	if v, ok := with.HashedBy(GroupSource); ok && v == q.group {
		return with, q.group
	}
	q.group = ""
	return d, ""
}

func (q *Request) header(name string) (string, bool) {
	if name == "Host" { // which net/http and gRPC keep elsewhere
		return q.rule.Host, q.rule.Host != ""
	}
	values := q.headers.Values(name)
	if len(values) == 0 {
		return "", false
	}
	return values[0], true
}

// CheckAttr tells whether code may give the value of an attribute of this name.
func CheckAttr(name string) error {
	switch name {
	case "ip", "host", "path", "method", "source":
		return fmt.Errorf("attribute %q is built in, want another", name)
	}
	if name == "" || strings.ContainsAny(name, ": ") {
		return fmt.Errorf("attribute %q, want the name of one that a rule set declares or has by default", name)
	}
	return nil
}
