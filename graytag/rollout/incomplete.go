package rollout

import (
	"fmt"
	"time"
)

// IncompleteError says that a source does not know everything about a window.
type IncompleteError struct {
	From, To time.Time
	// Reason says what is not known.
	Reason string
	// Since is from when on everything is known; zero where that is not known either.
	// A fail is looked for in the rest of the window then.
	Since time.Time
}

// Error names the window and the reason.
func (e *IncompleteError) Error() string {
	return fmt.Sprintf("rollout: the requests from %s to %s are not all known: %s",
		e.From.UTC().Format(time.RFC3339), e.To.UTC().Format(time.RFC3339), e.Reason)
}
