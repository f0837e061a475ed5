package rollout

import (
	"slices"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// Limits of plans.
const (
	MaxPlans     = 100       // of a document
	MaxPlanBytes = 256 << 10 // of one plan, as JSON
	MaxStages    = 50
	MaxPlanRules = 256 // of Rules, and of Internal.Rules
	MaxServices  = 256
	MaxHold      = 366 * 24 * time.Hour
	MaxWindow    = 24 * time.Hour
	MaxWhoBytes  = 256  // of State.Who
	MaxWhyBytes  = 2048 // of State.Why
)

// Plan takes a release from testers to everyone. It lies under "plans" in the
// rule document, by its id; [Parse] reads it and fills in what is left out.
type Plan struct {
	// ID is the key in plans. It follows the rules for the id of a rule.
	ID string
	// Rules are the ids of the rules whose percentage moves, all of them in one
	// write. Each has a percent, and all share salt and hashBy. What else they ask
	// for, match, from and until, is the same for every service: of one rule, or of
	// several together.
	Rules []string
	// Internal is the whitelist that comes before the first percentage.
	Internal Internal
	// Stages have growing percentages, above 0; the last one is 100.
	Stages []Stage
	// Services are those of the lane: the ones whose new release has to be there
	// as stable before the rules are cleared, at least all that the rules name, those
	// of the testers included. Parse fills those in where no rule of Rules is for all
	// services; a plan that has one may name them, and has to before it is finished.
	Services []string
	// Analysis says when gray is worse than stable.
	Analysis Analysis
	// OnBreach says what a breach does; the default is BreachRollback.
	OnBreach OnBreach
	// Mode says who moves; the default is ModeAuto.
	Mode Mode
	// State is where the plan is. Parse fills in pending.
	State State
	// Targets are what the analysis compares with stable. Parse makes them of the
	// rules and of the services; they are not written.
	Targets []Target
	// Drift are the ids of rules that are not as State has them: somebody has
	// switched them off, say, or changed their percentage. Such a plan goes no step
	// forward by itself. Parse finds them; they are not written.
	Drift []string
}

// Target is a version that a plan brings to a service; the service is "" for all
// services together.
type Target struct {
	Service string `json:"service"`
	Version string `json:"version"`
}

// Internal are the rules that make testers gray, without a percentage. With
// none, a plan starts with its first stage.
type Internal struct {
	Rules []string
	// Hold is for how long testers are alone at least where the plan moves by
	// itself; 0, and the default, is until somebody promotes it.
	Hold time.Duration
}

// Stage is one step of a plan.
type Stage struct {
	Percent rule.Percent
	// Hold is how long the stage lasts at least; the default is DefaultHold.
	Hold time.Duration
}

// DefaultHold is the hold of a stage that names none.
const DefaultHold = 30 * time.Minute

// Analysis says how gray is compared with stable. Rates are shares, 0.01 is 1 %.
type Analysis struct {
	// Window is the time that one comparison looks at; the default is 5 minutes.
	Window time.Duration
	// Every is how often that is done; the default is 10 seconds.
	Every time.Duration
	// MinMatched is the share of the gray requests that gray has to have served;
	// with less there is no verdict but a fail. The default is 0.9.
	MinMatched float64
	// Level is the probability, for a gray that is as good as stable, below which
	// a difference counts as credible; the default is 0.00005. See [FisherGreater].
	Level float64
	// Services are compared each by itself; none is Plan.Services, and with none
	// of those, all services together.
	Services []string
	// Errors compares the shares of failed requests: Floor and Max are rates.
	Errors ErrorCheck
	// Latency compares the 99th percentiles.
	Latency LatencyCheck
}

// ErrorCheck is about the share of requests that failed.
type ErrorCheck struct {
	// Off leaves the comparison with stable out; Max counts all the same.
	Off bool
	// Ratio and Floor: gray is bad where its rate is above Ratio times stable's
	// and above Floor. The defaults are 2 and 0.01.
	Ratio float64
	Floor float64
	// Max: gray is bad where its rate is above it, whatever stable's is; 0, and
	// the default, is no limit.
	Max float64
	// MinRequests is how many gray requests a verdict needs, and stable ones where
	// gray is to pass; the default is 100.
	MinRequests uint64
	// Consecutive is how many windows, one after the other, have to be bad; the
	// default is 1.
	Consecutive int
}

// LatencyCheck is about the 99th percentile of the time that requests took.
type LatencyCheck struct {
	// Off leaves the comparison with stable out; Max counts all the same.
	Off bool
	// Ratio and Floor: gray is bad where its p99 is above Ratio times stable's and
	// above Floor. The defaults are 2 and 10 ms.
	Ratio float64
	Floor time.Duration
	// Max: gray is bad where its p99 is above it; 0, and the default, is no limit.
	Max time.Duration
	// MinRequests and Consecutive are as for errors.
	MinRequests uint64
	Consecutive int
}

// DefaultAnalysis returns what a plan without an analysis gets.
func DefaultAnalysis() Analysis {
	return Analysis{
		Window: 5 * time.Minute, Every: 10 * time.Second, MinMatched: 0.9, Level: 5e-5,
		Errors:  ErrorCheck{Ratio: 2, Floor: 0.01, MinRequests: 100, Consecutive: 1},
		Latency: LatencyCheck{Ratio: 2, Floor: 10 * time.Millisecond, MinRequests: 100, Consecutive: 1},
	}
}

// OnBreach is what becomes of a plan whose gray is worse than stable.
type OnBreach string

// What a breach does.
const (
	// BreachRollback disables the rules of the plan: everybody is stable.
	BreachRollback OnBreach = "rollback"
	// BreachPrevious goes back by one stage and pauses there; from the first
	// stage, and from rules that somebody has changed by hand, it is a rollback.
	BreachPrevious OnBreach = "previous"
	// BreachFreeze leaves everything as it is until somebody decides.
	BreachFreeze OnBreach = "freeze"
)

// Mode is who moves a plan.
type Mode string

// The modes. Commands work in all of them.
const (
	// ModeAuto moves the plan, forward and back.
	ModeAuto Mode = "auto"
	// ModeSuggest says what ModeAuto would do, as an event, and does nothing.
	ModeSuggest Mode = "suggest"
	// ModeManual does and says nothing.
	ModeManual Mode = "manual"
)

// Percent returns the share of users that a stage gives: of [State].Stage, where
// 0 is testers alone.
func (p *Plan) Percent(stage int) rule.Percent {
	if stage < 1 || stage > len(p.Stages) {
		return zeroPercent
	}
	return p.Stages[stage-1].Percent
}

var (
	zeroPercent = rule.MustPercent("0")
	allPercent  = rule.MustPercent("100")
)

// watched tells whether the samples of the plan matter now: it is internal, running
// or paused, and moves or suggests by itself.
func (p *Plan) watched() bool {
	phase := p.State.phase()
	return p.Mode != ModeManual && (phase == InternalOnly || phase == Running || phase == Paused)
}

func (p *Plan) hold(stage int) time.Duration {
	if stage < 1 || stage > len(p.Stages) {
		return p.Internal.Hold
	}
	return p.Stages[stage-1].Hold
}

// RuleIDs returns the ids of all rules of the plan, those of testers first.
func (p *Plan) RuleIDs() []string { return slices.Concat(p.Internal.Rules, p.Rules) }

// Clone returns a copy that shares nothing with p.
func (p *Plan) Clone() *Plan {
	c := *p
	c.Rules, c.Internal.Rules = slices.Clone(p.Rules), slices.Clone(p.Internal.Rules)
	c.Stages, c.Services = slices.Clone(p.Stages), slices.Clone(p.Services)
	c.Analysis.Services, c.Targets = slices.Clone(p.Analysis.Services), slices.Clone(p.Targets)
	c.Drift = slices.Clone(p.Drift)
	c.State = p.State.clone()
	return &c
}
