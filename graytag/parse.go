package graytag

import (
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"
)

// ParseError tells why [Parse] refused its input.
type ParseError struct {
	Offset int    // in bytes, where in the input the fault was found
	Reason string // what was wrong and what was expected; holds nothing of the input
}

// Error names the place and the fault, and nothing of the input.
func (e *ParseError) Error() string {
	return fmt.Sprintf("graytag: parse: at byte %d: %s", e.Offset, e.Reason)
}

// PairError tells why [New] or [Tag.With] refused a pair.
type PairError struct {
	Key    string // the key of the pair
	Reason string // what was wrong and what was expected
}

// Error names the key, shortened to 64 bytes, and the fault; not the value.
func (e *PairError) Error() string {
	key := e.Key
	if len(key) > MaxKeyBytes {
		key = key[:MaxKeyBytes] + "…"
	}
	return fmt.Sprintf("graytag: pair %q: %s", key, e.Reason)
}

const (
	reasonInput     = "input over 1024 bytes"
	reasonCanonical = "canonical form over 1024 bytes"
	reasonPairs     = "over 32 pairs"
	reasonDuplicate = "the same key twice"
	reasonNoEquals  = "no '=' between key and value"
	reasonKeyEmpty  = "empty key"
	reasonKeyLong   = "key over 64 bytes"
	reasonKeyStart  = "key must start with a letter or digit"
	reasonKeyByte   = "key must consist of A-Z a-z 0-9 . _ -"
	reasonValueLong = "value over 256 bytes decoded"
	reasonControl   = "control character in a value"
	reasonUTF8      = "value is not UTF-8"
	reasonRaw       = "a raw ',' or '\"' must be percent-encoded"
	reasonEscape    = "'%' must be followed by two hex digits"
)

// Parse reads the wire form of a tag. The error is a [*ParseError]; the tag is
// then the zero Tag. An input without pairs is the zero Tag and no error.
//
// Parse never panics, takes time linear in its input, which it refuses where
// it is over [MaxBytes], and may keep a reference to s.
func Parse(s string) (Tag, error) {
	if len(s) > MaxBytes {
		return Tag{}, &ParseError{MaxBytes, reasonInput}
	}
	// Pairs are gathered on the stack and sorted as they come. A value without
	// escapes stays a piece of s; the others wait for assemble.
	var (
		pairs   [MaxPairs]pair
		offsets [MaxPairs]uint16 // where in s the value of a pair starts
		n       int
		plain   = true // s itself is canonical so far
		escaped bool   // some value is not bare
	)
	for at, end := 0, 0; at <= len(s); at = end + 1 {
		start, from := at, 0
		var key, value string
		// The common case, a pair that is canonical already, in one pass.
		i := at
		for i < len(s) && classes[s[i]]&inKey != 0 {
			i++
		}
		if i < len(s) && s[i] == '=' && i > at && i-at <= MaxKeyBytes && classes[s[at]]&inStart != 0 {
			key, from = s[at:i], i+1
			for i = from; i < len(s) && classes[s[i]]&inValue != 0; i++ {
			}
			if i > from && i-from <= MaxValueBytes && (i == len(s) || s[i] == ';') {
				value, end = s[from:i], i
			}
		}
		if value == "" {
			plain = false // it may be canonical; to see that costs as much as to write it
			if end = strings.IndexByte(s[at:], ';'); end < 0 {
				end = len(s)
			} else {
				end += at
			}
			var reason string
			if key, value, start, from, reason = split(s, at, end); reason != "" {
				return Tag{}, &ParseError{start, reason}
			}
			if value == "" {
				continue
			}
			if !isBare(value) {
				escaped = true
			} else if len(value) > MaxValueBytes {
				return Tag{}, &ParseError{from + MaxValueBytes, reasonValueLong}
			}
		}
		for i = n; i > 0 && less(key, pairs[i-1].key); {
			i--
		}
		if i > 0 && pairs[i-1].key == key {
			return Tag{}, &ParseError{start, reasonDuplicate}
		}
		if n == MaxPairs {
			return Tag{}, &ParseError{start, reasonPairs}
		}
		if i < n {
			plain = false
			copy(pairs[i+1:n+1], pairs[i:n])
			copy(offsets[i+1:n+1], offsets[i:n])
		}
		pairs[i], offsets[i] = pair{key, value}, uint16(from)
		n++
	}
	if n == 0 {
		return Tag{}, nil
	}
	if plain {
		return makeTag(pairs[:n], s), nil
	}
	if escaped {
		return assemble(pairs[:n], offsets[:n], len(s))
	}
	size := n - 1
	for i := range pairs[:n] {
		size += len(pairs[i].key) + 1 + len(pairs[i].value)
	}
	buf := make([]byte, 0, size) // no longer than s
	for i := range pairs[:n] {
		if i > 0 {
			buf = append(buf, ';')
		}
		buf = append(append(append(buf, pairs[i].key...), '='), pairs[i].value...)
	}
	return makeTag(pairs[:n], unsafe.String(unsafe.SliceData(buf), size)), nil // buf is not written again
}

