package rollout

import (
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
)

// Plans are the plans of a rule document by id.
type Plans map[string]*Plan

// Parse reads and checks the plans of a rule set. It is strict, as [rule.Parse]
// is, and reports every fault; see [Faults]. A plan with a fault keeps none of
// the others from working: those are returned also where the error is not nil.
//
// It never panics. The plans are bounded; its time and memory are about linear in
// them and in the rules that they name.
func Parse(set *rule.Set) (Plans, error) {
	plans := Plans{}
	read, all := readPlans(set)
	for _, r := range read {
		all.list = append(all.list, r.faults.list...)
		if len(r.faults.list) == 0 {
			plans[r.id] = r.plan
		}
	}
	return plans, all.err()
}

// readPlans reads and checks all plans. The faults are of none of them.
func readPlans(set *rule.Set) (read []*reading, all faults) {
	if set == nil || len(set.Plans) == 0 {
		return nil, all
	}
	c := newChecker(set)
	for i, id := range slices.Sorted(maps.Keys(set.Plans)) {
		if i == MaxPlans {
			all.addf("plans", "%d plans, at most %d are allowed", len(set.Plans), MaxPlans)
			break
		}
		read = append(read, readPlan(id, set.Plans[id]))
	}
	// The plan that has governed a rule for longest keeps it.
	inTurn := slices.Clone(read)
	slices.SortStableFunc(inTurn, func(a, b *reading) int { return a.since().Compare(b.since()) })
	for _, r := range inTurn {
		c.take(r)
	}
	return read, all
}

// ParseDocument is [Parse] for the text of a rule document.
func ParseDocument(data []byte) (Plans, error) {
	set, err := rule.Parse(data)
	if err != nil {
		return nil, err
	}
	return Parse(set)
}

// checker looks at plans beside the rules that they name.
type checker struct {
	set   *rule.Set
	key   string // that routing reads
	rules map[string]*rule.Rule
	owner map[string]string // rule -> the plan that governs it now
}

func newChecker(set *rule.Set) *checker {
	c := &checker{set: set, key: set.Key, rules: make(map[string]*rule.Rule, len(set.Rules)), owner: map[string]string{}}
	if c.key == "" {
		c.key = graytag.KeyVersion
	}
	for i := range set.Rules {
		c.rules[set.Rules[i].ID] = &set.Rules[i]
	}
	return c
}

// reading is one plan as it is read.
type reading struct {
	id     string
	plan   *Plan // nil where it is none
	faults faults
}

func (r *reading) path() string { return "plans." + shorten(r.id, 128) }

// since is when the plan began to govern its rules, as far as it tells.
func (r *reading) since() time.Time {
	if r.plan == nil {
		return time.Time{}
	}
	return r.plan.State.Since
}

func readPlan(id string, raw json.RawMessage) *reading {
	r := &reading{id: id}
	f, path := &r.faults, r.path()
	if !graytag.ValidKey(id) {
		f.addf(path, "an id consists of up to 64 of A-Z a-z 0-9 . _ -, starting with a letter or digit")
		return r
	}
	if len(raw) > MaxPlanBytes {
		f.addf(path, "%d bytes, at most %d are allowed", len(raw), MaxPlanBytes)
		return r
	}
	v, err := value(raw)
	if err != nil {
		f.addf(path, "not JSON: %v", err)
		return r
	}
	r.plan = (&decoder{f}).plan(path, v)
	if r.plan.ID == "" {
		r.plan.ID = id
	}
	return r
}

// take checks a plan, and gives it its rules where it is good.
func (c *checker) take(r *reading) {
	p := r.plan
	if p == nil {
		return
	}
	c.check(p, r.path(), r.id, &r.faults)
	if len(r.faults.list) > 0 {
		return
	}
	p.Targets, p.Drift = c.targets(p), c.drift(p)
	if p.State.Phase.governs() {
		for _, id := range p.RuleIDs() {
			c.owner[id] = r.id
		}
	}
}

