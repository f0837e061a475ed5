package consul

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rollout"
)

// candidate is one call of Lead.
//
// It does not use api.Lock: the requests of that have no limit, so that a leader
// whose connection is swallowed never hears that it has lost the lock; the end of
// its renewals is told to nobody; its sessions hang on the health of the agent's
// node unless one makes them oneself; and after a lock-delay it sleeps for 5 s.
type candidate struct {
	e *Elector

	retry   backoff
	unasked bucket // answers that brought nothing new
	left    *term  // is over, and its lock may not be released yet
	seen    uint64 // the highest revision of the lock

	trouble    trouble // no answer, or one that does not do
	holding    trouble // the same while it leads
	losses     trouble // of leadership
	unreleased trouble // locks
}

func newCandidate(e *Elector) *candidate {
	logger := e.r.logger(slog.String("key", e.key))
	return &candidate{
		e:       e,
		retry:   backoff{low: e.r.config.retryMin, high: min(e.r.config.retryMax, ruleRetryMax)},
		unasked: bucket{burst: 20, interval: 200 * time.Millisecond},

		trouble:    trouble{logger: logger},
		holding:    trouble{logger: logger},
		losses:     trouble{logger: logger},
		unreleased: trouble{logger: logger},
	}
}

// term is the time of one leader.
type term struct {
	session string
	leader  rollout.Leader
	proven  time.Time // before the session was asked for
}

func (c *candidate) pair(t *term, value []byte) *api.KVPair {
	return &api.KVPair{Key: c.e.key, Value: value, Flags: api.LockFlagValue, Session: t.session}
}

// campaign waits for the lock and takes it. It returns nil when ctx ends.
func (c *candidate) campaign(ctx context.Context) *term {
	var index uint64
	for ctx.Err() == nil {
		asked := index
		p, meta, err := c.e.r.getKV(ctx, c.e.key, asked, ruleWait, limitOf(asked, ruleWait, probeTimeout))
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = checkLock(p)
		}
		if err != nil {
			index = 0
			c.seen = max(c.seen, 1) // there may have been one
			c.e.r.clients.idleKV()
			if asked > 0 && errors.Is(err, context.DeadlineExceeded) {
				continue // that connection was dead, perhaps
			}
			if !c.failed(ctx, err, "wait for") {
				return nil
			}
			continue
		}
		if p != nil && c.left != nil && p.Session == c.left.session {
			c.release(c.left)
			index = 0
			if c.left != nil && !sleep(ctx, c.retry.next()) {
				return nil
			}
			continue
		}
		before := c.seen
		c.seen = revisionOf(p)
		if p != nil && p.Session != "" {
			c.over()
			index = nextIndex(asked, meta.LastIndex)
			if !c.pause(ctx, index) {
				return nil
			}
			continue
		}
		index = 0
		if c.seen < before {
			// Without the lock-delay that Consul has forgotten with the lock.
			c.losses.logger.Warn("consul: the leader lock has vanished, whoever held it may not know yet", slog.Duration("wait", c.e.ttl))
			if !sleep(ctx, c.e.ttl) {
				return nil
			}
			continue
		}
		t, err := c.acquire(ctx)
		if t != nil {
			c.over()
			return t
		}
		if err != nil && ctx.Err() == nil && !c.failed(ctx, err, "take") {
			return nil
		}
	}
	return nil
}

// nextIndex returns the index to wait for after an answer. One that went backwards, as
// after the loss of Consul's data, begins anew.
func nextIndex(asked, index uint64) uint64 {
	if index < asked {
		return 0
	}
	return index
}

// pause keeps answers that bring nothing new from making a busy loop.
func (c *candidate) pause(ctx context.Context, index uint64) bool {
	if index == 0 {
		return sleep(ctx, c.retry.next())
	}
	return sleep(ctx, c.unasked.delay(time.Now()))
}

// limitOf bounds a query by limit, one that waits by what Consul may hold it, a
// sixteenth longer than it was asked to, and a second for the way.
func limitOf(index uint64, wait, limit time.Duration) time.Duration {
	if index == 0 {
		return limit
	}
	return wait + wait/16 + time.Second
}

// failed logs an error and waits before the next try. It returns false when ctx
// ends.
func (c *candidate) failed(ctx context.Context, err error, op string) bool {
	c.trouble.failed("consul: cannot stand for leader, trying on", c.e.errorf(err, op))
	return sleep(ctx, c.retry.next())
}

func (c *candidate) over() {
	c.trouble.over("consul: standing for leader again")
	c.retry.reset()
}

// acquire tries to take a lock that nobody holds. Where somebody else was quicker
// it returns nil and no error.
func (c *candidate) acquire(ctx context.Context) (*term, error) {
	t := &term{proven: time.Now()}
	var err error
	if t.session, err = c.createSession(ctx); err != nil {
		return nil, err
	}
	took := false
	defer func() {
		if !took {
			c.release(t)
		}
	}()
	// The lock may be free and yet not to be had, for the time of a lock-delay.
	for time.Since(t.proven) < c.e.ttl/2 {
		t.leader = rollout.NewLeader(c.e.id)
		value, err := json.Marshal(t.leader)
		if err != nil {
			return nil, err
		}
		if took, err = c.acquireOnce(ctx, c.pair(t, value)); took || err != nil {
			return t.orNil(took), err
		}
		p, _, err := c.e.r.getKV(ctx, c.e.key, 0, 0, probeTimeout)
		if err != nil || p != nil && p.Session != "" {
			return nil, err
		}
		if !sleep(ctx, lockPoll-rand.N(lockPoll/4)) {
			break
		}
	}
	return nil, nil
}

func (t *term) orNil(ok bool) *term {
	if !ok {
		return nil
	}
	return t
}

func (c *candidate) createSession(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	id, _, err := c.e.r.clients.kv.Session().CreateNoChecks(&api.SessionEntry{
		Name:      shorten("graylane leader "+c.e.key, maxLeaderLen),
		TTL:       c.e.ttl.String(),
		LockDelay: lockDelay,
		Behavior:  api.SessionBehaviorRelease,
	}, (&api.WriteOptions{}).WithContext(ctx))
	return id, err
}

func (c *candidate) acquireOnce(ctx context.Context, p *api.KVPair) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	took, _, err := c.e.r.clients.kv.KV().Acquire(p, (&api.WriteOptions{}).WithContext(ctx))
	return took, err
}

// release gives the lock back, where the session has it, and ends the session: in
// this order, for a session that ends with a lock leaves a lock-delay behind.
// Where Consul cannot be reached it is tried again when it can be; else the session
// ends by itself.
func (c *candidate) release(t *term) {
	c.left = nil
	var err error
	for range 2 {
		if err = c.releaseOnce(t); err == nil {
			c.unreleased.over("consul: the leader lock is released")
			return
		}
		c.e.r.clients.idleKV()
	}
	c.left = t
	c.unreleased.failed("consul: cannot release the leader lock; if that lasts, its session will expire", c.e.errorf(err, "release"))
}

func (c *candidate) releaseOnce(t *term) error {
	// What is being ended must not keep the lock from being released.
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	w := (&api.WriteOptions{}).WithContext(ctx)
	if !t.leader.Since.IsZero() {
		_, _, err := c.e.r.clients.kv.KV().Release(c.pair(t, nil), w)
		if err != nil && statusCode(err) != http.StatusForbidden { // by the end of its session then
			return err
		}
	}
	_, err := c.e.r.clients.kv.Session().Destroy(t.session, w)
	return err
}
