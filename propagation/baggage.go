package propagation

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math"
	"strings"

	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/graytag"
)

// Limits of W3C Baggage, https://www.w3.org/TR/baggage/#limits.
const (
	maxMembers = 64
	maxBytes   = 8192
)

func isOwn(key string) bool { return strings.HasPrefix(key, graytag.MemberPrefix) }

// wholly is the limit of who has to see everything: of a header that somebody
// else made, nothing of a tag may leave and nothing else may get lost.
const wholly = math.MaxInt

// listMembers yields the key and the text of every list-member of the lines of
// a baggage header. What has no key is left out, and so are lines that are over
// limit bytes in sum.
func listMembers(lines []string, limit int) iter.Seq2[string, string] {
	return func(yield func(key, text string) bool) {
		total := -1
		for _, line := range lines {
			if total += len(line) + 1; total > limit {
				return
			}
			for line != "" {
				text, rest, _ := strings.Cut(line, ",")
				line = rest
				// All that Unicode calls space, as OTel does: what is foreign to
				// us must not be ours to somebody else.
				text = strings.TrimSpace(text)
				end := strings.IndexAny(text, "=;")
				if end < 0 {
					continue
				}
				if key := strings.TrimSpace(text[:end]); key != "" && text[end] == '=' {
					if !yield(key, text) {
						return
					}
				}
			}
		}
	}
}

var errBaggage = errors.New("propagation: malformed gray.* member")

// tagFromBaggage reads the gray.* members of a baggage header. It reads them
// itself, and strictly: OTel's parser puts U+FFFD in place of what is no UTF-8,
// which would make another tag of a malformed one. What forwards headers beside
// OTel's propagator sends members twice: equal ones are one.
func tagFromBaggage(lines []string) (graytag.Tag, error) {
	var buf [graytag.MaxBytes + 1]byte
	wire, n := buf[:0], 0
	for key, text := range listMembers(lines, maxBytes) {
		if !isOwn(key) {
			continue
		}
		_, value, _ := strings.Cut(text, "=")
		value, _, _ = strings.Cut(value, ";") // properties
		value = strings.Trim(value, " \t")
		key = key[len(graytag.MemberPrefix):]
		if n++; n > 2*graytag.MaxPairs {
			return graytag.Tag{}, errBaggage
		}
		if n > 1 && holds(wire, key, value) {
			continue
		}
		if len(wire)+len(key)+len(value)+2 > len(buf) {
			return graytag.Tag{}, errBaggage
		}
		if len(wire) > 0 {
			wire = append(wire, ';')
		}
		wire = append(wire, key...)
		wire = append(wire, '=')
		wire = append(wire, value...)
	}
	if len(wire) == 0 {
		return graytag.Tag{}, nil
	}
	return graytag.Parse(string(wire))
}

// holds tells whether key=value is one of the pairs of wire.
func holds(wire []byte, key, value string) bool {
	for len(wire) > 0 {
		pair, rest, _ := bytes.Cut(wire, []byte{';'})
		wire = rest
		if len(pair) == len(key)+1+len(value) && string(pair[:len(key)]) == key && string(pair[len(key)+1:]) == value {
			return true
		}
	}
	return false
}

// joinForeign returns the list-members that are not ours, n in number: those
// of bag, and those of the lines whose keys bag does not have, as they stand.
func joinForeign(bag baggage.Baggage, lines []string) (joined string, n int) {
	var b strings.Builder
	add := func(text string) {
		if text == "" { // a key that W3C does not allow: OTel writes none of it
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(text)
		n++
	}
	if bag.Len() > 0 {
		for _, m := range bag.Members() {
			if !isOwn(m.Key()) {
				add(m.String())
			}
		}
	}
	for key, text := range listMembers(lines, wholly) {
		if !isOwn(key) && (bag.Len() == 0 || bag.Member(key).Key() == "") {
			add(text)
		}
	}
	return b.String(), n
}

// withForeign adds the members of the lines that are not ours, and that ctx
// does not have, to the baggage of ctx.
func withForeign(ctx context.Context, lines []string) context.Context {
	bag := baggage.FromContext(ctx)
	var missing strings.Builder
	for key, text := range listMembers(lines, maxBytes) {
		if isOwn(key) || bag.Len() > 0 && bag.Member(key).Key() != "" {
			continue
		}
		if missing.Len() > 0 {
			missing.WriteByte(',')
		}
		missing.WriteString(text)
	}
	if missing.Len() == 0 {
		return ctx
	}
	// What is valid is kept, as OTel's own propagator does.
	parsed, _ := baggage.Parse(missing.String())
	if parsed.Len() == 0 {
		return ctx
	}
	if bag.Len() == 0 {
		return baggage.ContextWithBaggage(ctx, parsed)
	}
	merged, err := baggage.New(append(bag.Members(), parsed.Members()...)...)
	if err != nil {
		return ctx // over the limits of W3C: ctx keeps what it had
	}
	return baggage.ContextWithBaggage(ctx, merged)
}

func hasOwn(ctx context.Context) bool {
	bag := baggage.FromContext(ctx)
	if bag.Len() == 0 {
		return false
	}
	for _, m := range bag.Members() {
		if isOwn(m.Key()) {
			return true
		}
	}
	return false
}
