package rollout

import (
	"maps"
	"slices"
	"time"
)

// Phase names where a plan is.
type Phase string

// The phases.
const (
	// Pending has not started: nobody has touched the rules.
	Pending Phase = "pending"
	// InternalOnly is testers alone; the percentages are 0.
	InternalOnly Phase = "internal"
	// Running is at a stage, and goes on after its hold.
	Running Phase = "running"
	// Paused stays where it is until somebody resumes it; a breach still counts.
	Paused Phase = "paused"
	// RolledBack has its rules disabled until somebody restores or starts it.
	RolledBack Phase = "rolled_back"
	// Frozen stays where it is, whatever the samples say, until somebody decides.
	Frozen Phase = "frozen"
	// Done is at 100 %, and stays there.
	Done Phase = "done"
)

var phases = []Phase{Pending, InternalOnly, Running, Paused, RolledBack, Frozen, Done}

// live tells whether the plan is under way.
func (p Phase) live() bool {
	return p == InternalOnly || p == Running || p == Paused || p == Frozen
}

// governs tells whether no other plan may have its rules.
func (p Phase) governs() bool { return p.live() || p == Done }

// State is where a plan is, since when, and who has put it there. The zero State
// is pending.
type State struct {
	Phase Phase
	// Stage counts from 1; 0 is testers alone, or not started.
	Stage int
	// Since is when the phase, or the stage in it, began: a hold counts from here.
	Since time.Time
	// Entered is when the percentage came about. Samples from before do not count.
	// It is Since, but for a plan that was paused, resumed or frozen since.
	Entered time.Time
	// Who and Why are for people.
	Who, Why string
	// Before is what a rollback has interrupted, for CommandRestore; nil in other
	// phases, and where the plan had not started. It has no Before itself.
	Before *State
	// Suggested are the suggestions that were made about this stage: each goes out once.
	Suggested []Kind
	// Baseline is how stable was when the stage began, by service: what gray is
	// compared with once nobody is stable any more.
	Baseline map[string]Baseline
}

// Baseline is how stable was in a window.
type Baseline struct {
	Requests uint64
	Errors   uint64
	P99      time.Duration
}

func (s State) clone() State {
	s.Baseline = maps.Clone(s.Baseline)
	s.Suggested = slices.Clone(s.Suggested)
	if s.Before != nil {
		b := s.Before.clone()
		s.Before = &b
	}
	return s
}

// phase is Phase, with the zero State as pending.
func (s *State) phase() Phase {
	if s.Phase == "" {
		return Pending
	}
	return s.Phase
}

// Note says who does something, why, and when.
type Note struct {
	Who string
	Why string
	At  time.Time
}

// cut makes n fit into a state and into the history of a store.
func (n Note) cut() Note {
	n.Who, n.Why = shorten(n.Who, MaxWhoBytes), shorten(n.Why, MaxWhyBytes)
	n.At = n.At.UTC().Round(0)
	return n
}
