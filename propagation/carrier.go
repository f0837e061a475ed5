package propagation

import (
	"net/http"
	"slices"
	"strings"

	otelprop "go.opentelemetry.io/otel/propagation"
)

// Deleter is a carrier that can remove a header. A carrier without it gets "",
// which counts as absent.
type Deleter interface {
	Delete(key string)
}

// HeaderCarrier is a carrier over http.Header, and over the headers of NATS
// messages, that can also delete. OTel's own HeaderCarrier is treated alike.
type HeaderCarrier http.Header

var (
	_ otelprop.TextMapCarrier = HeaderCarrier{}
	_ otelprop.ValuesGetter   = HeaderCarrier{}
	_ Deleter                 = HeaderCarrier{}
)

// Get returns the first value under key.
func (h HeaderCarrier) Get(key string) string { return http.Header(h).Get(key) }

// Values returns all values under key; they must not be changed.
func (h HeaderCarrier) Values(key string) []string { return http.Header(h).Values(key) }

// Set replaces all values under key.
func (h HeaderCarrier) Set(key, value string) { http.Header(h).Set(key, value) }

// Delete removes all values under key.
func (h HeaderCarrier) Delete(key string) { http.Header(h).Del(key) }

// Keys returns the keys.
func (h HeaderCarrier) Keys() []string {
	keys := make([]string, 0, len(h))
	for k := range h {
		keys = append(keys, k)
	}
	return keys
}

// MapCarrier is a carrier over the headers of a message that are a map. Keys
// are found in any case and written as X-Gray-Tag and baggage. It is not safe
// for concurrent use.
type MapCarrier map[string]string

var (
	_ otelprop.TextMapCarrier = MapCarrier{}
	_ otelprop.ValuesGetter   = MapCarrier{}
	_ Deleter                 = MapCarrier{}
)

// Get returns the value under key.
func (m MapCarrier) Get(key string) string {
	for _, v := range m.Values(key) {
		return v
	}
	return ""
}

// Values returns the values under key in any case, sorted.
func (m MapCarrier) Values(key string) []string {
	var values []string
	for k, v := range m {
		if strings.EqualFold(k, key) {
			values = append(values, v)
		}
	}
	slices.Sort(values)
	return values
}

// Set replaces what is under key in any case.
func (m MapCarrier) Set(key, value string) {
	m.Delete(key)
	m[messageKey(key)] = value
}

// Delete removes what is under key in any case.
func (m MapCarrier) Delete(key string) {
	for k := range m {
		if strings.EqualFold(k, key) {
			delete(m, k)
		}
	}
}

// Keys returns the keys.
func (m MapCarrier) Keys() []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}

// SliceCarrier is a carrier over the headers of a message that are a slice of
// key/value pairs, such as those of kafka-go, franz-go and sarama. Make one with
// [NewSliceCarrier]. It is not safe for concurrent use.
type SliceCarrier[E any] struct {
	headers *[]E
	split   func(E) (key, value string)
	join    func(key, value string) E
}

var (
	_ otelprop.TextMapCarrier = SliceCarrier[int]{}
	_ otelprop.ValuesGetter   = SliceCarrier[int]{}
	_ Deleter                 = SliceCarrier[int]{}
)

// NewSliceCarrier makes a carrier over *headers, which it changes in Set and
// Delete. split takes a header apart, join makes one; a consumer, which only
// extracts, may leave join nil: Set then does nothing. Keys are found in any
// case.
func NewSliceCarrier[E any](headers *[]E, split func(E) (key, value string), join func(key, value string) E) SliceCarrier[E] {
	return SliceCarrier[E]{headers, split, join}
}

// Get returns the first value under key.
func (c SliceCarrier[E]) Get(key string) string {
	for _, e := range *c.headers {
		if k, v := c.split(e); strings.EqualFold(k, key) {
			return v
		}
	}
	return ""
}

// Values returns all values under key.
func (c SliceCarrier[E]) Values(key string) []string {
	var values []string
	for _, e := range *c.headers {
		if k, v := c.split(e); strings.EqualFold(k, key) {
			values = append(values, v)
		}
	}
	return values
}

// Set replaces all values under key.
func (c SliceCarrier[E]) Set(key, value string) {
	if c.join == nil {
		return
	}
	c.Delete(key)
	*c.headers = append(*c.headers, c.join(messageKey(key), value))
}

// Delete removes all values under key. It makes a new slice where it removes
// something, so that messages that share one do not see it.
func (c SliceCarrier[E]) Delete(key string) {
	is := func(e E) bool {
		k, _ := c.split(e)
		return strings.EqualFold(k, key)
	}
	if slices.ContainsFunc(*c.headers, is) {
		*c.headers = slices.DeleteFunc(slices.Clone(*c.headers), is)
	}
}

// Keys returns the keys.
func (c SliceCarrier[E]) Keys() []string {
	keys := make([]string, 0, len(*c.headers))
	for _, e := range *c.headers {
		k, _ := c.split(e)
		keys = append(keys, k)
	}
	return keys
}

// messageKey writes the baggage key as W3C spells it, and OTel on every carrier
// that is no http.Header.
func messageKey(key string) string {
	if key == baggageKey {
		return "baggage"
	}
	return key
}

// carrier is any TextMapCarrier, with the abilities that it has. Headers of
// HTTP, by far the most frequent ones, are used without an interface.
type carrier struct {
	header http.Header
	other  otelprop.TextMapCarrier
	room   []string // for values of header: one allocation for both of ours
}

func adapt(c otelprop.TextMapCarrier) carrier {
	switch h := c.(type) {
	case HeaderCarrier:
		return carrier{header: http.Header(h)}
	case otelprop.HeaderCarrier:
		return carrier{header: http.Header(h)}
	}
	return carrier{other: c}
}

// The keys that are handed to these are canonical. Many carriers of others
// compare keys byte by byte: they get the one of baggage as OTel writes it.

func (k carrier) get(key string) string {
	if k.other != nil {
		return k.other.Get(messageKey(key))
	}
	// Not Get: an empty line in front must not hide a value behind it.
	for _, v := range k.header[key] {
		if v != "" {
			return v
		}
	}
	return ""
}

func (k carrier) values(key string) []string {
	if k.other == nil {
		return k.header[key]
	}
	if g, ok := k.other.(otelprop.ValuesGetter); ok {
		return g.Values(messageKey(key))
	}
	if v := k.other.Get(messageKey(key)); v != "" {
		return []string{v}
	}
	return nil
}

func (k *carrier) set(key, value string) {
	switch {
	case k.other != nil:
		k.other.Set(messageKey(key), value)
	case k.header != nil:
		if len(k.room) == 0 {
			k.room = make([]string, 2)
		}
		values := k.room[:1:1] // an append to one does not reach the other
		k.room = k.room[1:]
		values[0] = value
		k.header[key] = values
	}
}

func (k carrier) remove(key string) {
	if k.other == nil {
		delete(k.header, key)
	} else if d, ok := k.other.(Deleter); ok {
		d.Delete(messageKey(key))
	} else {
		k.other.Set(messageKey(key), "")
	}
}