// less is a < b for keys that are seldom alike in their first byte.
func less(a, b string) bool {
	if a[0] != b[0] {
		return a[0] < b[0]
	}
	return a < b
}

// split takes the pair in s[at:end] apart; start and from are where its key
// and its value begin. The key is checked, the value is not. An empty value is
// an absent pair.
func split(s string, at, end int) (key, value string, start, from int, reason string) {
	start, stop := trim(s, at, end)
	if start == stop {
		return "", "", start, start, ""
	}
	eq := strings.IndexByte(s[start:stop], '=')
	if eq < 0 {
		return "", "", start, start, reasonNoEquals
	}
	eq += start
	_, keyEnd := trim(s, start, eq)
	key = s[start:keyEnd]
	from, _ = trim(s, eq+1, stop)
	return key, s[from:stop], start, from, checkKey(key)
}

// assemble decodes the values that hold escapes, or bytes that have to become
// some, and writes the canonical form, and behind it the decoded values, into
// one string.
func assemble(pairs []pair, offsets []uint16, inputLen int) (Tag, error) {
	var scratch [MaxValueBytes]byte
	size, decoded := len(pairs)-1, 0
	for i := range pairs {
		size += len(pairs[i].key) + 1
		if isBare(pairs[i].value) {
			size += len(pairs[i].value)
			continue
		}
		value, offset, reason := decode(scratch[:0], pairs[i].value)
		if reason != "" {
			return Tag{}, &ParseError{int(offsets[i]) + offset, reason}
		}
		size += escapedLen(value)
		decoded += len(value)
	}
	if size > MaxBytes {
		return Tag{}, &ParseError{inputLen, reasonCanonical}
	}
	buf := make([]byte, 0, size+decoded)
	for i := range pairs {
		if i > 0 {
			buf = append(buf, ';')
		}
		buf = append(append(buf, pairs[i].key...), '=')
		if isBare(pairs[i].value) {
			buf = append(buf, pairs[i].value...)
		} else {
			value, _, _ := decode(scratch[:0], pairs[i].value)
			buf = appendEscaped(buf, value)
		}
	}
	for i := range pairs {
		if !isBare(pairs[i].value) {
			buf, _, _ = decode(buf, pairs[i].value)
		}
	}
	all := unsafe.String(unsafe.SliceData(buf), len(buf)) // buf is not written again
	at := size
	for i := range pairs {
		if !isBare(pairs[i].value) {
			n := decodedLen(pairs[i].value)
			pairs[i].value = all[at : at+n]
			at += n
		}
	}
	return makeTag(pairs, all[:size]), nil
}

// MustParse is [Parse] for constants in code and tests; it panics where s is
// not a tag.
func MustParse(s string) Tag {
	t, err := Parse(s)
	if err != nil {
		panic(err)
	}
	return t
}

