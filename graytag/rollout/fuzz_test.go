package rollout_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// FuzzParse: no panic; every fault has a path and a reason; a good plan survives its
// JSON, and every command and report leave a good document.
func FuzzParse(f *testing.F) {
	for _, plan := range []string{
		`{}`, `null`, `{"rules": 5}`,
		`{"rules": ["order", "inventory"], "internal": {"rules": ["testers"], "hold": "1h"}, "stages": [{"percent": 0.001, "hold": "0s"}, {"percent": 1e2}]}`,
		`{"id": "lane", "rules": ["order"], "stages": [{"percent": 100}], "services": ["order"], "mode": "manual", "onBreach": "previous",
		  "analysis": {"window": "1m", "every": "1s", "minMatched": 0, "level": 0.01, "services": ["order"],
		    "errors": {"off": true, "ratio": 1, "floor": 0, "max": 1, "minRequests": 1, "consecutive": 1}, "latency": {"floor": "0s", "max": "137s"}},
		  "state": {"phase": "rolled_back", "stage": 1, "since": "2026-12-01T00:00:00+01:00", "entered": "2026-12-01T00:00:00Z", "who": "a", "why": "b",
		    "before": {"phase": "done", "stage": 1, "since": "2026-12-01T00:00:00Z", "baseline": {"": {"requests": 5, "errors": 5, "p99": "1ns"}}}}}`,
	} {
		f.Add(plan)
	}
	now := t0.Add(1000 * time.Hour)
	f.Fuzz(func(t *testing.T, text string) {
		doc := []byte(withPlan(text))
		if _, err := rule.Parse(doc); err != nil {
			return
		}
		plans, err := rollout.ParseDocument(doc)
		p := plans["lane"]
		if err != nil {
			seen := map[string]bool{}
			for _, fault := range rollout.Faults(err) {
				if !strings.HasPrefix(fault.Path, "plans") || fault.Reason == "" || seen[fault.Path] {
					t.Fatalf("%q: %q", fault.Path, fault.Reason)
				}
				seen[fault.Path] = true
			}
			if len(seen) == 0 {
				t.Fatalf("%v", err)
			}
		}
		if p == nil {
			if changed, _, err := rollout.Change(doc, "lane", rollout.CommandRollback, note(now)); err == nil && changed != nil {
				enabled(t, changed)
			}
			return
		}
		out, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := rollout.ParseDocument([]byte(withPlan(string(out))))
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !reflect.DeepEqual(p, again["lane"]) {
			t.Fatalf("%s\nbecame\n%s\n%+v\n%+v", text, out, p, again["lane"])
		}
		for _, c := range rollout.Commands() {
			changed, _, err := rollout.Change(doc, "lane", c, note(now))
			if err != nil || changed == nil {
				if c == rollout.CommandRollback && err != nil {
					t.Fatalf("a rollback was refused: %v", err)
				}
				continue
			}
			if _, err := rollout.ParseDocument(changed); err != nil {
				t.Fatalf("%s: %v\n%s", c, err, changed)
			}
			if c == rollout.CommandRollback {
				enabled(t, changed)
			}
		}
		for _, v := range []rollout.Verdict{pass, fail, maybe} {
			changed, _, err := rollout.Step(doc, "lane", report(p, v, now), note(now))
			if err != nil {
				t.Fatal(err)
			}
			if changed != nil {
				if _, err := rollout.ParseDocument(changed); err != nil {
					t.Fatalf("%s: %v\n%s", v, err, changed)
				}
			}
		}
	})
}

// enabled fails where a rule of the plan is in force.
func enabled(t *testing.T, doc []byte) {
	s, err := rule.Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	var p map[string]json.RawMessage
	var ids []string
	if json.Unmarshal(s.Plans["lane"], &p) != nil || json.Unmarshal(p["rules"], &ids) != nil {
		return // a faulty plan that names none
	}
	for _, r := range s.Rules {
		for _, id := range ids {
			if r.ID == id && r.IsEnabled() {
				t.Fatalf("rule %s is in force after a rollback", id)
			}
		}
	}
}
