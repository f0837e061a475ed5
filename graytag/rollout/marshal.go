package rollout

import (
	"bytes"
	"encoding/json"
	"math"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// The types below are the JSON of a plan, in the order in which it is written.

type planJSON struct {
	ID       string        `json:"id"`
	Rules    []string      `json:"rules"`
	Internal *internalJSON `json:"internal,omitempty"`
	Stages   []stageJSON   `json:"stages"`
	Services []string      `json:"services,omitempty"`
	Analysis *analysisJSON `json:"analysis,omitempty"`
	OnBreach OnBreach      `json:"onBreach,omitempty"`
	Mode     Mode          `json:"mode,omitempty"`
	State    *State        `json:"state,omitempty"`
}

type internalJSON struct {
	Rules []string `json:"rules,omitempty"`
	Hold  duration `json:"hold,omitempty"`
}

type stageJSON struct {
	Percent rule.Percent `json:"percent"`
	Hold    duration     `json:"hold"`
}

type analysisJSON struct {
	Window     duration    `json:"window,omitempty"`
	Every      duration    `json:"every,omitempty"`
	MinMatched float64     `json:"minMatched"`
	Level      float64     `json:"level,omitempty"`
	Services   []string    `json:"services,omitempty"`
	Errors     errorsJSON  `json:"errors"`
	Latency    latencyJSON `json:"latency"`
}

type errorsJSON struct {
	Off         bool    `json:"off,omitempty"`
	Ratio       float64 `json:"ratio,omitempty"`
	Floor       float64 `json:"floor"`
	Max         float64 `json:"max,omitempty"`
	MinRequests uint64  `json:"minRequests,omitempty"`
	Consecutive int     `json:"consecutive,omitempty"`
}

type latencyJSON struct {
	Off         bool     `json:"off,omitempty"`
	Ratio       float64  `json:"ratio,omitempty"`
	Floor       duration `json:"floor"`
	Max         duration `json:"max,omitempty"`
	MinRequests uint64   `json:"minRequests,omitempty"`
	Consecutive int      `json:"consecutive,omitempty"`
}

type stateJSON struct {
	Phase    Phase                   `json:"phase"`
	Stage    int                     `json:"stage,omitempty"`
	Since    time.Time               `json:"since,omitzero"`
	Entered  time.Time               `json:"entered,omitzero"`
	Who      string                  `json:"who,omitempty"`
	Why      string                  `json:"why,omitempty"`
	Before   *State                  `json:"before,omitempty"`
	Suggest  []Kind                  `json:"suggested,omitempty"`
	Baseline map[string]baselineJSON `json:"baseline,omitempty"`
}

type baselineJSON struct {
	Requests uint64   `json:"requests"`
	Errors   uint64   `json:"errors"`
	P99      duration `json:"p99"`
}

// duration is written as Go writes one.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// MarshalJSON writes p as [Parse] reads it, with all that has a default. An
// Analysis that is zero is left out.
func (p *Plan) MarshalJSON() ([]byte, error) {
	out := planJSON{
		ID: p.ID, Rules: p.Rules, Services: p.Services, OnBreach: p.OnBreach, Mode: p.Mode,
		Stages: make([]stageJSON, 0, len(p.Stages)),
	}
	if len(p.Internal.Rules) > 0 || p.Internal.Hold != 0 {
		out.Internal = &internalJSON{Rules: p.Internal.Rules, Hold: duration(p.Internal.Hold)}
	}
	for _, s := range p.Stages {
		out.Stages = append(out.Stages, stageJSON{Percent: s.Percent, Hold: duration(s.Hold)})
	}
	if a := p.Analysis; a.Window != 0 || a.Level != 0 || a.Errors != (ErrorCheck{}) || a.Latency != (LatencyCheck{}) {
		out.Analysis = &analysisJSON{
			Window: duration(a.Window), Every: duration(a.Every), MinMatched: a.MinMatched, Level: a.Level, Services: a.Services,
			Errors: errorsJSON(a.Errors),
			Latency: latencyJSON{
				Off: a.Latency.Off, Ratio: a.Latency.Ratio, Floor: duration(a.Latency.Floor), Max: duration(a.Latency.Max),
				MinRequests: a.Latency.MinRequests, Consecutive: a.Latency.Consecutive,
			},
		}
	}
	if p.State.phase() != Pending {
		out.State = &p.State
	}
	return encode(out)
}

// MarshalJSON writes s as it stands in a plan.
func (s State) MarshalJSON() ([]byte, error) {
	out := stateJSON{Phase: s.phase(), Stage: s.Stage, Since: s.Since, Who: s.Who, Why: s.Why, Before: s.Before, Suggest: s.Suggested}
	if !s.Entered.Equal(s.Since) {
		out.Entered = s.Entered
	}
	for service, b := range s.Baseline {
		if out.Baseline == nil {
			out.Baseline = map[string]baselineJSON{}
		}
		out.Baseline[service] = baselineJSON{
			Requests: min(b.Requests, math.MaxInt64), Errors: min(b.Errors, math.MaxInt64), P99: duration(b.P99),
		}
	}
	return encode(out)
}

// encode is json.Marshal that leaves <, > and & as they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
