package main

import (
	"context"
	"log/slog"
	"net"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
)

// entrance is one gateway and the controller beside it. Of the controllers of all
// gateways, one leads.
type entrance struct {
	url        string
	engine     *rule.Engine
	controller *rollout.Controller
	stops      []func()
}

// enter opens a gateway. What it sees of its requests is what its controller judges
// by.
func enter(ctx context.Context, b backend, name string, alerters ...rollout.Alerter) (_ *entrance, err error) {
	quiet := slog.New(slog.DiscardHandler) // the story prints what happens
	engine, err := rule.NewEngine(nil, rule.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	// The windows of the plan are two seconds: ten of these slots, and for a minute.
	recorder, err := rollout.NewRecorder(rollout.WithSlot(200*time.Millisecond), rollout.WithKeep(time.Minute))
	if err != nil {
		return nil, err
	}
	opts := []rollout.ControllerOption{
		rollout.WithElector(b.elector), rollout.WithEngine(engine),
		rollout.WithControllerName(name), rollout.WithControllerLogger(quiet),
	}
	for _, a := range alerters {
		opts = append(opts, rollout.WithAlerter(a))
	}
	e := &entrance{engine: engine}
	if e.controller, err = rollout.NewController(b.rules, recorder, opts...); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	gw, err := gateway.New(engine, b.registry,
		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}),
		gateway.WithLogger(quiet),
		gateway.WithRecorder(recorder))
	if err != nil {
		return nil, err
	}
	e.stops = append(e.stops, func() { _ = gw.Close() })

	ctx, stop := context.WithCancel(ctx)
	e.stops = append(e.stops, stop)
	for _, work := range []func(context.Context) error{
		func(ctx context.Context) error { return engine.Follow(ctx, b.rules) },
		e.controller.Run,
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = work(ctx) // ends with its context
		}()
		e.stops = append(e.stops, func() { stop(); <-done })
	}

	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e.url = "http://" + lis.Addr().String()
	srv := gateway.NewServer("", gw)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis) // ends with Close
	}()
	e.stops = append(e.stops, func() { _ = srv.Close(); <-served })
	return e, nil
}

// close ends what was started, the last first.
func (e *entrance) close() {
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
}
