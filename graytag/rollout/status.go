package rollout

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Status is how a [Controller] does.
type Status struct {
	// Leading tells that this controller moves the plans.
	Leading bool `json:"leading"`
	// Leader says who does, the zero Leader where nobody does, or where it cannot be
	// told: LeaderError says why then.
	Leader      Leader `json:"leader,omitzero"`
	LeaderError string `json:"leaderError,omitempty"`
	// Revision is that of the document that the rest is about, 0 where there is none.
	Revision uint64 `json:"revision"`
	// Stopped tells that the kill switch is on, by the document or in this process
	// alone.
	Stopped bool `json:"stopped"`
	// Error says why the store cannot be read, why a newer document is no rule set, or
	// what is wrong with plans; "" where all is well.
	Error string `json:"error,omitempty"`
	// Plans are in the order of their ids. A faulty plan is not among them.
	Plans []PlanStatus `json:"plans"`
	// Unwritten are the rollbacks that are in force in this process and not written
	// yet; the plan "" is the kill switch. Those that were left when Run ended are
	// written by the next Run.
	Unwritten []Unwritten `json:"unwritten,omitempty"`
	// AlertsFailed and AlertsDropped count alerts that reached nobody, by alerter; an
	// AlertError is that of the last one.
	AlertsFailed  uint64 `json:"alertsFailed"`
	AlertsDropped uint64 `json:"alertsDropped"`
	AlertError    string `json:"alertError,omitempty"`
}

// PlanStatus is how a plan does.
type PlanStatus struct {
	ID      string       `json:"id"`
	State   State        `json:"state"`
	Percent rule.Percent `json:"percent"`
	// Report is what this controller found when it looked last; nil where it has not
	// looked, as one that does not lead.
	Report *Report `json:"report,omitempty"`
	// Error is what went wrong last, at ErrorAt: a source that fails, or a write that
	// did not come about; "" where the last evaluation went well.
	Error   string    `json:"error,omitempty"`
	ErrorAt time.Time `json:"errorAt,omitzero"`
}

// Unwritten is a rollback that waits for the store.
type Unwritten struct {
	Plan  string    `json:"plan"`
	Since time.Time `json:"since"`
	Error string    `json:"error,omitempty"`
}

// Status returns how the controller does. It asks the elector who leads, which may
// mean to ask Consul; ctx bounds that.
func (c *Controller) Status(ctx context.Context) Status {
	s := Status{Plans: []PlanStatus{}} // a list for JSON, and not null
	leader, err := c.config.elector.Leader(ctx)
	if err != nil {
		s.LeaderError = err.Error()
	}
	s.Leader = leader
	c.mu.Lock()
	defer c.mu.Unlock()
	s.Leading, s.Revision = c.term != nil, c.document.Revision
	s.Stopped = c.set != nil && c.set.Stop || c.pending[""] != nil || c.left[""] != nil
	if err := errors.Join(c.storeErr, c.refused, c.faults); err != nil {
		s.Error = err.Error()
	}
	for _, id := range slices.Sorted(maps.Keys(c.plans)) {
		p := c.plans[id]
		ps := PlanStatus{ID: id, State: p.State.clone(), Percent: p.Percent(p.State.Stage)}
		if p.State.Phase == RolledBack {
			ps.Percent = zeroPercent
		}
		if w := c.watched[id]; w != nil {
			ps.Report = w.report
			if w.err != nil {
				ps.Error, ps.ErrorAt = w.err.Error(), w.errAt
			}
		}
		s.Plans = append(s.Plans, ps)
	}
	unwritten := maps.Clone(c.left)
	maps.Copy(unwritten, c.pending)
	for _, id := range slices.Sorted(maps.Keys(unwritten)) {
		u := Unwritten{Plan: id, Since: unwritten[id].since}
		if err := unwritten[id].trouble(); err != nil {
			u.Error = err.Error()
		}
		s.Unwritten = append(s.Unwritten, u)
	}
	for _, o := range c.outboxes {
		o.mu.Lock()
		s.AlertsFailed += o.failed
		s.AlertsDropped += o.dropped
		if o.err != nil {
			s.AlertError = o.err.Error()
		}
		o.mu.Unlock()
	}
	return s
}
