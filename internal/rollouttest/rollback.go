package rollouttest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
)

// Lane is a rule document with the plan "lane" over two services, pending.
const Lane = `{
  "rules": [
    {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"},
    {"id": "order", "services": ["order"], "percent": 0, "salt": "lane", "tag": "version=v2"},
    {"id": "inventory", "services": ["inventory"], "percent": 0, "salt": "lane", "tag": "version=v2"}
  ],
  "plans": {
    "lane": {
      "rules": ["order", "inventory"],
      "internal": {"rules": ["testers"]},
      "stages": [{"percent": 10}, {"percent": 20}, {"percent": 50}, {"percent": 100}]
    }
  }
}`

// RollbackRace is case O6: on store, whose document it replaces, a controller promotes on
// what it has read while an operator rolls back, in an order that rng draws. It
// fails t unless all ends rolled back, and returns how often the controller came
// first.
func RollbackRace(t testing.TB, store rule.Store, rng *rand.Rand) (promoted int) {
	t.Helper()
	ctx := t.Context()
	start := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	data := []byte(Lane)
	for _, c := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote} {
		var err error
		if data, _, err = rollout.Change(data, "lane", c, rollout.Note{Who: "ann", At: start}); err != nil {
			t.Fatal(err)
		}
	}
	revision := current(t, store).Revision
	if _, err := store.Put(ctx, rule.Document{Data: data}, revision); err != nil {
		t.Fatal(err)
	}
	controller := func(s rule.Store) {
		now := start
		for range 3 {
			now = now.Add(time.Hour)
			p := read(t, data) // what it has seen last, which may be old
			r := rollout.Report{Verdict: rollout.VerdictPass, Time: now, Stage: p.State.Stage, Entered: p.State.Entered, Targets: p.Targets}
			e, err := rollout.Update(ctx, s, func(current []byte) ([]byte, *rollout.Event, error) {
				changed, e, err := rollout.Step(current, "lane", &r, rollout.Note{Who: "controller", At: now})
				if e != nil {
					data = changed
				}
				return changed, e, err
			})
			if err != nil {
				t.Errorf("controller: %v", err)
			}
			if e != nil {
				promoted++
			}
		}
	}
	operator := func(s rule.Store) {
		e, err := rollout.Run(ctx, s, "lane", rollout.CommandRollback, rollout.Note{Who: "bob", Why: "orders fail", At: start.Add(time.Hour)})
		if err != nil || e == nil {
			t.Errorf("operator: %v, %v", e, err)
		}
	}
	Interleave(store, rng, controller, operator)
	final := read(t, current(t, store).Data)
	if final.State.Phase != rollout.RolledBack || final.State.Who != "bob" {
		t.Errorf("the plan ended %+v", final.State)
	}
	set, err := rule.Parse(current(t, store).Data)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range set.Rules {
		if r.IsEnabled() {
			t.Errorf("rule %s is in force after the rollback", r.ID)
		}
	}
	return promoted
}

func read(t testing.TB, data []byte) *rollout.Plan {
	plans, err := rollout.ParseDocument(data)
	if err != nil {
		t.Error(err)
		return &rollout.Plan{}
	}
	return plans["lane"]
}

func current(t testing.TB, store rule.Store) rule.Document {
	for d, err := range store.Watch(context.WithoutCancel(t.Context())) {
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	t.Fatal(errors.New("the store yields nothing"))
	return rule.Document{}
}
