package rollout

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/graylane/graylane/graytag/rule"
)

// decoder reads the JSON of plans out of what encoding/json makes of it. It
// knows every field, finds every fault and says where.
type decoder struct{ f *faults }

// value reads raw, which is valid JSON.
func value(raw json.RawMessage) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

// object returns the fields of an object, each of which has to be known; nil
// where v is none.
func (d *decoder) object(path string, v any, known ...string) map[string]any {
	m, ok := v.(map[string]any)
	if !ok {
		d.wrong(path, v, "an object")
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		switch {
		case !slices.Contains(known, name):
			d.f.addf(path+"."+shorten(name, 128), "unknown field; there are %s", strings.Join(known, ", "))
		case m[name] == nil:
			d.f.addf(path+"."+name, "null: leave the field out")
			delete(m, name)
		}
	}
	return m
}

func (d *decoder) wrong(path string, v any, want string) {
	if v == nil {
		d.f.addf(path, "null: must be %s", want)
		return
	}
	d.f.addf(path, "must be %s", want)
}

func (d *decoder) text(path string, v any, limit int) string {
	s, ok := v.(string)
	if !ok {
		d.wrong(path, v, "a string")
		return ""
	}
	if len(s) > limit {
		d.f.addf(path, "over %d bytes", limit)
		return ""
	}
	return s
}

func (d *decoder) bool(path string, v any) bool {
	b, ok := v.(bool)
	if !ok {
		d.wrong(path, v, "true or false")
	}
	return b
}

// array calls element for each of at most limit elements.
func (d *decoder) array(path string, v any, limit int, element func(path string, v any)) {
	list, ok := v.([]any)
	if !ok {
		d.wrong(path, v, "an array")
		return
	}
	if len(list) > limit {
		d.f.addf(path, "%d elements, at most %d are allowed", len(list), limit)
		list = list[:limit]
	}
	for i, e := range list {
		element(fmt.Sprintf("%s[%d]", path, i), e)
	}
}

// names reads an array of strings that differ and are not empty.
func (d *decoder) names(path string, v any, limit int) (list []string) {
	d.array(path, v, limit, func(at string, e any) {
		name := d.text(at, e, rule.MaxIDBytes)
		switch {
		case name == "" && !d.f.has(at):
			d.f.addf(at, "must not be empty")
		case slices.Contains(list, name):
			d.f.addf(at, "%q stands twice", name)
		}
		list = append(list, name)
	})
	return list
}

func (d *decoder) duration(path string, v any, low, high time.Duration) time.Duration {
	s, ok := v.(string)
	if !ok {
		d.wrong(path, v, `a duration such as "30m"`)
		return 0
	}
	t, err := time.ParseDuration(s)
	switch {
	case err != nil:
		d.f.addf(path, "%q is no duration such as 24h, 30m or 10s", shorten(s, 32))
	case t < low || t > high:
		d.f.addf(path, "%s: must be between %s and %s", t, low, high)
	default:
		return t
	}
	return 0
}

// number reads a number between low and high; low itself is let in.
func (d *decoder) number(path string, v any, low, high float64) float64 {
	n, ok := v.(json.Number)
	if !ok {
		d.wrong(path, v, "a number")
		return 0
	}
	x, err := n.Float64()
	if err != nil || !(x >= low && x <= high) {
		d.f.addf(path, "%s: must be between %v and %v", shorten(n.String(), 32), low, high)
		return 0
	}
	return x
}

func (d *decoder) whole(path string, v any, low, high int64) int64 {
	n, ok := v.(json.Number)
	if !ok {
		d.wrong(path, v, "a number")
		return 0
	}
	x, err := n.Int64()
	if err != nil || x < low || x > high {
		d.f.addf(path, "%s: must be a whole number between %d and %d", shorten(n.String(), 32), low, high)
		return 0
	}
	return x
}

func (d *decoder) percent(path string, v any) rule.Percent {
	n, ok := v.(json.Number)
	if !ok {
		d.wrong(path, v, "a number")
		return rule.Percent{}
	}
	p, err := rule.ParsePercent(n.String())
	if err != nil {
		d.f.addf(path, "must be a number between 0 and 100 with at most three decimals")
	}
	return p
}

