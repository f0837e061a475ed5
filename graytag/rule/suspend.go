package rule

import (
	"maps"
	"slices"
	"time"
)

// Suspension keeps rules from matching in one engine, whatever documents say. It is
// safe for concurrent use.
type Suspension struct {
	engine *Engine
	all    bool
	ids    map[string]bool

	// What follows is guarded by the mu of the engine.
	awaited uint64 // 0 where it is not known yet
	ended   bool
}

// Suspend switches rules off in this engine at once: a rollback that has been
// decided must not wait for the store that it is to be written to. The ids need not
// be there. Documents that come meanwhile change nothing about it, so that one from
// before the rollback does not undo it; see [Suspension.Until] for how it ends.
func (e *Engine) Suspend(ids ...string) *Suspension {
	s := &Suspension{engine: e, ids: make(map[string]bool, len(ids))}
	for _, id := range ids {
		s.ids[id] = true
	}
	return e.suspend(s)
}

// SuspendAll sends everyone to stable in this engine at once, as a document with
// stop does.
func (e *Engine) SuspendAll() *Suspension { return e.suspend(&Suspension{engine: e, all: true}) }

func (e *Engine) suspend(s *Suspension) *Suspension {
	e.mu.Lock()
	e.suspensions = append(e.suspensions, s)
	e.apply()
	e.mu.Unlock()
	e.notify()
	return s
}

// Until makes the suspension end with the document of a revision, or a later one: the
// one that was written in its place. A document from then on in which none of the
// rules is in force ends it as well. It ends at once where the engine has that
// revision already. The engine has to follow the store that gave the revision.
func (s *Suspension) Until(revision uint64) {
	s.engine.mu.Lock()
	s.awaited = revision
	changed := s.engine.endWith(func(o *Suspension) bool {
		return o == s && revision > 0 && s.engine.base.document.Revision >= revision
	})
	s.engine.mu.Unlock()
	if changed {
		s.engine.notify()
	}
}

// End ends the suspension: the document in force decides again. A second call does
// nothing.
func (s *Suspension) End() {
	s.engine.mu.Lock()
	changed := s.engine.endWith(func(o *Suspension) bool { return o == s })
	s.engine.mu.Unlock()
	if changed {
		s.engine.notify()
	}
}

// Ended tells whether the suspension has ended.
func (s *Suspension) Ended() bool {
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	return s.ended
}

// put makes b what the engine decides by, but for suspensions. e.mu is held.
func (e *Engine) put(b base) {
	e.base = b
	for _, s := range e.suspensions {
		s.ended = s.awaited > 0 && (b.document.Revision >= s.awaited || !s.concerns(b.program))
	}
	e.suspensions = slices.DeleteFunc(e.suspensions, func(s *Suspension) bool { return s.ended })
	e.apply()
}

// endWith ends some suspensions. e.mu is held.
func (e *Engine) endWith(which func(*Suspension) bool) (changed bool) {
	e.suspensions = slices.DeleteFunc(e.suspensions, func(s *Suspension) bool {
		s.ended = which(s)
		changed = changed || s.ended
		return s.ended
	})
	if changed {
		e.apply()
	}
	return changed
}

// apply puts in force what base and the suspensions come to. e.mu is held.
func (e *Engine) apply() {
	p := e.base.program
	if len(e.suspensions) > 0 {
		p = p.without(e.suspensions)
	}
	e.current.Store(&state{program: p, document: e.base.document, loaded: e.base.loaded})
}

// base is the set that was loaded last, and where it came from.
type base struct {
	program  *program
	document Document // without Data
	loaded   time.Time
}

// suspended returns the ids of the rules that are suspended. e.mu is held.
func (e *Engine) suspended() (ids []string, all bool) {
	set := map[string]bool{}
	for _, s := range e.suspensions {
		maps.Copy(set, s.ids)
		all = all || s.all
	}
	if len(set) == 0 {
		return nil, all
	}
	return slices.Sorted(maps.Keys(set)), all
}

// concerns tells whether p has something to suspend.
func (s *Suspension) concerns(p *program) bool {
	if p.stop {
		return false
	}
	if s.all {
		return p.enabled > 0 || !p.tag.IsZero() || len(p.carry) > 0
	}
	return slices.ContainsFunc(p.rules, func(r compiled) bool { return s.ids[r.id] && !r.never() })
}

// without returns p with rules switched off. The index stays: it finds them, and they
// do not match.
func (p *program) without(list []*Suspension) *program {
	out := &program{
		key: p.key, stop: p.stop, slots: p.slots, rules: slices.Clone(p.rules), index: p.index, always: p.always,
		carry: p.carry, tag: p.tag, none: p.none, timed: p.timed, enabled: p.enabled,
	}
	for _, s := range list {
		out.stop = out.stop || s.all
		for i := range out.rules {
			if r := &out.rules[i]; s.ids[r.id] && !r.never() {
				r.enabled = false
				out.enabled--
			}
		}
	}
	return out
}
