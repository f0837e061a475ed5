package rule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/graylane/graylane/graytag"
)

// Error is one fault of a rule set. [Parse] and [NewEngine] report all faults
// at once; take them apart with [Faults] or errors.As.
type Error struct {
	// Path says where, as in rules[3].match[0].op; it is "" for the document as
	// a whole.
	Path string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error says where, what is wrong and what was expected.
func (e *Error) Error() string { return "rule: " + e.text() }

func (e *Error) text() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + ": " + e.Reason
}

// Faults returns every [*Error] that err holds, in the order of the document;
// nil where there is none.
func Faults(err error) []*Error {
	if bad := (*invalidError)(nil); errors.As(err, &bad) {
		return slices.Clone(bad.faults)
	}
	if one := (*Error)(nil); errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

// invalidError is a rule set with its faults, one at least.
type invalidError struct{ faults []*Error }

// shownFaults bounds the text of an error, and so a line of a log; the faults
// themselves are all there.
const shownFaults = 20

func (e *invalidError) Error() string {
	var b strings.Builder
	b.WriteString("rule: ")
	for i, fault := range e.faults {
		if i == shownFaults {
			fmt.Fprintf(&b, "; and %d more", len(e.faults)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(fault.text())
	}
	return b.String()
}

func (e *invalidError) Unwrap() []error {
	all := make([]error, len(e.faults))
	for i, fault := range e.faults {
		all[i] = fault
	}
	return all
}

// faults gathers what is wrong with a document. The first fault at a path
// counts, and none below it: what follows from a fault is no news.
type faults struct {
	list []*Error
	// paths holds the paths that are done with, and whether all below is, too.
	paths map[string]bool
	// misspelt holds the fields that are there in the wrong case.
	misspelt map[string]bool
	// size adds up the regular expressions.
	size int
	tags map[string]graytag.Tag // those that are good
}

// tag is graytag.Parse; rules share tags.
func (f *faults) tag(text string) (graytag.Tag, error) {
	if tag, ok := f.tags[text]; ok {
		return tag, nil
	}
	tag, err := graytag.Parse(text)
	if err == nil {
		if f.tags == nil {
			f.tags = map[string]graytag.Tag{}
		}
		f.tags[text] = tag
	}
	return tag, err
}

func (f *faults) add(path, reason string) {
	if !f.full() && !f.done(path) {
		f.mute(path)
		f.list = append(f.list, &Error{Path: path, Reason: reason})
	}
}

// maxFaults bounds what a document made of faults costs.
const maxFaults = 10_000

// full tells that no more faults are taken.
func (f *faults) full() bool { return len(f.list) >= maxFaults }

// addMissing is add for a field that is required. Where it is there in the wrong
// case, that is fault enough.
func (f *faults) addMissing(path, reason string) {
	if !f.misspelt[path] {
		f.add(path, reason)
	}
}

// addOnly is add for a fault that says nothing about what is below path.
func (f *faults) addOnly(path, reason string) {
	if !f.full() && !f.done(path) {
		f.mute(path)
		f.paths[path] = false
		f.list = append(f.list, &Error{Path: path, Reason: reason})
	}
}

func (f *faults) done(path string) bool {
	if _, at := f.paths[path]; at {
		return true
	}
	between := ".["
	if rest, ok := strings.CutPrefix(path, "attributes."); ok && strings.ContainsAny(rest, between) {
		between = "[" // names hold dots
		if f.paths["attributes"] {
			return true
		}
	}
	for p := path; ; {
		i := strings.LastIndexAny(p, between)
		if i < 0 {
			return false
		}
		if p = p[:i]; f.paths[p] {
			return true
		}
	}
}

func (f *faults) addf(path, format string, args ...any) {
	f.add(path, fmt.Sprintf(format, args...))
}

func (f *faults) excuse(path string) {
	if f.misspelt == nil {
		f.misspelt = map[string]bool{}
	}
	f.misspelt[path] = true
}

// mute keeps faults at path and below from being reported.
func (f *faults) mute(path string) {
	if f.paths == nil {
		f.paths = map[string]bool{}
	}
	f.paths[path] = true
}

// err returns what was gathered in the order of the document.
func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	slices.SortStableFunc(f.list, func(a, b *Error) int { return comparePaths(a.Path, b.Path) })
	if f.full() {
		f.list = append(f.list, &Error{Reason: fmt.Sprintf("more than %d faults: the others are not listed", maxFaults)})
	}
	return &invalidError{f.list}
}

// comparePaths compares as strings do, but numbers by their value.
func comparePaths(a, b string) int {
	for a != "" && b != "" {
		na, nb := leadingDigits(a), leadingDigits(b)
		if na > 0 && nb > 0 {
			x, _ := strconv.Atoi(a[:na])
			y, _ := strconv.Atoi(b[:nb])
			if c := cmp.Compare(x, y); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if c := cmp.Compare(a[0], b[0]); c != 0 {
			return c
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func leadingDigits(s string) int {
	n := 0
	for n < len(s) && n < 9 && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