func (d *decoder) time(path string, v any) time.Time {
	s, ok := v.(string)
	if !ok {
		d.wrong(path, v, "a time")
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		d.f.addf(path, "%q is no time as in RFC 3339, such as 2026-12-01T00:00:00Z", shorten(s, 64))
		return time.Time{}
	}
	if t = t.UTC(); t.IsZero() || t.Year() < 1 || t.Year() > 9999 {
		d.f.addf(path, "not a usable time")
		return time.Time{}
	}
	return t
}

// oneOf reads one of some names.
func oneOf[T ~string](d *decoder, path string, v any, known ...T) T {
	s, ok := v.(string)
	if !ok {
		d.wrong(path, v, "a string")
		return ""
	}
	if !slices.Contains(known, T(s)) {
		d.f.addf(path, "%q: must be one of %v", shorten(s, 64), known)
		return ""
	}
	return T(s)
}

func (d *decoder) plan(path string, v any) *Plan {
	p := &Plan{Analysis: DefaultAnalysis(), OnBreach: BreachRollback, Mode: ModeAuto}
	m := d.object(path, v, "id", "rules", "internal", "stages", "services", "analysis", "onBreach", "mode", "state")
	if m == nil {
		return p
	}
	if v, ok := m["id"]; ok {
		p.ID = d.text(path+".id", v, rule.MaxIDBytes)
	}
	if v, ok := m["rules"]; ok {
		p.Rules = d.names(path+".rules", v, MaxPlanRules)
	}
	if v, ok := m["internal"]; ok {
		at := path + ".internal"
		in := d.object(at, v, "rules", "hold")
		if v, ok := in["rules"]; ok {
			p.Internal.Rules = d.names(at+".rules", v, MaxPlanRules)
		}
		if v, ok := in["hold"]; ok {
			p.Internal.Hold = d.duration(at+".hold", v, 0, MaxHold)
		}
	}
	if v, ok := m["stages"]; ok {
		d.array(path+".stages", v, MaxStages, func(at string, v any) {
			s := Stage{Hold: DefaultHold}
			m := d.object(at, v, "percent", "hold")
			if v, ok := m["percent"]; ok {
				s.Percent = d.percent(at+".percent", v)
			}
			if v, ok := m["hold"]; ok {
				s.Hold = d.duration(at+".hold", v, 0, MaxHold)
			}
			p.Stages = append(p.Stages, s)
		})
	}
	if v, ok := m["services"]; ok {
		p.Services = d.names(path+".services", v, MaxServices)
	}
	if v, ok := m["analysis"]; ok {
		d.analysis(path+".analysis", v, &p.Analysis)
	}
	if v, ok := m["onBreach"]; ok {
		p.OnBreach = oneOf(d, path+".onBreach", v, BreachRollback, BreachPrevious, BreachFreeze)
	}
	if v, ok := m["mode"]; ok {
		p.Mode = oneOf(d, path+".mode", v, ModeAuto, ModeSuggest, ModeManual)
	}
	p.State.Phase = Pending
	if v, ok := m["state"]; ok {
		p.State = d.state(path+".state", v, true)
	}
	return p
}

