package rollout

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
)

// A rule document is written by people, who lay it out as they like: what changes
// is spliced into its text, and all other bytes stay. The functions here work on
// text that [rule.Parse] has taken, which is valid JSON without a key that stands
// twice.

// member is a field of an object, or an element of an array, in a text.
type member struct {
	key   string // "" in an array
	begin int    // of the key, or of the element
	value int    // where the value begins
	end   int    // where it ends
}

// space goes past white space.
func space(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// skipString goes past the string that begins at i.
func skipString(text []byte, i int) int {
	for i++; text[i] != '"'; i++ {
		if text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue goes past the value that begins at i.
func skipValue(text []byte, i int) int {
	switch text[i] {
	case '"':
		return skipString(text, i)
	case '{', '[':
		for depth := 0; ; {
			switch text[i] {
			case '"':
				i = skipString(text, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			if i++; depth == 0 {
				return i
			}
		}
	}
	for i < len(text) && bytes.IndexByte([]byte(",]} \t\r\n"), text[i]) < 0 {
		i++
	}
	return i
}

// members returns what the object or array that begins at i holds.
func members(text []byte, i int) (list []member) {
	object := text[i] == '{'
	for i = space(text, i+1); text[i] != '}' && text[i] != ']'; {
		m := member{begin: i}
		if object {
			end := skipString(text, i)
			_ = json.Unmarshal(text[i:end], &m.key) // is valid
			i = space(text, end)                    // the colon
			i = space(text, i+1)
		}
		m.value = i
		m.end = skipValue(text, i)
		list = append(list, m)
		if i = space(text, m.end); text[i] == ',' {
			i = space(text, i+1)
		}
	}
	return list
}

// find returns the member with a key.
func find(list []member, key string) (member, bool) {
	i := slices.IndexFunc(list, func(m member) bool { return m.key == key })
	if i < 0 {
		return member{}, false
	}
	return list[i], true
}

// splice is a text and what is to be changed in it.
type splice struct {
	text  []byte
	edits []edit
}

type edit struct {
	from, to int
	with     []byte
}

func (s *splice) replace(from, to int, with []byte) {
	s.edits = append(s.edits, edit{from, to, with})
}

// set gives a field of the object that begins at i a value. A field that is new
// comes last, laid out as the one before it.
func (s *splice) set(i int, key string, v []byte) {
	list := members(s.text, i)
	if m, ok := find(list, key); ok {
		s.replace(m.value, m.end, v)
		return
	}
	quoted, _ := json.Marshal(key) // a string always can
	if len(list) == 0 {
		s.replace(i+1, i+1, slices.Concat(quoted, []byte(": "), v))
		return
	}
	last := list[len(list)-1]
	before := i + 1
	if len(list) > 1 {
		before = list[len(list)-2].end
	}
	lead := bytes.TrimLeft(s.text[before:last.begin], ",")
	if at := bytes.IndexByte(lead, ','); at >= 0 {
		lead = lead[at+1:]
	}
	if len(list) == 1 && len(lead) == 0 {
		lead = []byte(" ")
	}
	colon := s.text[skipString(s.text, last.begin):last.value]
	s.replace(last.end, last.end, slices.Concat([]byte(","), lead, quoted, colon, v))
}

// keep leaves only some members of the object or array that begins at i.
func (s *splice) keep(i int, wanted func(k int, m member) bool) {
	list := members(s.text, i)
	end := skipValue(s.text, i)
	if len(list) == 0 {
		return
	}
	out := []byte{s.text[i]}
	kept := 0
	for k, m := range list {
		if !wanted(k, m) {
			continue
		}
		before := i + 1
		if k > 0 {
			before = space(s.text, list[k-1].end) + 1 // past the comma
		}
		if kept > 0 {
			out = append(out, ',')
		}
		out = append(out, s.text[before:m.begin]...)
		out = append(out, s.text[m.begin:m.end]...)
		kept++
	}
	if kept == len(list) {
		return
	}
	if kept > 0 {
		out = append(out, s.text[list[len(list)-1].end:end-1]...)
	}
	s.replace(i, end, append(out, s.text[end-1]))
}

// bytes returns the text with all changes, none of which may overlap.
func (s *splice) bytes() []byte {
	slices.SortStableFunc(s.edits, func(a, b edit) int { return cmp.Compare(a.from, b.from) })
	var out []byte
	at := 0
	for _, e := range s.edits {
		out = append(append(out, s.text[at:e.from]...), e.with...)
		at = e.to
	}
	return append(out, s.text[at:]...)
}
