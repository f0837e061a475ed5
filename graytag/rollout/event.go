package rollout

import (
	"fmt"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Kind names what has happened to a plan, or to the whole rule set.
type Kind string

// The kinds of events.
const (
	KindStarted    Kind = "started"
	KindPaused     Kind = "paused"
	KindResumed    Kind = "resumed"
	KindPromoted   Kind = "promoted" // by hand
	KindAdvanced   Kind = "advanced" // by its samples
	KindDone       Kind = "done"
	KindWentBack   Kind = "went_back" // by a breach, to the previous stage
	KindRolledBack Kind = "rolled_back"
	KindFrozen     Kind = "frozen"
	KindRestored   Kind = "restored"
	KindFinished   Kind = "finished" // the rules are cleared
	KindStopped    Kind = "stopped"
	KindUnstopped  Kind = "unstopped"
	// KindRevision is an old revision of the rule set that was put in force again.
	KindRevision Kind = "revision_restored"
	// The suggestions move nothing.
	KindSuggestAdvance Kind = "suggest_advance"
	KindSuggestBreach  Kind = "suggest_breach"
	// KindBlind: the source has failed for long, and a plan is not watched.
	KindBlind Kind = "blind"
	// KindUnwritten: a breach was found that cannot be written. Its rules are off in the
	// process that tells, and in force in others; it is written as soon as it can be.
	KindUnwritten Kind = "unwritten"
)

// Event says what has happened, for alerts and for the log.
type Event struct {
	Kind Kind `json:"kind"`
	// Plan is "" where the event is about the whole rule set.
	Plan string `json:"plan,omitempty"`
	// From and To are the states before and after.
	From State `json:"from,omitzero"`
	To   State `json:"to,omitzero"`
	// Percent is the share of users that is gray by the plan afterwards.
	Percent rule.Percent `json:"percent,omitzero"`
	Time    time.Time    `json:"time"`
	Who     string       `json:"who,omitempty"`
	Why     string       `json:"why,omitempty"`
	// Report is what the analysis said, where the event is its doing.
	Report *Report `json:"report,omitempty"`
	// Revision is the one of the document that was written; 0 where none was.
	Revision uint64 `json:"revision,omitempty"`
}

// Key is the same for the same event however often it is found: a suggestion is, at
// every evaluation. Alerts go out once for each key.
func (e *Event) Key() string {
	at := e.Time
	if !e.moves() {
		at = e.From.Since
	}
	return fmt.Sprintf("%s/%s/%s/%d/%d", e.Kind, e.Plan, e.From.phase(), e.From.Stage, at.UnixNano())
}

// moves tells whether the event is a change of a plan or of the rules.
func (e *Event) moves() bool {
	return e.Kind != KindSuggestAdvance && e.Kind != KindSuggestBreach && e.Kind != KindBlind && e.Kind != KindUnwritten
}

// Breach tells whether the event is a gray that was found worse than stable.
func (e *Event) Breach() bool { return e.Report != nil && e.Report.Verdict == VerdictFail }

var kindOf = map[Command]Kind{
	CommandStart: KindStarted, CommandPause: KindPaused, CommandResume: KindResumed, CommandPromote: KindPromoted,
	CommandRollback: KindRolledBack, CommandFreeze: KindFrozen, CommandRestore: KindRestored,
}
