package rollout

import "time"

// Command is what an operator may do with a plan.
type Command string

// The commands.
const (
	// CommandStart begins a plan that is pending, or one that was rolled back from
	// its beginning: with testers, or the first stage where there are none.
	CommandStart Command = "start"
	// CommandPause stays where it is until CommandResume; a breach still counts.
	CommandPause Command = "pause"
	// CommandResume goes on after a pause or a freeze, with the rules as the stage has
	// them; the hold starts anew.
	CommandResume Command = "resume"
	// CommandPromote goes to the next stage whatever the samples say, and to done
	// after the last.
	CommandPromote Command = "promote"
	// CommandRollback disables all rules of the plan. It is never refused.
	CommandRollback Command = "rollback"
	// CommandFreeze stays where it is, breach or not.
	CommandFreeze Command = "freeze"
	// CommandRestore puts a plan that was rolled back where it was before. Its hold
	// starts anew, and samples from before do not count.
	CommandRestore Command = "restore"
)

// commandFinish stands in errors: [Finish] asks for more than a command does.
const commandFinish Command = "finish"

// Commands returns all commands.
func Commands() []Command {
	return []Command{CommandStart, CommandPause, CommandResume, CommandPromote, CommandRollback, CommandFreeze, CommandRestore}
}

// Do returns the state that c takes the plan to, and changes nothing; whoever is
// to see it has to write it, see [Change]. A command that does not fit the phase
// is a [*CommandError]. A rollback of what is rolled back is the state as it is.
func (p *Plan) Do(c Command, n Note) (State, error) {
	n = n.cut()
	s := p.State.clone()
	phase := s.phase()
	enter := func(phase Phase, stage int) (State, error) {
		return s.enter(phase, stage, n), nil
	}
	stay := func(phase Phase) (State, error) {
		s.Phase, s.Since, s.Who, s.Why = phase, n.At, n.Who, n.Why
		return s, nil
	}
	switch c {
	case CommandStart:
		if phase == Pending || phase == RolledBack {
			s.Baseline = nil
			if len(p.Internal.Rules) == 0 {
				return enter(Running, 1)
			}
			return enter(InternalOnly, 0)
		}
	case CommandPause:
		if phase == InternalOnly || phase == Running {
			return stay(Paused)
		}
	case CommandFreeze:
		if phase == InternalOnly || phase == Running || phase == Paused {
			return stay(Frozen)
		}
	case CommandResume:
		if phase == Paused || phase == Frozen {
			if s.Stage == 0 {
				return stay(InternalOnly)
			}
			return stay(Running)
		}
	case CommandPromote:
		if phase.live() {
			return p.forward(n), nil
		}
	case CommandRollback:
		if phase == RolledBack {
			return s, nil
		}
		return p.back(n), nil
	case CommandRestore:
		if phase == RolledBack && s.Before != nil {
			b := s.Before.clone()
			b.Since, b.Entered, b.Who, b.Why, b.Suggested = n.At, n.At, n.Who, n.Why, nil
			return b, nil
		}
	}
	return State{}, &CommandError{Plan: p.ID, Command: c, Phase: phase}
}

// enter is s at a stage that begins now.
func (s State) enter(phase Phase, stage int, n Note) State {
	return State{Phase: phase, Stage: stage, Since: n.At, Entered: n.At, Who: n.Who, Why: n.Why, Baseline: s.Baseline}
}

// forward is the state of the next stage, or done.
func (p *Plan) forward(n Note) State {
	s := p.State.clone()
	if s.Stage >= len(p.Stages) {
		return s.enter(Done, len(p.Stages), n)
	}
	return s.enter(Running, s.Stage+1, n)
}

// back is the state after a rollback.
func (p *Plan) back(n Note) State {
	before := p.State.clone()
	s := before.enter(RolledBack, before.Stage, n)
	s.Baseline = nil
	if before.phase() != Pending {
		before.Before = nil
		s.Before = &before
	}
	return s
}

// renewed is s with its hold and its samples starting at now.
func (s State) renewed(now time.Time) State {
	s = s.clone()
	s.Since, s.Entered, s.Suggested = now, now, nil
	return s
}