// check finds what is wrong with the meaning of a plan, and fills in Services.
func (c *checker) check(p *Plan, path, id string, f *faults) {
	if p.ID != id {
		f.addf(path+".id", "%q: it is the key of the plan, %q, or left out", shorten(p.ID, 128), id)
	}
	c.checkRules(p, path, f)
	c.checkInternal(p, path, f)
	checkStages(p, path, f)
	for i, s := range p.Services {
		if !graytag.ValidKey(c.key + "." + s) {
			f.addf(at(path+".services", i), "not the name of a service")
		}
	}
	if !f.has(path+".rules") && !f.has(path+".services") {
		c.checkServices(p, path, f)
	}
	if p.Analysis.Every > p.Analysis.Window {
		f.addf(path+".analysis.every", "%s is longer than the window of %s", p.Analysis.Every, p.Analysis.Window)
	}
	checkState(p, path, f)
}

// checkServices fills in Services, and wants none to be forgotten: what is not named
// is neither compared nor waited for in the end.
func (c *checker) checkServices(p *Plan, path string, f *faults) {
	named, all := c.servicesOf(p.Rules)
	lane, _ := c.servicesOf(p.RuleIDs()) // testers may be gray on more
	if len(p.Services) == 0 && !all {
		p.Services = lane
	}
	for _, s := range lane {
		if len(p.Services) > 0 && !slices.Contains(p.Services, s) {
			f.addf(path+".services", "%q is missing: rules of the plan are about it", s)
		}
	}
	for i, s := range p.Analysis.Services {
		switch here := at(path+".analysis.services", i); {
		case len(p.Services) > 0 && !slices.Contains(p.Services, s):
			f.addf(here, "%q is not among the services of the plan, %q", shorten(s, 128), p.Services)
		case !all && !slices.Contains(named, s):
			f.addf(here, "no rule of the plan gives %q a version that could be compared", shorten(s, 128))
		}
	}
}

// checkRules looks at the rules whose percentage moves. They have to draw the
// same users: one who is gray on one service of the lane and stable on the next
// is what a release must never make.
func (c *checker) checkRules(p *Plan, path string, f *faults) {
	path += ".rules"
	if len(p.Rules) == 0 && !f.has(path) {
		f.addf(path, "one rule at least is required")
	}
	var first *rule.Rule
	for i, id := range p.Rules {
		here := at(path, i)
		r := c.rule(p, id, here, f)
		if r == nil {
			continue
		}
		if !r.Percent.IsSet() {
			f.addf(here, "rule %s has no percent: it would be in force for all whom it matches before the plan starts; give it 0", id)
		}
		c.checkTag(r, here, f)
		if first == nil {
			first = r
			continue
		}
		if r.EffectiveSalt() != first.EffectiveSalt() {
			f.addf(here, "rule %s draws its users by the salt %q, rule %s by %q: give them one salt, so that a user is gray on all services or on none",
				id, r.EffectiveSalt(), first.ID, first.EffectiveSalt())
		}
		if !slices.Equal(r.EffectiveHashBy(), first.EffectiveHashBy()) {
			f.addf(here, "rule %s draws its users by hashBy %q, rule %s by %q: give them one hashBy, so that a user is gray on all services or on none",
				id, r.EffectiveHashBy(), first.ID, first.EffectiveHashBy())
		}
	}
	if !f.has(path) {
		c.checkUsers(p, path, f)
	}
}

func (c *checker) checkInternal(p *Plan, path string, f *faults) {
	path += ".internal.rules"
	for i, id := range p.Internal.Rules {
		here := at(path, i)
		r := c.rule(p, id, here, f)
		if r == nil {
			continue
		}
		if slices.Contains(p.Rules, id) {
			f.addf(here, "rule %s is among the rules whose percentage moves", id)
		}
		if r.Percent.IsSet() {
			f.addf(here, "rule %s has a percent: testers are chosen by name", id)
		}
		c.checkTag(r, here, f)
	}
}

// rule returns a rule of the set that no other plan governs; nil where there is
// none.
func (c *checker) rule(p *Plan, id, path string, f *faults) *rule.Rule {
	r := c.rules[id]
	switch owner := c.owner[id]; {
	case f.has(path):
		return nil
	case r == nil:
		f.addf(path, "no rule has the id %q", shorten(id, 128))
	case owner != "" && p.State.Phase.governs():
		f.addf(path, "rule %s is governed by plan %s", id, owner)
	}
	return r
}

// checkTag wants a version to compare with stable.
func (c *checker) checkTag(r *rule.Rule, path string, f *faults) {
	if len(c.versions(r)) == 0 {
		f.addf(path, "the tag of rule %s, %q, names no version by the key %s", r.ID, shorten(r.Tag, 128), c.key)
	}
}

