package consul

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rollout"
)

// lease ends a leader's context when leadership is not proven any longer, whatever
// its requests wait for. One goroutine uses it.
type lease struct {
	usable time.Duration // for which a proof is good
	alive  time.Time     // when the last renewal that was answered was sent
	held   time.Time     // the same for the last query that showed the lock to be ours
	timer  *time.Timer
}

func newLease(ttl time.Duration, from time.Time, end func()) *lease {
	l := &lease{usable: ttl - ttl/10, alive: from, held: from}
	l.timer = time.AfterFunc(l.left(), end)
	return l
}

// left returns for how long leadership is proven.
func (l *lease) left() time.Duration {
	oldest := l.alive
	if l.held.Before(oldest) {
		oldest = l.held
	}
	return l.usable - time.Since(oldest)
}

func (l *lease) renewed(sent time.Time) {
	l.alive = sent
	l.timer.Reset(l.left())
}

func (l *lease) confirmed(sent time.Time) {
	l.held = sent
	l.timer.Reset(l.left())
}

var (
	errNoSession = errors.New("the session is gone")
	errTaken     = errors.New("the lock was released")
	errUnproven  = errors.New("no answer that proves it")
)

func (c *candidate) lost(why error) error {
	return c.e.errorf(fmt.Errorf("%w: %w", rollout.ErrLost, why), "hold")
}

// lead runs fn for as long as t can be proven to hold the lock. Where fn returns
// while it leads, done is true, and err is what it returned.
func (c *candidate) lead(ctx context.Context, t *term, fn func(context.Context) error) (done bool, err error) {
	defer c.release(t)
	leading, end := context.WithCancelCause(ctx)
	l := newLease(c.e.ttl, t.proven, func() { end(c.lost(errUnproven)) })
	if l.left() <= 0 { // the timer may not have come to it yet
		end(c.lost(errUnproven))
	}
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		if why := c.keep(leading, t, l); why != nil {
			end(c.lost(why))
		}
	}()
	defer func() {
		end(nil)
		<-kept
		l.timer.Stop()
	}()
	if leading.Err() == nil {
		err = fn(leading)
	}
	if leading.Err() == nil {
		return true, err
	}
	if ctx.Err() == nil {
		c.losses.failed("consul: leadership lost", context.Cause(leading))
	}
	return false, nil
}

// keep renews the session and looks at the lock, in turns, until ctx ends, when it
// returns nil, or leadership is known to be lost.
func (c *candidate) keep(ctx context.Context, t *term, l *lease) error {
	// Short enough for a second try, and a third, before the proof is too old.
	wait := min(c.e.ttl/4, ruleWait)
	retry := backoff{low: min(c.e.r.config.retryMin, c.e.ttl/20), high: c.e.ttl / 10}
	var index uint64
	for {
		good, dead := true, false
		asked, sent := index, time.Now()
		p, meta, err := c.e.r.getKV(ctx, c.e.key, asked, wait, limitOf(asked, wait, c.keepLimit()))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			good, index = false, 0
			dead = asked > 0 && errors.Is(err, context.DeadlineExceeded)
			c.keepFailed(err, "look at")
		case p == nil || p.Session != t.session:
			return errTaken
		default:
			l.confirmed(sent)
			index = nextIndex(asked, meta.LastIndex)
		}

		sent = time.Now()
		known, err := c.renew(ctx, t)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			good = false
			c.keepFailed(err, "renew the session of")
		case !known:
			return errNoSession
		default:
			l.renewed(sent)
		}

		pause := c.unasked.delay(time.Now())
		switch {
		case good:
			c.holding.over("consul: the leader reaches Consul again")
			retry.reset()
			if index == 0 { // there is nothing to wait for
				pause = retry.next()
			}
		case !dead: // else through another connection, at once
			pause = retry.next()
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

func (c *candidate) keepFailed(err error, op string) {
	c.e.r.clients.idleKV()
	c.holding.failed("consul: the leader cannot prove that it leads, trying on", c.e.errorf(err, op))
}

// renew renews the session, and tells whether Consul knows it.
func (c *candidate) renew(ctx context.Context, t *term) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.keepLimit())
	defer cancel()
	session, _, err := c.e.r.clients.kv.Session().Renew(t.session, (&api.WriteOptions{}).WithContext(ctx))
	return session != nil, err
}

// keepLimit bounds a request of the leader that does not wait.
func (c *candidate) keepLimit() time.Duration { return min(c.e.ttl/5, probeTimeout) }
