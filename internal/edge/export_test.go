package edge

import "github.com/graylane/graylane/graytag/rule"

// Value returns what the first condition of the one rule of e, which is never
// met, looks at.
func Value(q *Request, e *rule.Engine) (value string, ok bool) {
	r := e.Explain(&q.rule).Rules[0]
	return r.Value, r.Present
}

// CookieRoom returns how many cookies q keeps room for, past what it may.
func CookieRoom(q *Request) int { return max(0, cap(q.cookies)-keptCookies) }
