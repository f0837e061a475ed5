package rollout

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"
)

// Elector lets one of several candidates lead at a time: several gateways run
// the same controller, and one of them moves the plans. Implementations are safe
// for concurrent use; each call of Lead is a candidate of its own. Package
// rollouttest tests them.
type Elector interface {
	// Lead waits until this candidate leads, and runs fn for as long as it does.
	// The context of fn ends when leadership is lost or cannot be proven any
	// longer, with an [ErrLost] as its cause, and when ctx ends. fn has to return
	// soon after that: the next leader does not wait for it.
	//
	// Where leadership was lost, what fn returned counts for nothing, and Lead
	// waits to lead again. Where fn returns while it leads, leadership is given up
	// and Lead returns the error of fn. When ctx ends, leadership is given up once
	// fn has returned, and Lead returns the error of ctx. Other errors say that
	// this candidate will never lead.
	Lead(ctx context.Context, fn func(context.Context) error) error
	// Leader says who leads, the zero Leader where nobody does.
	Leader(ctx context.Context) (Leader, error)
}

// ErrLost is, or is wrapped by, the cause of the end of a leader's context
// ([context.Cause]) where leadership was lost.
var ErrLost = errors.New("leadership lost")

// Leader says who leads, for people: nothing is decided by it.
type Leader struct {
	// ID names the candidate.
	ID string `json:"id"`
	// Host is the name of its machine.
	Host string `json:"host,omitempty"`
	// Since is when it began to lead, by its own clock.
	Since time.Time `json:"since,omitzero"`
}

// NewLeader returns what a candidate says of itself when it begins to lead now.
// An id of "" becomes HOST:PID.
func NewLeader(id string) Leader {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if id == "" {
		id = host + ":" + strconv.Itoa(os.Getpid())
	}
	return Leader{ID: id, Host: host, Since: time.Now().UTC().Round(0)}
}
