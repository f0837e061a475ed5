package edge

import (
	"net/url"
	"strings"

	"github.com/graylane/graylane/graytag/rule"
)

// queryValue returns the first value under a name, as [url.Values.Get] finds it
// after [url.ParseQuery], without taking the whole query apart.
func (q *Request) queryValue(name string) (string, bool) {
	for rest := q.query; rest != ""; {
		var pair string
		pair, rest, _ = strings.Cut(rest, "&")
		if pair == "" || strings.IndexByte(pair, ';') >= 0 {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if key, ok := queryUnescape(key, 3*rule.MaxIDBytes); !ok || key != name {
			continue
		}
		// What is longer than rules look at counts as missing anyway.
		value, ok := queryUnescape(value, 3*rule.MaxValueBytes)
		if !ok {
			continue
		}
		return value, true
	}
	return "", false
}

func queryUnescape(s string, limit int) (string, bool) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, true
	}
	if len(s) > limit {
		return "", false
	}
	u, err := url.QueryUnescape(s)
	return u, err == nil
}