func (d *decoder) analysis(path string, v any, a *Analysis) {
	m := d.object(path, v, "window", "every", "minMatched", "level", "services", "errors", "latency")
	if v, ok := m["window"]; ok {
		a.Window = d.duration(path+".window", v, time.Second, MaxWindow)
	}
	if v, ok := m["every"]; ok {
		a.Every = d.duration(path+".every", v, 100*time.Millisecond, time.Hour)
	}
	if v, ok := m["minMatched"]; ok {
		a.MinMatched = d.number(path+".minMatched", v, 0, 1)
	}
	if v, ok := m["level"]; ok {
		a.Level = d.number(path+".level", v, 1e-12, 0.1)
	}
	if v, ok := m["services"]; ok {
		a.Services = d.names(path+".services", v, MaxServices)
	}
	const most = math.MaxInt32
	check := func(at string, m map[string]any, off *bool, ratio *float64, requests *uint64, consecutive *int) {
		if v, ok := m["off"]; ok {
			*off = d.bool(at+".off", v)
		}
		if v, ok := m["ratio"]; ok {
			*ratio = d.number(at+".ratio", v, 1, 1000)
		}
		if v, ok := m["minRequests"]; ok {
			*requests = uint64(d.whole(at+".minRequests", v, 1, most))
		}
		if v, ok := m["consecutive"]; ok {
			*consecutive = int(d.whole(at+".consecutive", v, 1, MaxConsecutive))
		}
	}
	if v, ok := m["errors"]; ok {
		at, c := path+".errors", &a.Errors
		m := d.object(at, v, "off", "ratio", "floor", "max", "minRequests", "consecutive")
		check(at, m, &c.Off, &c.Ratio, &c.MinRequests, &c.Consecutive)
		if v, ok := m["floor"]; ok {
			c.Floor = d.number(at+".floor", v, 0, 1)
		}
		if v, ok := m["max"]; ok {
			c.Max = d.number(at+".max", v, 0, 1)
		}
	}
	if v, ok := m["latency"]; ok {
		at, c := path+".latency", &a.Latency
		m := d.object(at, v, "off", "ratio", "floor", "max", "minRequests", "consecutive")
		check(at, m, &c.Off, &c.Ratio, &c.MinRequests, &c.Consecutive)
		if v, ok := m["floor"]; ok {
			c.Floor = d.duration(at+".floor", v, 0, time.Minute)
		}
		if v, ok := m["max"]; ok {
			c.Max = d.duration(at+".max", v, 0, MaxLatency)
		}
	}
}

func (d *decoder) state(path string, v any, outer bool) (s State) {
	m := d.object(path, v, "phase", "stage", "since", "entered", "who", "why", "before", "suggested", "baseline")
	s.Phase = Pending
	if v, ok := m["phase"]; ok {
		s.Phase = oneOf(d, path+".phase", v, phases...)
	}
	if v, ok := m["stage"]; ok {
		s.Stage = int(d.whole(path+".stage", v, 0, MaxStages))
	}
	if v, ok := m["since"]; ok {
		s.Since = d.time(path+".since", v)
	}
	s.Entered = s.Since
	if v, ok := m["entered"]; ok {
		s.Entered = d.time(path+".entered", v)
	}
	if v, ok := m["who"]; ok {
		s.Who = d.text(path+".who", v, MaxWhoBytes)
	}
	if v, ok := m["why"]; ok {
		s.Why = d.text(path+".why", v, MaxWhyBytes)
	}
	if v, ok := m["before"]; ok && !outer {
		d.f.addf(path+".before", "what was before has no before of its own")
	} else if ok {
		b := d.state(path+".before", v, false)
		s.Before = &b
	}
	if v, ok := m["suggested"]; ok {
		d.array(path+".suggested", v, 2, func(at string, v any) {
			s.Suggested = append(s.Suggested, oneOf(d, at, v, KindSuggestAdvance, KindSuggestBreach))
		})
	}
	if v, ok := m["baseline"]; ok {
		s.Baseline = d.baselines(path+".baseline", v)
	}
	return s
}

func (d *decoder) baselines(path string, v any) map[string]Baseline {
	m, ok := v.(map[string]any)
	if !ok {
		d.wrong(path, v, "an object")
		return nil
	}
	if len(m) > MaxServices {
		d.f.addf(path, "%d elements, at most %d are allowed", len(m), MaxServices)
		return nil
	}
	all := make(map[string]Baseline, len(m))
	for _, service := range slices.Sorted(maps.Keys(m)) {
		at := path + "." + shorten(service, 128)
		var b Baseline
		m := d.object(at, m[service], "requests", "errors", "p99")
		if v, ok := m["requests"]; ok {
			b.Requests = uint64(d.whole(at+".requests", v, 0, math.MaxInt64))
		}
		if v, ok := m["errors"]; ok {
			b.Errors = uint64(d.whole(at+".errors", v, 0, math.MaxInt64))
		}
		if v, ok := m["p99"]; ok {
			b.P99 = d.duration(at+".p99", v, 0, MaxLatency)
		}
		if b.Errors > b.Requests {
			d.f.addf(at+".errors", "more than requests")
		}
		all[service] = b
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
