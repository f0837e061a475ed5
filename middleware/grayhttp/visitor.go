package grayhttp

import (
	"net/http"
	"sync"

	"github.com/graylane/graylane/internal/edge"
)

// visitor is a request at an entrance, as rules see it.
type visitor struct {
	edge.Request
	e *entrance
	r *http.Request
}

var visitors = sync.Pool{New: func() any {
	q := &visitor{}
	q.Bind(q.attr)
	return q
}}

// attr is what code says of an attribute. The last option for a name counts.
func (q *visitor) attr(name string) (value string, replaced bool) {
	for i := len(q.e.attrs) - 1; i >= 0; i-- {
		if a := &q.e.attrs[i]; a.name == name {
			v, ok := a.value(q.r)
			if !ok {
				v = ""
			}
			return v, true
		}
	}
	return "", false
}

// httpHeader finds canonical names without a look at their case.
type httpHeader http.Header

func (h httpHeader) Values(canonical string) []string { return h[canonical] }
