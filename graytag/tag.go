package graytag

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
)

// Limits of a tag. They hold for what [Parse] reads and for the canonical form
// of whatever [Parse], [New] and [Tag.With] make.
const (
	MaxBytes      = 1024 // of the wire form
	MaxPairs      = 32   // with a value
	MaxKeyBytes   = 64
	MaxValueBytes = 256 // decoded
)

// Reserved keys. Every other key travels untouched.
const (
	KeyVersion = "version" // what routing reads by default
	KeyUID     = "uid"
	KeyChannel = "channel"
	KeyLane    = "lane"
	KeyRegion  = "region"
	KeyZone    = "zone"
	KeyEnv     = "env"
)

// Header is the HTTP header that carries a tag. The gRPC metadata key is its
// lower-case form.
const Header = "X-Gray-Tag"

// Tag is the colour of a request: a small set of key/value pairs such as
// version=v2.1.0. It is immutable, safe for concurrent use and as large as one
// pointer. The zero Tag is "untagged". Compare with [Tag.Equal]; == does not
// compile.
type Tag struct {
	_ [0]func()
	p *tag
}

type pair struct{ key, value string }

// tag is what a Tag points to; it never changes, but for the cache.
type tag struct {
	pairs  []pair // sorted by key bytes; values decoded; never empty in a Tag
	canon  string
	scoped bool // some key holds a '.', so that Route has to look

	// version is the value of KeyVersion: what routing reads on every hop.
	version string

	// Built on first use, see baggage.go.
	members atomic.Pointer[members]
	header  atomic.Pointer[string]
}

// small is a tag and the room for its pairs: one allocation less for most.
type small struct {
	tag
	few [4]pair
}

// makeTag turns sorted, checked pairs into a tag. It copies them.
func makeTag(pairs []pair, canon string) Tag {
	if len(pairs) == 0 {
		return Tag{}
	}
	var t *tag
	if s := (*small)(nil); len(pairs) <= len(s.few) {
		s = &small{}
		t, s.pairs = &s.tag, append(s.few[:0], pairs...)
	} else {
		t = &tag{pairs: slices.Clone(pairs)}
	}
	t.canon = canon
	for i := range t.pairs {
		switch key := t.pairs[i].key; {
		case key == KeyVersion:
			t.version = t.pairs[i].value
		case strings.IndexByte(key, '.') >= 0:
			t.scoped = true
		}
	}
	return Tag{p: t}
}

// New makes a tag of pairs. A pair with an empty value counts as absent. The
// error is a [*PairError]; the tag is then the zero Tag.
func New(pairs map[string]string) (Tag, error) {
	sorted := make([]pair, 0, len(pairs))
	for k, v := range pairs {
		sorted = append(sorted, pair{k, v})
	}
	slices.SortFunc(sorted, func(a, b pair) int { return cmp.Compare(a.key, b.key) })
	return fromSorted(sorted)
}

func fromSorted(sorted []pair) (Tag, error) {
	kept := sorted[:0:len(sorted)]
	size := 0
	for _, p := range sorted {
		if reason := checkKey(p.key); reason != "" {
			return Tag{}, &PairError{Key: p.key, Reason: reason}
		}
		if p.value == "" {
			continue
		}
		if reason := checkValue(p.value); reason != "" {
			return Tag{}, &PairError{Key: p.key, Reason: reason}
		}
		kept = append(kept, p)
		size += len(p.key) + 1 + escapedLen(p.value) + 1
	}
	if len(kept) == 0 {
		return Tag{}, nil
	}
	if len(kept) > MaxPairs {
		return Tag{}, &PairError{Key: kept[MaxPairs].key, Reason: reasonPairs}
	}
	if size--; size > MaxBytes {
		return Tag{}, &PairError{Key: kept[len(kept)-1].key, Reason: reasonCanonical}
	}
	return makeTag(kept, string(appendCanonical(make([]byte, 0, size), kept))), nil
}

