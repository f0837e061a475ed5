package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// Difference is one place where two rule documents differ.
type Difference struct {
	// Path names the place; rules go by their id, as in rules[app-10pct].percent. It
	// is "" for the document as a whole.
	Path string `json:"path"`
	// Before and After are JSON, cut off where they are long; "" is not there. Of a
	// long list of strings, they are what went and what came.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// MaxDifferences bounds what [Diff] returns.
const MaxDifferences = 200

const (
	maxShownBytes = 300  // of each of its texts
	maxPathBytes  = 4096 // deeper down, where no rule set is, values differ as a whole
)

// Diff returns where two rule documents differ, at most MaxDifferences places, in
// the order of their paths. Their texts are cut to 300 bytes. What is no JSON differs as a whole.
func Diff(before, after []byte) []Difference {
	if bytes.Equal(before, after) {
		return nil
	}
	a, errA := value(before)
	b, errB := value(after)
	if errA != nil || errB != nil || !json.Valid(before) || !json.Valid(after) { // value stops at the end of the first one
		return []Difference{{Before: plain(before), After: plain(after)}}
	}
	var d differ
	d.compare("", a, b)
	return d.list
}

type differ struct{ list []Difference }

func (d *differ) add(path, before, after string) {
	if len(d.list) < MaxDifferences {
		d.list = append(d.list, Difference{Path: path, Before: before, After: after})
	}
}

func (d *differ) compare(path string, a, b any) {
	if len(path) < maxPathBytes {
		switch x := a.(type) {
		case map[string]any:
			if y, ok := b.(map[string]any); ok {
				d.objects(path, x, y)
				return
			}
		case []any:
			if y, ok := b.([]any); ok {
				d.arrays(path, x, y)
				return
			}
		}
	}
	if before, after := text(a), text(b); before != after {
		d.add(path, shown(before), shown(after))
	}
}

func (d *differ) objects(path string, a, b map[string]any) {
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		at := shorten(name, 128)
		if path != "" {
			at = path + "." + at
		}
		x, inA := a[name]
		y, inB := b[name]
		switch {
		case !inA:
			d.add(at, "", shown(text(y)))
		case !inB:
			d.add(at, shown(text(x)), "")
		default:
			d.compare(at, x, y)
		}
	}
}

func (d *differ) arrays(path string, a, b []any) {
	if x, y, ok := byID(a, b); ok {
		d.identified(path, x, y)
		return
	}
	if stringsOnly(a) && stringsOnly(b) {
		d.lists(path, a, b)
		return
	}
	for i := range max(len(a), len(b)) {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case i >= len(a):
			d.add(at, "", shown(text(b[i])))
		case i >= len(b):
			d.add(at, shown(text(a[i])), "")
		default:
			d.compare(at, a[i], b[i])
		}
	}
}

// byID returns the elements of two arrays by their ids, where all have one.
func byID(a, b []any) (x, y map[string]any, ok bool) {
	index := func(list []any) (map[string]any, bool) {
		m := make(map[string]any, len(list))
		for _, e := range list {
			o, _ := e.(map[string]any)
			id, ok := o["id"].(string)
			if _, twice := m[id]; !ok || twice {
				return nil, false
			}
			m[id] = o
		}
		return m, true
	}
	x, okA := index(a)
	y, okB := index(b)
	return x, y, okA && okB && len(a)+len(b) > 0
}

func (d *differ) identified(path string, a, b map[string]any) {
	names := maps.Clone(a)
	maps.Copy(names, b)
	for _, id := range slices.Sorted(maps.Keys(names)) {
		at := fmt.Sprintf("%s[%s]", path, shorten(id, 128))
		x, inA := a[id]
		y, inB := b[id]
		switch {
		case !inA:
			d.add(at, "", shown(text(y)))
		case !inB:
			d.add(at, shown(text(x)), "")
		default:
			d.compare(at, x, y)
		}
	}
}

func stringsOnly(list []any) bool {
	return !slices.ContainsFunc(list, func(v any) bool { _, ok := v.(string); return !ok })
}

// lists compares lists of names, of which there may be 100,000.
func (d *differ) lists(path string, a, b []any) {
	if before, after := text(a), text(b); len(before) <= maxShownBytes && len(after) <= maxShownBytes {
		if before != after {
			d.add(path, before, after)
		}
		return
	}
	went, came := without(a, b), without(b, a)
	switch {
	case len(went)+len(came) > 0:
		d.add(path, counted(went), counted(came))
	case text(a) != text(b):
		d.add(path, "in another order", "")
	}
}

func without(a, b []any) (list []any) {
	in := make(map[any]bool, len(b))
	for _, v := range b {
		in[v] = true
	}
	for _, v := range a {
		if !in[v] {
			list = append(list, v)
		}
	}
	return list
}

func counted(list []any) string {
	if len(list) == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %s", len(list), shown(text(list[:min(len(list), 20)])))
}

// text is v as compact JSON.
func text(v any) string {
	b, err := encode(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

func shown(s string) string { return shorten(s, maxShownBytes) }

func plain(data []byte) string {
	var b bytes.Buffer
	if json.Compact(&b, data) == nil {
		data = b.Bytes()
	}
	return shown(string(data))
}
