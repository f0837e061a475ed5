package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rollout"
)

// Elector elects one leader by a lock on a key of Consul KV, which a session with
// a TTL holds. It is safe for concurrent use; each call of [Elector.Lead] is a
// candidate with a session of its own. Create one with [Registry.Elector].
//
// # No two leaders
//
// Consul keeps a session for at least its TTL after it has received a renewal. The
// leader counts from the moment before it sent the last renewal that was answered,
// on its monotonic clock, and gives up a tenth of the TTL before the TTL is over:
// earlier than Consul can give the lock to anybody else, as long as the two clocks
// do not differ in speed by more than a tenth. The same holds for the last answer
// that showed the lock to be its own. Lock-delay adds a second before the next one
// leads, and Consul in practice waits for twice the TTL. The function that leads
// has that time to notice that its context has ended.
//
// Consul takes the lock away earlier where it is told to: when somebody destroys the
// session or deletes the key, and when the agent leaves the cluster, whose node takes
// its sessions with it. The leader hears of that at once through a blocking query;
// where it is cut off at the same time, only within the TTL. Where the lock itself has
// vanished, because its key was deleted or Consul has lost its data, a candidate that
// had seen it, or had not reached Consul before, waits for the TTL first; one that
// starts in that moment knows of nothing to wait for. Nor does a clock run while a
// machine is suspended, and a process that was stopped may do one thing more before it
// knows. Rules are safe from all this by their own means: [RuleStore.Put] refuses what
// was decided on another revision.
//
// # Who leads after whom
//
// A leader whose context ends releases the lock, and the next one has it at once: a
// lock that was released has no lock-delay. After a leader that has died, or is cut
// off, Consul releases the lock after twice the TTL at the latest, 21 seconds with
// the default TTL and the lock-delay; it counts anew when its own servers elect
// another leader. The health of the agent's node does not count: Consul would give
// the lock of a node to another one that only seems to be dead.
//
// Candidates wait in a blocking query. They hold no session while they wait.
type Elector struct {
	r   *Registry
	key string
	id  string
	ttl time.Duration
}

var _ rollout.Elector = (*Elector)(nil)

// ElectorOption configures an [Elector].
type ElectorOption interface{ applyElector(*electorConfig) }

type electorOptionFunc func(*electorConfig)

func (f electorOptionFunc) applyElector(c *electorConfig) { f(c) }

type electorConfig struct {
	id  string
	ttl time.Duration
	err error
}

// WithCandidate sets the id under which the leader is known; the default, and what
// "" means, is the host and the process id.
func WithCandidate(id string) ElectorOption {
	return electorOptionFunc(func(c *electorConfig) { c.id = id })
}

// WithSessionTTL sets the TTL of the leader's session, from 10 seconds, the
// default, to 24 hours: Consul's bounds, the lower one as session_ttl_min has it by
// default. A leader that has died is replaced after twice that time.
func WithSessionTTL(d time.Duration) ElectorOption {
	return electorOptionFunc(func(c *electorConfig) {
		if d < minSessionTTL || d > maxSessionTTL {
			c.err = fmt.Errorf("consul: WithSessionTTL: expected %v to %v, got %v", minSessionTTL, maxSessionTTL, d)
			return
		}
		c.ttl = d
	})
}

const (
	minSessionTTL = 10 * time.Second
	maxSessionTTL = 24 * time.Hour
	// lockDelay keeps the lock from the next one after a session was invalidated.
	lockDelay = time.Second
	// lockPoll is how often a candidate tries while a lock-delay may be on.
	lockPoll = 200 * time.Millisecond
	// releaseTimeout bounds each of two tries to release the lock.
	releaseTimeout = time.Second
	// maxLeaderLen bounds what is believed of who leads, in bytes.
	maxLeaderLen = 256
)

// Elector returns the elector for the lock at key, such as "graylane/leader". All
// candidates for one thing take the same key, which nothing else may use; it need
// not be there. It makes no request. See [Registry.RuleStore] for what a key is.
//
// The elector works until the registry is closed. Closing waits for the function
// that leads, and for the release of its lock: never close the registry from it.
func (r *Registry) Elector(key string, opts ...ElectorOption) (*Elector, error) {
	if reason := checkKey(key); reason != "" {
		return nil, fmt.Errorf("consul: elector: key %q: %s", shorten(key, 64), reason)
	}
	c := electorConfig{ttl: minSessionTTL}
	for _, o := range opts {
		if o != nil {
			o.applyElector(&c)
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	return &Elector{r: r, key: key, id: shorten(c.id, maxLeaderLen), ttl: c.ttl}, nil
}

// Lead implements [rollout.Elector]. It tries on for as long as Consul cannot be
// reached or refuses, with a growing delay of at most 5 s and a bounded log. When
// the registry is closed it returns [ErrClosed].
func (e *Elector) Lead(ctx context.Context, fn func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !e.r.begin() {
		return ErrClosed
	}
	defer e.r.work.Done()
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.r.ctx, cancel)()

	c := newCandidate(e)
	for {
		if t := c.campaign(running); t != nil {
			if done, err := c.lead(running, t, fn); done {
				return err
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case running.Err() != nil:
			return ErrClosed
		}
	}
}

// Leader implements [rollout.Elector]: it asks Consul. Since is by the leader's own
// clock.
func (e *Elector) Leader(ctx context.Context) (rollout.Leader, error) {
	if err := ctx.Err(); err != nil {
		return rollout.Leader{}, err
	}
	if !e.r.begin() {
		return rollout.Leader{}, ErrClosed
	}
	defer e.r.work.Done()
	ctx, cancel := withLimit(ctx)
	defer cancel()
	defer context.AfterFunc(e.r.ctx, cancel)()
	p, err := e.r.readKV(ctx, e.key)
	if err == nil {
		err = checkLock(p)
	}
	if err != nil {
		return rollout.Leader{}, e.errorf(err, "read")
	}
	if p == nil || p.Session == "" {
		return rollout.Leader{}, nil
	}
	var l rollout.Leader
	if json.Unmarshal(p.Value, &l) != nil || l.ID == "" {
		// Somebody else's tool holds it.
		return rollout.Leader{ID: "session " + p.Session}, nil
	}
	l.ID, l.Host = shorten(l.ID, maxLeaderLen), shorten(l.Host, maxLeaderLen)
	return l, nil
}

// errNoLock keeps a lock from being written over what is something else.
var errNoLock = errors.New("the key holds something that is no lock: a leader lock needs a key of its own")

// checkLock tells whether a key may be used: locks have the flags that Consul's own
// tools give them.
func checkLock(p *api.KVPair) error {
	if p != nil && p.Flags != api.LockFlagValue {
		return errNoLock
	}
	return nil
}

func (e *Elector) errorf(err error, op string) error {
	return e.r.errorf(err, "%s leader lock %q", op, e.key)
}
