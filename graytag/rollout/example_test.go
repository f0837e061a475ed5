package rollout_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// A plan goes through its stages while gray is as good as stable, and back in one
// write when it is not. The clock is the example's own.
func Example() {
	ctx := context.Background()
	store := rule.NewMemoryStore()
	_, err := store.Put(ctx, rule.Document{Data: []byte(`{
		"rules": [{"id": "order", "services": ["order"], "percent": 0, "tag": "version=v2"}],
		"plans": {"v2": {
			"rules": ["order"],
			"stages": [{"percent": 1, "hold": "1h"}, {"percent": 10, "hold": "1h"}, {"percent": 100}]
		}}
	}`)}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	now := time.Date(2026, 12, 1, 8, 0, 0, 0, time.UTC)
	broken := now.Add(90 * time.Minute)

	// What is known of the requests: from half past nine on, one in ten gray ones fails.
	source := rollout.SourceFunc(func(_ context.Context, q rollout.Query) ([]rollout.Sample, error) {
		errors := uint64(1)
		if !q.To.Before(broken.Add(time.Minute)) {
			errors = 60
		}
		return []rollout.Sample{
			{Wanted: "v2", Served: "v2", Requests: 600, Errors: errors, Latency: took(600, 20*time.Millisecond)},
			{Requests: 9400, Errors: 20, Latency: took(9400, 20*time.Millisecond)},
		}, nil
	})
	show := func(e *rollout.Event, err error) {
		if err != nil {
			fmt.Println(err)
		} else if e != nil {
			fmt.Printf("%s %s: %s at %s %%, %s\n", e.Time.Format("15:04"), e.Who, e.Kind, e.Percent, e.Why)
		}
	}

	show(rollout.Run(ctx, store, "v2", rollout.CommandStart, rollout.Note{Who: "ann", Why: "release of December", At: now}))
	for range 120 { // a controller does this every ten seconds
		now = now.Add(time.Minute)
		for d := range store.Watch(ctx) {
			plans, err := rollout.ParseDocument(d.Data)
			if err != nil {
				fmt.Println(err)
				return
			}
			report := plans["v2"].Look(ctx, source, now)
			show(rollout.Evaluate(ctx, store, "v2", &report, rollout.Note{Who: "controller", At: now}))
			break
		}
	}
	// Output:
	// 08:00 ann: started at 1 %, release of December
	// 09:00 controller: advanced at 10 %, passed at 1 % for 1h0m0s
	// 09:31 controller: rolled_back at 0 %, v2 of order: 60 of 600 gray requests failed (10 %), 20 of 9400 stable ones (0.213 %); by chance with a probability of 3.2e-57
}

func took(n uint64, d time.Duration) *rollout.Histogram {
	var h rollout.Histogram
	h.AddBucket(rollout.BucketOf(d), n)
	return &h
}

// All faults of a plan come at once, each with its path.
func ExampleParse() {
	set, err := rule.Parse([]byte(`{
		"rules": [
			{"id": "order", "services": ["order"], "percent": 0, "tag": "version=v2"},
			{"id": "inventory", "services": ["inventory"], "percent": 0, "tag": "version=v2"}
		],
		"plans": {"v2": {"rules": ["order", "inventory"], "stages": [{"percent": 10}, {"percent": 5}, {"percent": 100}]}}
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = rollout.Parse(set)
	for _, f := range rollout.Faults(err) {
		fmt.Printf("%s: %s\n", f.Path, f.Reason)
	}
	// Output:
	// plans.v2.rules[1]: rule inventory draws its users by the salt "inventory", rule order by "order": give them one salt, so that a user is gray on all services or on none
	// plans.v2.stages[1].percent: 5 after 10: each stage has to be above the one before
}

func ExampleFisherGreater() {
	fmt.Printf("%.4f\n", rollout.FisherGreater(4, 300, 13, 2700))
	fmt.Printf("%.2g\n", rollout.FisherGreater(15, 300, 13, 2700))
	// Output:
	// 0.0821
	// 8e-09
}

// A controller moves the plans while their samples are good. Here, an operator takes
// one back; the gateway's engine is stable before the store is asked.
func ExampleController() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store := rule.NewMemoryStore()
	_, err := store.Put(ctx, rule.Document{Data: []byte(`{
		"rules": [{"id": "order", "services": ["order"], "percent": 0, "tag": "version=v2"}],
		"plans": {"v2": {"rules": ["order"], "stages": [{"percent": 1}, {"percent": 100}]}}
	}`)}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	engine, err := rule.NewEngine(nil) // the gateway's
	if err != nil {
		fmt.Println(err)
		return
	}
	source := rollout.SourceFunc(func(context.Context, rollout.Query) ([]rollout.Sample, error) {
		return nil, nil // no traffic is no reason to go on
	})
	alerter := rollout.AlerterFunc(func(_ context.Context, e rollout.Event) error {
		fmt.Printf("%s: %s\n", e.Who, e.Text())
		return nil
	})
	c, err := rollout.NewController(store, source, rollout.WithEngine(engine), rollout.WithAlerter(alerter))
	if err != nil {
		fmt.Println(err)
		return
	}
	var done sync.WaitGroup
	done.Go(func() { _ = engine.Follow(ctx, store) })
	done.Go(func() { _ = c.Run(ctx) })

	for _, command := range []rollout.Command{rollout.CommandStart, rollout.CommandRollback} {
		if _, err := c.Do(ctx, "v2", command, rollout.Note{Who: "ann"}); err != nil {
			fmt.Println(err)
		}
	}
	cancel()
	done.Wait() // for the alerts, too
	// Output:
	// ann: plan v2: started, at 1 %
	// ann: plan v2 is rolled back, its rules are off
}

// The new release is deployed as stable, service by service, and tells by its metadata
// which it is, here by "build". The rules go when all services have it.
func ExampleController_Finish() {
	ctx := context.Background()
	reg := memory.New()
	deploy := func(service string) {
		_, err := reg.Register(ctx, registry.Instance{ID: service + "-1", Service: service, Address: "10.0.0.7:8080", Metadata: map[string]string{"build": "v2"}})
		if err != nil {
			fmt.Println(err)
		}
	}
	release := map[string]string{"build": "v2"} // what tells it, as the pipeline registers it
	ready := func(ctx context.Context, service string) (int, error) {
		return registry.CountStable(ctx, reg, service, release)
	}
	store := rule.NewMemoryStore()
	_, err := store.Put(ctx, rule.Document{Data: []byte(`{
		"rules": [{"id": "v2", "services": ["order", "inventory"], "percent": 0, "tag": "version=v2"}],
		"plans": {"v2": {"rules": ["v2"], "stages": [{"percent": 100}]}}
	}`)}, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := rollout.NewController(store, nil, rollout.WithControllerLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	ann := rollout.Note{Who: "ann"}
	for _, command := range []rollout.Command{rollout.CommandStart, rollout.CommandPromote} {
		if _, err := c.Do(ctx, "v2", command, ann); err != nil {
			fmt.Println(err)
		}
	}
	deploy("order")
	_, err = c.Finish(ctx, "v2", ready, ann)
	fmt.Println(err)
	deploy("inventory")
	if e, err := c.Finish(ctx, "v2", ready, ann); err == nil {
		fmt.Println(e.Text())
	}
	// Output:
	// rollout: v2: clearing the rules now would send everyone back: no READY stable instance of the new release of inventory
	// plan v2 is finished, its rules are cleared
}
