package rollout

import (
	"context"
	"fmt"

	"github.com/graylane/graylane/graytag/rule"
)

// Do carries out a command on a plan, as [Run] does, and tells the alerters. It works
// whether or not this controller leads.
//
// A rollback is in force in the engines of this process before Do asks the store, and
// stays so until they have the document with it. While the controller runs it is
// tried on when ctx has ended; the error says so. Then nobody but this process is
// stable yet.
func (c *Controller) Do(ctx context.Context, plan string, command Command, n Note) (*Event, error) {
	n = n.now()
	if command == CommandRollback {
		return c.run(ctx, plan, c.ruleIDs(plan), func(data []byte) ([]byte, *Event, error) {
			return Change(data, plan, command, n)
		})
	}
	return c.told(Run(ctx, c.store, plan, command, n))
}

// Stop is the kill switch, see [Stop]: in the engines of this process at once, as a
// rollback by Do, and everywhere when it is written.
func (c *Controller) Stop(ctx context.Context, n Note) (*Event, error) {
	return c.run(ctx, "", nil, stopOrNot(true, n.now()))
}

// Unstop puts the rules in force again, see [Unstop]. It waits for a kill switch that
// is not written yet, which would undo it.
func (c *Controller) Unstop(ctx context.Context, n Note) (*Event, error) {
	if p := c.underWay(""); p != nil {
		select {
		case <-p.done:
		case <-ctx.Done():
			return nil, fmt.Errorf("rollout: the kill switch is not written yet: %w", ctx.Err())
		}
	}
	return c.told(Unstop(ctx, c.store, n))
}

// Restore puts a revision of the history in force again, see [Restore].
func (c *Controller) Restore(ctx context.Context, revision, ifRevision uint64, n Note) (*Event, error) {
	return c.told(Restore(ctx, c.store, revision, ifRevision, n))
}

// Ready returns how many READY stable instances of the new release a service has. The
// operator names the metadata that tells: stable instances have no version.
//
// registry.CountStable counts them by metadata that the operator names.
type Ready func(ctx context.Context, service string) (int, error)

// Finish clears the rules of a plan that is done, where every service of the lane has
// the new release as stable, see the function [Finish]. It asks ready about each of
// them; a service that cannot be asked about changes nothing.
func (c *Controller) Finish(ctx context.Context, plan string, ready Ready, n Note) (*Event, error) {
	n = n.now()
	d, err := current(ctx, c.store)
	if err != nil {
		return nil, err
	}
	set, err := rule.Parse(d.Data)
	if err != nil {
		return nil, err
	}
	p, err := planOf(set, plan)
	if err != nil {
		return nil, err
	}
	count := map[string]int{}
	for _, s := range p.Services {
		if p.State.Phase != Done || ready == nil {
			break // which the function Finish refuses
		}
		if count[s], err = ready(ctx, s); err != nil {
			return nil, fmt.Errorf("rollout: finish %s: the instances of %s: %w", plan, s, err)
		}
	}
	return c.told(Update(ctx, c.store, func(data []byte) ([]byte, *Event, error) {
		return Finish(data, plan, func(service string) int { return count[service] }, n)
	}))
}

func (c *Controller) told(e *Event, err error) (*Event, error) {
	if err == nil && e != nil {
		c.tell(e)
	}
	return e, err
}
