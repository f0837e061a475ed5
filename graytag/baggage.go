package graytag

import (
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/baggage"
)

// MemberPrefix starts the key of every baggage member that belongs to a tag.
const MemberPrefix = "gray."

// Limits of W3C Baggage, https://www.w3.org/TR/baggage/#limits.
const (
	maxBaggageMembers = 64
	maxBaggageBytes   = 8192
)

// members is a tag in the form of OTel baggage.
type members struct {
	list  []baggage.Member
	few   [4]baggage.Member // room for most lists: one allocation less
	bag   baggage.Baggage
	bytes int // an upper bound of the header form

	// What OTel keeps in a context that has these members, and no others, as its
	// baggage. It is there, and stays, once kept is 2; who makes it 1 writes it.
	state any
	kept  atomic.Uint32
}

func (m *members) otelState() any {
	if m.kept.Load() == 2 {
		return m.state
	}
	return nil
}

func (m *members) keepState(state any) {
	if m.kept.CompareAndSwap(0, 1) {
		m.state = state
		m.kept.Store(2)
	}
}

// asMembers builds the members of t once. Two goroutines may build them at
// once; both get the same content.
func (t Tag) asMembers() *members {
	if m := t.p.members.Load(); m != nil {
		return m
	}
	m := &members{}
	if m.list = m.few[:0]; len(t.p.pairs) > len(m.few) {
		m.list = make([]baggage.Member, 0, len(t.p.pairs))
	}
	for _, p := range t.p.pairs {
		// Keys are tokens and values UTF-8: no pair of a tag can be refused.
		member, err := baggage.NewMemberRaw(memberKey(p.key), p.value)
		if err != nil {
			continue
		}
		m.list = append(m.list, member)
		m.bytes += len(MemberPrefix) + len(p.key) + 1 + 3*len(p.value) + 1
	}
	m.bag, _ = baggage.New(m.list...)
	t.p.members.Store(m)
	return m
}

// memberKey returns the key of the member for a key. Reserved keys, by far the
// most frequent ones, cost no allocation.
func memberKey(key string) string {
	switch key {
	case KeyVersion:
		return MemberPrefix + KeyVersion
	case KeyUID:
		return MemberPrefix + KeyUID
	case KeyChannel:
		return MemberPrefix + KeyChannel
	case KeyLane:
		return MemberPrefix + KeyLane
	case KeyRegion:
		return MemberPrefix + KeyRegion
	case KeyZone:
		return MemberPrefix + KeyZone
	case KeyEnv:
		return MemberPrefix + KeyEnv
	}
	return MemberPrefix + key
}

// BaggageHeader returns the members of t as the value of a W3C baggage header,
// encoded as OTel encodes them, "" for the zero Tag. It is built once per tag.
func (t Tag) BaggageHeader() string {
	if t.p == nil {
		return ""
	}
	if h := t.p.header.Load(); h != nil {
		return *h
	}
	var b strings.Builder
	for i, m := range t.asMembers().list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(m.String())
	}
	h := b.String()
	t.p.header.Store(&h)
	return h
}

// IntoBaggage returns b with the members of t in place of every gray.* member
// that it holds. ok is false where they do not fit into the limits of W3C
// Baggage (64 members, 8192 bytes); b then has no gray.* members and all others.
func (t Tag) IntoBaggage(b baggage.Baggage) (_ baggage.Baggage, ok bool) {
	next, _ := t.intoBaggage(b)
	return next, t.p == nil || hasMembers(next)
}

func (t Tag) intoBaggage(b baggage.Baggage) (next baggage.Baggage, changed bool) {
	if b.Len() == 0 {
		if t.p == nil {
			return b, false
		}
		return t.asMembers().bag, true
	}
	if t.isSpelledBy(b) {
		return b, false
	}
	all := b.Members()
	foreign := all[:0]
	for _, m := range all {
		if strings.HasPrefix(m.Key(), MemberPrefix) {
			// Not rebuilt from the others: New refuses a baggage over the
			// limits, and then members that are not ours would be lost.
			b = b.DeleteMember(m.Key())
			changed = true
			continue
		}
		foreign = append(foreign, m)
	}
	if t.p == nil {
		return b, changed
	}
	own := t.asMembers()
	if len(foreign) == 0 {
		return own.bag, true
	}
	if len(foreign)+len(own.list) > maxBaggageMembers || !own.fit(b) {
		return b, changed
	}
	merged, err := baggage.New(append(foreign, own.list...)...)
	if err != nil {
		return b, changed
	}
	return merged, true
}

// isSpelledBy is IsBaggage for a tag whose members may not have been built: where OTel
// middleware outside ours has read the baggage, they need not be.
func (t Tag) isSpelledBy(b baggage.Baggage) bool {
	if t.p == nil || b.Len() != len(t.p.pairs) {
		return false
	}
	for _, p := range t.p.pairs {
		if m := b.Member(memberKey(p.key)); m.Key() == "" || m.Value() != p.value || len(m.Properties()) > 0 {
			return false
		}
	}
	return true
}

// IsBaggage tells whether b holds the members of t and no others, as it does in a
// context that [NewContext] made and nobody added to. It does not allocate.
func (t Tag) IsBaggage(b baggage.Baggage) bool {
	if t.p == nil || b.Len() == 0 {
		return t.p == nil && b.Len() == 0
	}
	own := t.asMembers().list
	if b.Len() != len(own) {
		return false
	}
	for i := range own {
		if m := b.Member(own[i].Key()); m.Key() == "" || m.Value() != own[i].Value() {
			return false
		}
	}
	return true
}

// FromBaggage returns the tag that the gray.* members of b spell, the zero Tag
// and no error where it has none. The error is a [*PairError].
func FromBaggage(b baggage.Baggage) (Tag, error) {
	if b.Len() == 0 || !hasMembers(b) {
		return Tag{}, nil
	}
	pairs := make(map[string]string)
	for _, m := range b.Members() {
		if key, ok := strings.CutPrefix(m.Key(), MemberPrefix); ok {
			pairs[key] = m.Value()
		}
	}
	return New(pairs)
}

func hasMembers(b baggage.Baggage) bool {
	for _, m := range b.Members() {
		if strings.HasPrefix(m.Key(), MemberPrefix) {
			return true
		}
	}
	return false
}

// fit tells whether m fits beside b into the limit of bytes. The exact length
// is worked out only where an upper bound does not settle it.
func (m *members) fit(b baggage.Baggage) bool {
	n := len(b.String()) + 1
	if n+m.bytes <= maxBaggageBytes {
		return true
	}
	return n+len(m.bag.String()) <= maxBaggageBytes
}
