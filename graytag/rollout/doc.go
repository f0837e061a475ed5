// Package rollout moves the percentage of rules through stages while it compares
// gray with stable, and takes it back when gray is worse: by hand, or by itself.
//
// # A plan on one page
//
// A plan lies in the rule document of package rule, beside the rules that it moves:
//
//	{
//	  "rules": [
//	    {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}], "tag": "version=v2"},
//	    {"id": "order", "services": ["order"], "percent": 0, "salt": "lane-v2", "tag": "version=v2"},
//	    {"id": "inventory", "services": ["inventory"], "percent": 0, "salt": "lane-v2", "tag": "version=v2"}
//	  ],
//	  "plans": {
//	    "lane-v2": {
//	      "rules": ["order", "inventory"],
//	      "internal": {"rules": ["testers"]},
//	      "stages": [{"percent": 1, "hold": "24h"}, {"percent": 10}, {"percent": 50}, {"percent": 100}]
//	    }
//	  }
//	}
//
// The fields of a plan; rules and stages are required:
//
//	id        the key in plans, which may be left out
//	rules     the rules whose percentage moves, all of them in one write; they share
//	          salt and hashBy, and match, from and until are the same for every
//	          service, so that a user is gray on all services or on none
//	internal  rules: a whitelist without a percentage, which comes first;
//	          hold: after which testers are enough, where the plan moves by itself;
//	          without it they are alone until somebody promotes the plan
//	stages    growing percentages, the last one 100; hold: for how long at least, "30m"
//	services  the services of the lane; those of the rules
//	analysis  window "5m", every "10s", minMatched 0.9, level 0.00005, services,
//	          errors:  ratio 2, floor 0.01, max, off, minRequests 100, consecutive 1
//	          latency: ratio 2, floor "10ms", max, off, minRequests 100, consecutive 1
//	onBreach  "rollback", or "previous", or "freeze"
//	mode      "auto", or "suggest", which only says so, or "manual"
//	state     where the plan is; this package writes it
//
// [ParseDocument] reads the plans and reports every fault with its path; an editor
// completes them by schema.json beside this package ([Schema]). Engines know nothing of
// plans: a gateway serves a document whatever is in them.
//
// # States
//
// A plan is pending, then internal (testers alone), then running through its stages,
// then done, which keeps 100 % and is watched no more. Somebody may pause it, where a
// breach still counts, or freeze it, where nothing counts. Rolled back, its rules are
// disabled until somebody restores what was before, or starts again. [Change] is what
// an operator does, [Step] what the samples do; both are functions of a document, a
// report and a time, and change nothing but the text that has to: people lay their
// documents out. [Finish] clears the rules, once every service has the new release as
// stable.
//
// # Writing
//
// [Run], [Evaluate], [Update], [Stop] and [Unstop] read the document of a [rule.Store], decide,
// and write if nobody else has written; else they read and decide again. A
// controller that wants 20 % while an operator rolls back finds the plan rolled back
// then, and stops. So a rollback wins every race, and it is one write for all rules of
// the plan. Run does not give up a rollback, nor Stop the kill switch, while the
// context lasts. [History] tells the last 50 revisions with their changes, and
// [Restore] puts one in force again.
//
// # Analysis
//
// [Plan.Look] asks a [Source] about the last window of each service that the plan
// moves, and [Analysis.Judge] says pass, fail or inconclusive. A request belongs to the
// version that it wanted. Gray fails where its share of errors is above ratio times
// stable's, and above the floor, and the difference is credible: one that is as good
// as stable would show it with a probability below the level, by the one-sided exact
// test of Fisher ([FisherGreater]). For latencies the same test is made of the
// requests that took longer than gray's 99th percentile may be. With little traffic
// up to three windows are looked at together. Services are asked about at once, eight at
// most, and each for itself: one that cannot be asked about hides no other.
//
// A step forward needs, after the hold, a pass on samples of its own stage. No traffic
// is inconclusive and so is a source that fails, too few requests, a stable without
// requests, and a gray that served less than minMatched of what wanted it: that one
// is down and falls back, and looks as healthy as stable. A source that knows a part of
// the window alone, as a Recorder does that has just begun, may show a fail and no pass.
// At 100 %, where nobody may be left on stable, gray is compared with how stable was when
// the stage began.
//
// Simulated (300 gray requests in a window, both with 0.5 % errors), the defaults roll
// back by chance in fewer than one of 1,000 windows, also where each is judged every 10
// seconds as it slides; with 5 % against 0.5 % they roll back within three windows in
// 99 of 100 runs. The tests of this package print it.
//
// # The controller
//
// A [Controller] does by itself what is above: it follows the store, looks at each plan
// as often as the plan's analysis says, and writes what comes of it. Several gateways
// may run one each; an [Elector] lets one of them lead. It judges by its own source: a
// [Recorder], which gateway.WithRecorder has a gateway fill, knows the requests of its
// own gateway, a share of all; package promsource knows those of all. A window has to be
// two of a recorder's slots long, [DefaultSlot], and better ten: see [WithSlot].
//
//	c, err := rollout.NewController(store, source, rollout.WithEngine(engine), rollout.WithAlerter(webhook))
//	go c.Run(ctx)
//	_, err = c.Do(ctx, "lane-v2", rollout.CommandRollback, rollout.Note{Who: "ann", Why: "orders fail"})
//
// A rollback, by a breach or by [Controller.Do], and [Controller.Stop] are in force in
// the engines that the controller knows before the store is asked, and stay so until
// those engines have the document with it: documents from before do not undo them.
// While the store fails the write is tried on, by whoever leads or not, and by the next
// Run where one ends before; [Controller.Status] says so. While the store cannot be read
// each controller watches the plans that it knows, for nothing but a rollback. Other
// processes stay as they are until the write comes about.
//
// [Alerter]s are told once for each event, by the controller that has written it;
// suggestions are written into the state for that reason. [NewLogAlerter] is always
// there, [Webhook] posts JSON. What was written in the moment in which a process died
// is told by nobody: [History] has it. A breach that cannot be written for 10 seconds is
// told by each process in which it is in force, with the same key.
//
// # Limits
//
// The statistics know what the source knows. A gateway sees the services that it calls,
// not those behind them: name in analysis.services what the source sees, or use one
// that sees all. Services are compared one by one, so that a failing one is not hidden by
// others; many services mean more chances of a false alarm. A hold counts from the time
// of the process that wrote the state: keep the clocks of controllers together, and those
// of operators. A stage that begins in the future is watched from when it was seen.
//
// A Controller and the electors start goroutines, which Run and Lead wait for; alerts of
// commands that were given beside Run are waited for by [Controller.Flush].
// Functions and the methods of a Plan change none of their arguments and may be called
// at once.
//
// # Security
//
// Who may write the document decides who is gray: this package checks what is written,
// not by whom. Names and reasons are cut to a length and end up in logs and alerts; the
// path of the URL of a webhook, and its headers, are in neither.
package rollout
