package edge

import (
	"context"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/graytag"
	route "github.com/graylane/graylane/internal/hops"
)

// TraceHeader asks for the way of a request; only the inside may.
const TraceHeader = route.TraceHeader

// IsForged tells whether any reader of W3C Baggage may take key for one of ours.
// Ours is exact, but the implementations of OTel for JavaScript and Python decode
// keys, and trim more than blanks: what is not gray.version to us would come back
// from such a service as gray.version. They read headers as Latin-1, too, in which
// a byte that is no UTF-8 may be a blank.
func IsForged(key string) bool {
	if len(key) < len(graytag.MemberPrefix) {
		return false
	}
	if strings.IndexByte(key, '%') >= 0 {
		key = unescape(key)
	}
	key = strings.TrimLeftFunc(key, func(r rune) bool {
		return r == '+' || r == '\uFEFF' || r == utf8.RuneError || unicode.IsSpace(r) || unicode.IsControl(r)
	})
	return len(key) >= len(graytag.MemberPrefix) && strings.EqualFold(key[:len(graytag.MemberPrefix)], graytag.MemberPrefix)
}

// unescape decodes what is an escape and leaves the rest.
func unescape(s string) string {
	if u, err := url.PathUnescape(s); err == nil {
		return u
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if u, err := url.PathUnescape(s[i : i+3]); err == nil {
				b.WriteString(u)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// memberKey returns the key of a list-member of a baggage header.
func memberKey(member string) string {
	if i := strings.IndexAny(member, "=;"); i >= 0 {
		member = member[:i]
	}
	return strings.Trim(member, " \t")
}

// HasForged tells whether the lines of a baggage header hold members of a tag.
// Unlike a reader it knows no limit: others may have another.
func HasForged(lines []string) bool {
	for _, line := range lines {
		if lineHasForged(line) {
			return true
		}
	}
	return false
}

func lineHasForged(line string) bool {
	for member := range strings.SplitSeq(line, ",") {
		if IsForged(memberKey(member)) {
			return true
		}
	}
	return false
}

// WithoutForged returns the lines of a baggage header without members of a tag;
// all others stay as they are. Lines that are empty then go.
func WithoutForged(lines []string) []string {
	var kept []string
	for _, line := range lines {
		if !lineHasForged(line) {
			kept = append(kept, line)
			continue
		}
		var b strings.Builder
		for member := range strings.SplitSeq(line, ",") {
			if IsForged(memberKey(member)) || strings.Trim(member, " \t") == "" {
				continue
			}
			if b.Len() > 0 {
				b.WriteByte(',')
			}
			b.WriteString(member)
		}
		if b.Len() > 0 {
			kept = append(kept, b.String())
		}
	}
	return kept
}

// CleanContext returns ctx without baggage members of a tag, which OTel
// middleware outside ours has read, and whether there were any.
func CleanContext(ctx context.Context) (_ context.Context, forged bool) {
	b := baggage.FromContext(ctx)
	if b.Len() == 0 {
		return ctx, false
	}
	for _, m := range b.Members() {
		if IsForged(m.Key()) {
			// Not rebuilt from the others: New refuses a baggage over the limits.
			b = b.DeleteMember(m.Key())
			forged = true
		}
	}
	if forged {
		ctx = baggage.ContextWithBaggage(ctx, b)
	}
	return ctx, forged
}