// trim returns the bounds of s[from:to] without U+0020 at its ends; no other
// byte counts as space.
func trim(s string, from, to int) (int, int) {
	for from < to && s[from] == ' ' {
		from++
	}
	for from < to && s[to-1] == ' ' {
		to--
	}
	return from, to
}

const (
	inKey   = 1 << iota // may stand in a key
	inStart             // may start a key
	inValue             // stands bare in a canonical value
)

var classes = func() (c [256]uint8) {
	for b := range c {
		switch {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9':
			c[b] = inKey | inStart | inValue
		case strings.IndexByte("._-", byte(b)) >= 0:
			c[b] = inKey | inValue
		case strings.IndexByte("~!$'()*+:@/", byte(b)) >= 0:
			c[b] = inValue
		}
	}
	return c
}()

func checkKey(key string) string {
	switch {
	case key == "":
		return reasonKeyEmpty
	case len(key) > MaxKeyBytes:
		return reasonKeyLong
	case classes[key[0]]&inStart == 0:
		return reasonKeyStart
	}
	for i := 1; i < len(key); i++ {
		if classes[key[i]]&inKey == 0 {
			return reasonKeyByte
		}
	}
	return ""
}

// ValidKey tells whether key may be the key of a pair:
// [A-Za-z0-9][A-Za-z0-9._-]{0,63}.
func ValidKey(key string) bool { return checkKey(key) == "" }

// checkValue checks a decoded value.
func checkValue[T string | []byte](v T) string {
	if len(v) > MaxValueBytes {
		return reasonValueLong
	}
	for i := 0; i < len(v); {
		c := v[i]
		if c < utf8.RuneSelf {
			if c < 0x20 || c == 0x7f {
				return reasonControl
			}
			i++
			continue
		}
		r, size := decodeRune(v[i:])
		if r == utf8.RuneError && size <= 1 {
			return reasonUTF8
		}
		if r < 0xa0 { // U+0080..U+009F, the C1 controls
			return reasonControl
		}
		i += size
	}
	return ""
}

func decodeRune[T string | []byte](v T) (rune, int) {
	var b [utf8.UTFMax]byte
	return utf8.DecodeRune(b[:copy(b[:], v)])
}

func isBare(v string) bool {
	for i := 0; i < len(v); i++ {
		if classes[v[i]]&inValue == 0 {
			return false
		}
	}
	return true
}

// decode appends raw without its percent-encoding to dst and checks the
// result. Where it finds a fault it returns the offset in raw and the reason.
func decode(dst []byte, raw string) (_ []byte, offset int, reason string) {
	start := len(dst)
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch c {
		case ',', '"':
			return dst, i, reasonRaw
		case '%':
			if i+2 >= len(raw) {
				return dst, i, reasonEscape
			}
			hi, lo := unhex(raw[i+1]), unhex(raw[i+2])
			if hi > 15 || lo > 15 {
				return dst, i, reasonEscape
			}
			c = hi<<4 | lo
			i += 2
		}
		if len(dst)-start == MaxValueBytes {
			return dst, i, reasonValueLong
		}
		dst = append(dst, c)
	}
	return dst, 0, checkValue(dst[start:])
}

// decodedLen returns the length of a value that decode has accepted.
func decodedLen(raw string) int { return len(raw) - 2*strings.Count(raw, "%") }

func unhex(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}

func escapedLen[T string | []byte](v T) int {
	n := len(v)
	for i := 0; i < len(v); i++ {
		if classes[v[i]]&inValue == 0 {
			n += 2
		}
	}
	return n
}

func appendEscaped[T string | []byte](dst []byte, v T) []byte {
	const upperHex = "0123456789ABCDEF"
	for i := 0; i < len(v); i++ {
		if c := v[i]; classes[c]&inValue != 0 {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}

func appendCanonical(dst []byte, pairs []pair) []byte {
	for i := range pairs {
		if i > 0 {
			dst = append(dst, ';')
		}
		dst = append(append(dst, pairs[i].key...), '=')
		dst = appendEscaped(dst, pairs[i].value)
	}
	return dst
}
