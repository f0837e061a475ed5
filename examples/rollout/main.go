// Rollout is a release that goes wrong, in one process: two gateways, a shop in two
// versions, users who keep coming, and a controller that moves the percentage while
// gray does as well as stable.
//
//	go run ./examples/rollout               # the embedded registry, rules in memory
//	go run ./examples/rollout -consul ADDR  # registry, rules and leader lock on a Consul agent
//
// Testers are first. An operator lets the others in, and the plan goes by itself
// through 10, 20 and 30 %, with holds of two seconds where a real one has hours. Then
// v2 of inventory fails every other call. The controller finds gray worse than stable
// and rolls back, the alert reaches a webhook, and the users are stable again. Nobody
// does anything about it.
//
// It prints what happened and when, as the users, the store and the webhook saw it.
// On Consul, what it has written stays below graylane/examples/rollout in the KV store.
//
// The exit status is 1 where the release does not end so, or a user meets a fault
// after the rollback.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// What the continuous integration expects of the output:
// ci: ^advanced=3 rolled_back=1 alerts=1 gray_after=0 failed_after=0$

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// backend is where services, rules and the leader are to be found.
type backend struct {
	registry interface {
		registry.Registrar
		registry.Discovery
	}
	rules   rule.Store
	elector rollout.Elector
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("rollout", flag.ContinueOnError)
	agent := flags.String("consul", "", "`address` of a Consul agent, instead of the embedded registry")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	b := backend{memory.New(), rule.NewMemoryStore(), rollout.NewLocalElector("this process")}
	if *agent != "" {
		c, err := consul.New(nil, consul.WithAddress(*agent))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		key := fmt.Sprintf("graylane/examples/rollout/%d", os.Getpid())
		b.registry = c
		if b.rules, err = c.RuleStore(key + "/rules"); err != nil {
			return err
		}
		if b.elector, err = c.Elector(key + "/leader"); err != nil {
			return err
		}
	}
	return story(ctx, out, b)
}