// String returns the canonical wire form: pairs sorted by key, values
// percent-encoded where they must be. It does not allocate.
func (t Tag) String() string {
	if t.p == nil {
		return ""
	}
	return t.p.canon
}

// IsZero tells whether t holds no pair, that is, whether the request is
// untagged.
func (t Tag) IsZero() bool { return t.p == nil }

// Len returns the number of pairs.
func (t Tag) Len() int {
	if t.p == nil {
		return 0
	}
	return len(t.p.pairs)
}

// Get returns the value under key, decoded, or "" where there is none. Keys
// are case-sensitive.
func (t Tag) Get(key string) string {
	if t.p == nil {
		return ""
	}
	for i := range t.p.pairs {
		if t.p.pairs[i].key == key {
			return t.p.pairs[i].value
		}
	}
	return ""
}

// Route returns what t says under key for one service: the value of
// key.service where it is set, else that of key.
func (t Tag) Route(key, service string) string {
	if t.p != nil && !t.p.scoped && key == KeyVersion {
		return t.p.version
	}
	return t.route(key, service)
}

// route is apart so that Route is small enough to be inlined.
func (t Tag) route(key, service string) string {
	if t.p != nil && t.p.scoped && service != "" {
		n := len(key) + 1 + len(service)
		for i := range t.p.pairs {
			k := t.p.pairs[i].key
			if len(k) == n && k[len(key)] == '.' && k[:len(key)] == key && k[len(key)+1:] == service {
				return t.p.pairs[i].value
			}
		}
	}
	return t.Get(key)
}

// With returns a tag that holds value under key and all else of t. An empty
// value removes the key. The error is a [*PairError]; the tag is then t as it
// was.
func (t Tag) With(key, value string) (Tag, error) {
	if reason := checkKey(key); reason != "" {
		return t, &PairError{Key: key, Reason: reason}
	}
	if value == "" {
		return t.Without(key), nil
	}
	if t.Get(key) == value {
		return t, nil
	}
	pairs := make([]pair, 0, t.Len()+1)
	for k, v := range t.All() {
		if k != key {
			pairs = append(pairs, pair{k, v})
		}
	}
	at, _ := slices.BinarySearchFunc(pairs, key, func(p pair, k string) int { return cmp.Compare(p.key, k) })
	next, err := fromSorted(slices.Insert(pairs, at, pair{key, value}))
	if err != nil {
		return t, err
	}
	return next, nil
}

// Without returns a tag that holds all of t but keys.
func (t Tag) Without(keys ...string) Tag {
	if t.p == nil || !slices.ContainsFunc(t.p.pairs, func(p pair) bool { return slices.Contains(keys, p.key) }) {
		return t
	}
	kept := make([]pair, 0, len(t.p.pairs))
	for _, p := range t.p.pairs {
		if !slices.Contains(keys, p.key) {
			kept = append(kept, p)
		}
	}
	return makeTag(kept, string(appendCanonical(nil, kept)))
}

// Equal tells whether t and o hold the same pairs.
func (t Tag) Equal(o Tag) bool { return t.p == o.p || t.String() == o.String() }

// All yields the pairs in canonical order, values decoded.
func (t Tag) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		if t.p == nil {
			return
		}
		for _, p := range t.p.pairs {
			if !yield(p.key, p.value) {
				return
			}
		}
	}
}

// LogValue returns the pairs as a group; in place of a uid stands a short hash
// of it, so that logs can be joined by user without naming the user. The hash
// hides a uid from a reader, not from somebody who can try all uids.
func (t Tag) LogValue() slog.Value {
	attrs := make([]slog.Attr, 0, t.Len())
	for k, v := range t.All() {
		if k == KeyUID {
			sum := sha256.Sum256([]byte(v))
			v = "#" + hex.EncodeToString(sum[:4])
		}
		attrs = append(attrs, slog.String(k, v))
	}
	return slog.GroupValue(attrs...)
}

// MarshalText returns the canonical wire form, the uid in the clear.
func (t Tag) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads the wire form as [Parse] does. On an error t stays as it
// was.
func (t *Tag) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*t = parsed
	return nil
}
