package hops

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// Headers of HTTP; gRPC has them in lower case as metadata.
const (
	TraceHeader = "X-Gray-Trace" // in a request: "1" asks for the way
	RouteHeader = "X-Gray-Route" // in the answer, as a header or a trailer: the way
	TraceKey    = "x-gray-trace"
	RouteKey    = "x-gray-route"
)

// Asks tells whether the values of [TraceHeader] ask for the way.
func Asks(values []string) bool { return len(values) > 0 && values[0] == "1" }

// Bounds of a route, whoever wrote it.
const (
	MaxHops  = 64
	MaxBytes = 4096 // of the header
	maxDepth = 32
	maxValue = 256 // bytes of one value, decoded
)

// Hop is one call on the way of a request. What its fields mean is told to users by
// propagation.Hop, which has the same.
type Hop struct {
	Depth           int
	Service         string
	Instance        string
	Wanted, Got     string
	Outcome, Reason string
}

// Pending is the outcome of a call without an answer of which nothing else is known.
const Pending = "pending"

// ErrTooLong is the error for a route past [MaxBytes].
var ErrTooLong = fmt.Errorf("propagation: route of more than %d bytes", MaxBytes)

// Format writes hops as Parse reads them: pairs as in a tag, hops parted by
// commas, so that several header lines are one list (RFC 9110, section 5.3). What
// exceeds the bounds is left out, the last hops first; more counts hops that were
// left out before.
func Format(hops []Hop, more int) string {
	var b strings.Builder
	for i, h := range hops {
		at := b.Len()
		if at > 0 {
			b.WriteString(", ")
		}
		h.write(&b)
		if i >= MaxHops || b.Len() > MaxBytes-len(", more=9999999") {
			s := b.String()[:at]
			b.Reset()
			b.WriteString(s)
			more += len(hops) - i
			break
		}
	}
	if more > 0 {
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString("more=" + strconv.Itoa(min(more, 9999999)))
	}
	return b.String()
}

func (h Hop) write(b *strings.Builder) {
	b.WriteString("depth=" + strconv.Itoa(h.Depth))
	for _, p := range [...]struct{ key, value string }{
		{"service", h.Service}, {"instance", h.Instance}, {"wanted", h.Wanted}, {"got", h.Got}, {"outcome", h.Outcome}, {"reason", h.Reason},
	} {
		if p.value != "" {
			b.WriteByte(';')
			b.WriteString(p.key)
			b.WriteByte('=')
			escape(b, p.value)
		}
	}
}

const hex = "0123456789ABCDEF"

// escape percent-encodes all but what is unreserved (RFC 3986, section 2.3) and a
// few that addresses have.
func escape(b *strings.Builder, s string) {
	if len(s) > maxValue {
		s = s[:maxValue]
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~:/[]@", c) >= 0:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
}

// Parse reads a route. more counts hops that did not fit. Keys that it does not
// know are passed over.
func Parse(s string) (hops []Hop, more int, err error) {
	if len(s) > MaxBytes {
		return nil, 0, ErrTooLong
	}
	if strings.Trim(s, " \t") == "" {
		return nil, 0, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		part = strings.Trim(part, " \t")
		if n, ok := strings.CutPrefix(part, "more="); ok {
			v, err := strconv.ParseUint(n, 10, 24)
			if err != nil {
				return nil, 0, fmt.Errorf("propagation: route: more=%.20q, want a number", n)
			}
			more = min(more+int(v), 1<<24)
			continue
		}
		h, err := parseHop(part)
		if err != nil {
			return nil, 0, fmt.Errorf("propagation: route: hop %d: %w", len(hops)+1, err)
		}
		if len(hops) == MaxHops {
			more++
			continue
		}
		hops = append(hops, h)
	}
	return hops, more, nil
}

func parseHop(s string) (h Hop, err error) {
	depth := false
	for pair := range strings.SplitSeq(s, ";") {
		key, raw, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
		if !ok || key == "" {
			return h, fmt.Errorf("%.40q, want key=value", pair)
		}
		v, err := url.PathUnescape(raw)
		if err != nil || len(v) > maxValue {
			return h, fmt.Errorf("value of %.20q is no percent-encoded text of up to %d bytes", key, maxValue)
		}
		switch key {
		case "depth":
			n, err := strconv.ParseUint(v, 10, 16)
			if err != nil || n > maxDepth {
				return h, fmt.Errorf("depth %.20q, want 0 to %d", v, maxDepth)
			}
			h.Depth, depth = int(n), true
		case "service":
			h.Service = v
		case "instance":
			h.Instance = v
		case "wanted":
			h.Wanted = v
		case "got":
			h.Got = v
		case "outcome":
			h.Outcome = v
		case "reason":
			h.Reason = v
		}
	}
	if !depth {
		return h, errors.New("no depth")
	}
	return h, nil
}
