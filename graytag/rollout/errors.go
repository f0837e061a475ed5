package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Error is one fault of a plan.
type Error struct {
	// Path says where in the rule document, as in plans.v2.stages[1].percent.
	Path string
	// Reason says what is wrong and what was expected.
	Reason string
}

// Error says where, what is wrong and what was expected.
func (e *Error) Error() string { return "rollout: " + e.Path + ": " + e.Reason }

// Faults returns every [*Error] that err holds, in the order they were found; nil where there is none.
func Faults(err error) []*Error {
	if bad := (*invalidError)(nil); errors.As(err, &bad) {
		return slices.Clone(bad.faults)
	}
	if one := (*Error)(nil); errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

// invalidError is one fault or more.
type invalidError struct{ faults []*Error }

// shownFaults bounds the text of an error, maxFaults what is gathered per plan.
const (
	shownFaults = 20
	maxFaults   = 1000
)

func (e *invalidError) Error() string {
	var b strings.Builder
	b.WriteString("rollout: ")
	for i, f := range e.faults {
		if i == shownFaults {
			fmt.Fprintf(&b, "; and %d more", len(e.faults)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(f.Path + ": " + f.Reason)
	}
	return b.String()
}

func (e *invalidError) Unwrap() []error {
	all := make([]error, len(e.faults))
	for i, f := range e.faults {
		all[i] = f
	}
	return all
}

// faults gathers what is wrong, the first fault at each path.
type faults struct {
	list []*Error
	at   map[string]bool
}

func (f *faults) addf(path, format string, args ...any) {
	if len(f.list) >= maxFaults || f.at[path] {
		return
	}
	if f.at == nil {
		f.at = map[string]bool{}
	}
	f.at[path] = true
	f.list = append(f.list, &Error{Path: path, Reason: fmt.Sprintf(format, args...)})
}

// has tells whether something is wrong at or below path.
func (f *faults) has(path string) bool {
	return slices.ContainsFunc(f.list, func(e *Error) bool {
		rest, below := strings.CutPrefix(e.Path, path)
		return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	return &invalidError{f.list}
}

// NoPlanError says that a document has no such plan.
type NoPlanError struct{ Plan string }

// Error names the plan.
func (e *NoPlanError) Error() string {
	return fmt.Sprintf("rollout: no plan %q in the rule document", shorten(e.Plan, 128))
}

// CommandError says that a command does not fit the phase of a plan, or is none.
type CommandError struct {
	Plan    string
	Command Command
	Phase   Phase
}

// Error names the command and the phase.
func (e *CommandError) Error() string {
	if finish := e.Command == commandFinish && e.Phase != Done; !finish && !slices.Contains(Commands(), e.Command) {
		return fmt.Sprintf("rollout: %s: no command %q; there are %v", e.Plan, shorten(string(e.Command), 64), Commands())
	}
	return fmt.Sprintf("rollout: %s: a plan that is %s cannot %s", e.Plan, e.Phase, e.Command)
}

// shorten cuts a text to n bytes, without breaking a character.
func shorten(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len("…")], "") + "…"
}

// at is the path of an element.
func at(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