// versions returns which version a rule asks for, by service; "" is every service.
func (c *checker) versions(r *rule.Rule) map[string]string {
	all := map[string]string{}
	tag, err := graytag.Parse(r.Tag)
	if err != nil {
		return all
	}
	add := func(service, version string) {
		if version != "" && version != "stable" {
			all[service] = version
		}
	}
	if len(r.Services) == 0 {
		add("", tag.Get(c.key))
		for key, version := range tag.All() {
			if service, ok := cutService(key, c.key); ok {
				add(service, version)
			}
		}
		return all
	}
	for _, s := range r.Services {
		add(s, tag.Get(c.key))
	}
	return all
}

func cutService(key, routing string) (service string, ok bool) {
	if len(key) > len(routing)+1 && key[:len(routing)] == routing && key[len(routing)] == '.' {
		return key[len(routing)+1:], true
	}
	return "", false
}

// servicesOf returns the services that rules give a version to, and whether there is
// a rule for all services among them.
func (c *checker) servicesOf(ids []string) (named []string, all bool) {
	found := map[string]bool{}
	for _, id := range ids {
		if r := c.rules[id]; r != nil {
			for s := range c.versions(r) {
				found[s] = true
			}
		}
	}
	all = found[""]
	delete(found, "")
	return slices.Sorted(maps.Keys(found)), all
}

// targets returns what the analysis compares, service by service.
func (c *checker) targets(p *Plan) (list []Target) {
	services := p.Analysis.Services
	if len(services) == 0 {
		services = p.Services
	}
	if len(services) == 0 { // there is a rule for all services
		services, _ = c.servicesOf(p.Rules)
		services = append([]string{""}, services...)
	}
	for _, s := range services {
		for _, id := range p.Rules {
			versions := c.versions(c.rules[id])
			v, own := versions[s]
			if !own {
				v = versions[""]
			}
			if t := (Target{s, v}); v != "" && !slices.Contains(list, t) {
				list = append(list, t)
			}
		}
	}
	return list
}

// drift returns the rules that are not as a plan under way, or done, has put them.
func (c *checker) drift(p *Plan) (list []string) {
	if !p.State.Phase.governs() {
		return nil
	}
	for _, id := range p.RuleIDs() {
		r := c.rules[id]
		if !r.IsEnabled() || r.Percent.IsSet() && r.Percent != p.Percent(p.State.Stage) {
			list = append(list, id)
		}
	}
	return list
}

func checkStages(p *Plan, path string, f *faults) {
	path += ".stages"
	if f.has(path) {
		return
	}
	before := zeroPercent
	for i, s := range p.Stages {
		here := at(path, i) + ".percent"
		switch {
		case !s.Percent.IsSet():
			f.addf(here, "required")
		case s.Percent == zeroPercent:
			f.addf(here, "0: testers alone come before the first stage anyway")
		case s.Percent.Thousandths() <= before.Thousandths():
			f.addf(here, "%s after %s: each stage has to be above the one before", s.Percent, before)
		}
		before = s.Percent
	}
	if before != allPercent && !f.has(path) {
		f.addf(path, "the last stage has to be 100: a plan ends with everyone")
	}
}

func checkState(p *Plan, path string, f *faults) {
	path += ".state"
	if f.has(path) {
		return
	}
	s := &p.State
	if s.Phase == Pending {
		p.State = State{Phase: Pending}
		return
	}
	checkStage(s, path, len(p.Stages), f)
	switch b := s.Before; {
	case b == nil:
	case s.Phase != RolledBack:
		f.addf(path+".before", "only a plan that is %s has one", RolledBack)
	case !b.Phase.live() && b.Phase != Done:
		f.addf(path+".before.phase", "%s: nothing was rolled back", b.Phase)
	default:
		checkStage(b, path+".before", len(p.Stages), f)
	}
}

func checkStage(s *State, path string, stages int, f *faults) {
	low, high := 0, stages
	switch s.Phase {
	case InternalOnly:
		high = 0
	case Running:
		low = 1
	case Done:
		low = stages
	}
	if s.Stage < low || s.Stage > high {
		f.addf(path+".stage", "%d: must be between %d and %d where the phase is %s", s.Stage, low, high, s.Phase)
	}
	if s.Since.IsZero() && s.Phase != RolledBack { // a rollback is never refused
		f.addf(path+".since", "required")
	}
}
