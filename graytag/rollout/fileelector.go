package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"
)

// FileElector elects among the processes of one machine by a lock on a file: for
// rules in a file. It is safe for concurrent use; create one with
// [NewFileElector].
//
// The kernel releases the lock when the leader dies, whatever way, and the next
// one leads within half a second. The file says who leads; it stays, and must not
// be removed: the leader notices that within a second, but until then there may
// be two. A network file system may not honour the lock.
type FileElector struct {
	path string
	id   string
}

var _ Elector = (*FileElector)(nil)

const (
	// lockPoll is how often a candidate tries to take the lock: the kernel's own
	// waiting cannot be called off.
	lockPoll = 250 * time.Millisecond
	// filePoll is how often a leader looks whether its file is still there.
	filePoll = 500 * time.Millisecond
	// maxLeaderBytes bounds what is read of who leads.
	maxLeaderBytes = 4096
)

// NewFileElector returns an elector that locks the file at path, which is created
// where it is not there; its folder has to be. Take a file of its own, RULES.leader
// beside a rule.FileStore for instance. Its leaders are called id; see [NewLeader].
func NewFileElector(path, id string) *FileElector {
	return &FileElector{path: path, id: id}
}

// Lead implements [Elector]. It returns an error where the file cannot be opened
// or locked; on systems without flock, Windows among them, that is
// [errors.ErrUnsupported].
func (e *FileElector) Lead(ctx context.Context, fn func(context.Context) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := e.lock(ctx)
		if err != nil {
			return err
		}
		lost, err := e.lead(ctx, f, fn)
		if !lost {
			return err
		}
	}
}

// lead runs fn while the lock is held.
func (e *FileElector) lead(ctx context.Context, f *os.File, fn func(context.Context) error) (lost bool, err error) {
	defer f.Close() // releases the lock
	defer func() { _ = f.Truncate(0) }()
	data, err := json.Marshal(NewLeader(e.id))
	if err != nil {
		return false, fmt.Errorf("rollout: lead: %w", err)
	}
	if err := f.Truncate(0); err != nil {
		return false, fmt.Errorf("rollout: lead: %w", err)
	}
	if _, err := f.WriteAt(append(data, '\n'), 0); err != nil {
		return false, fmt.Errorf("rollout: lead: %w", err)
	}
	return lead(ctx, fn, func(ctx context.Context) error {
		tick := time.NewTicker(filePoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			if !e.isAt(f) {
				return fmt.Errorf("rollout: %w: %s is not the file any more that was locked", ErrLost, e.path)
			}
		}
	})
}

// lock waits for the lock until ctx ends.
func (e *FileElector) lock(ctx context.Context) (*os.File, error) {
	for {
		f, err := os.OpenFile(e.path, os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return nil, fmt.Errorf("rollout: lead: %w", err)
		}
		got, err := tryLock(f, true)
		if err == nil && got && e.isAt(f) {
			return f, nil
		}
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("rollout: lead: lock %s: %w", e.path, err)
		}
		t := time.NewTimer(lockPoll - rand.N(lockPoll/4))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

// isAt tells whether f is the file at the path, not one that was removed.
func (e *FileElector) isAt(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(e.path)
	return err == nil && os.SameFile(held, there)
}

// Leader implements [Elector].
func (e *FileElector) Leader(context.Context) (Leader, error) {
	f, err := os.Open(e.path)
	if errors.Is(err, os.ErrNotExist) {
		return Leader{}, nil
	}
	if err != nil {
		return Leader{}, fmt.Errorf("rollout: leader: %w", err)
	}
	defer f.Close()
	// A lock that can be shared is one that no leader holds.
	free, err := tryLock(f, false)
	if err != nil {
		return Leader{}, fmt.Errorf("rollout: leader: lock %s: %w", e.path, err)
	}
	if free {
		return Leader{}, nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxLeaderBytes))
	if err != nil {
		return Leader{}, fmt.Errorf("rollout: leader: %w", err)
	}
	var l Leader
	if json.Unmarshal(data, &l) != nil || l.ID == "" {
		l.ID = "unknown" // it has only just begun
	}
	return l, nil
}
