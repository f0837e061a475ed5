// Quickstart is the whole of graylane in one process: an entrance that decides
// by rules who is gray, four services over real sockets, some of them in two
// versions, and users who keep coming while an operator turns the percentage up
// and then takes it all back.
//
//	go run ./examples/quickstart               # the embedded registry
//	go run ./examples/quickstart -consul ADDR  # the same on a Consul agent
//
// The gateway colours every request once: a tester by the end of his number,
// the office by its network, and a percentage of the users of the app. order
// (HTTP) calls inventory (gRPC), which calls user (gRPC), and calls coupon (HTTP)
// from a goroutine that outlives the request. order, inventory and user run as
// stable and as v2, coupon as stable only: a gray request is v2 on every hop that
// has a v2, also behind one that has not.
//
// Every figure that it prints is what the servers have counted, in the metric
// graylane.server.requests, and the pictures are what services answer to whoever asks
// for the way of a request (X-Gray-Trace). The exit status is 1 where a request
// failed, reached a version that it must not reach, or a user who was gray became
// stable again while the percentage grew.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

// users come once before the percentage is turned up, once after, and once more
// after the rollback.
const users = 1000

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	flags := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	agent := flags.String("consul", "", "`address` of a Consul agent, instead of the embedded registry")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var reg registrarDiscovery = memory.New()
	var rules rule.Store = rule.NewMemoryStore()
	if *agent != "" {
		c, err := consul.New(nil, consul.WithAddress(*agent))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		reg = c
		if rules, err = c.RuleStore(fmt.Sprintf("graylane/quickstart/%d/rules", os.Getpid())); err != nil {
			return err
		}
	}

	w := &world{reg: reg}
	defer w.stop()
	if err := w.open(ctx); err != nil {
		return err
	}
	e, err := openEntrance(ctx, reg, rules)
	if err != nil {
		return err
	}
	defer e.stop()
	return story(ctx, out, w, e)
}

// story is what happens: 20 % of the users of the app, then 50 %, then nobody.
func story(ctx context.Context, out io.Writer, w *world, e *entrance) error {
	c := coloursFor(out)
	start := time.Now()

	// In the middle of the load the operator writes once.
	if err := e.write(ctx, rulesAt("20"), "one user of the app in five"); err != nil {
		return err
	}
	before, err := e.visit(ctx, w)
	if err != nil {
		return err
	}
	if err := e.write(ctx, rulesAt("50"), "every other user of the app"); err != nil {
		return err
	}
	after, err := e.visit(ctx, w)
	if err != nil {
		return err
	}
	took := time.Since(start)
	load, err := w.counters.read(ctx)
	if err != nil {
		return err
	}

	if err := pictures(ctx, out, c, w, e); err != nil {
		return err
	}
	asked, err := w.counters.read(ctx) // of the two requests of the pictures
	if err != nil {
		return err
	}
	load.table(out, c)
	back := lost(before, after)
	fmt.Fprintf(out, "\n  app at 20 %%: %4d of %d users gray\n", len(before), users)
	fmt.Fprintf(out, "  app at 50 %%: %4d of %d users gray, %d of those from before became stable\n", len(after), users, back)

	// v2 misbehaves. One write, and the next request of everyone is stable.
	if err := e.write(ctx, rolledBackRules, "v2 fails"); err != nil {
		return err
	}
	still, err := e.visit(ctx, w)
	if err != nil {
		return err
	}
	rolledBack, err := w.counters.read(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  rolled back: %4d of %d users gray\n", len(still), users)

	fmt.Fprintf(out, "\n%d requests in %s; after the rollback: %s\n", 2*users, took.Round(time.Millisecond), rolledBack.summary(users))
	fmt.Fprintln(out, load.summary(2*users))

	switch misrouted := load.misrouted() + asked.misrouted() + rolledBack.misrouted(); {
	case misrouted > 0:
		return fmt.Errorf("quickstart: %d calls reached a version that they must not reach", misrouted)
	case back > 0:
		return fmt.Errorf("quickstart: %d users who were gray became stable while the percentage grew", back)
	case len(still) > 0:
		return fmt.Errorf("quickstart: %d users were gray after the rollback", len(still))
	}
	return nil
}

// pictures draws the way of a gray request and of a stable one, as the services tell
// it in X-Gray-Route.
func pictures(ctx context.Context, out io.Writer, c colours, w *world, e *entrance) error {
	for _, p := range []struct {
		user  int
		title string
	}{
		{aTester, "a tester, as the rules want it: version=v2"},
		{aVisitor, "a visitor whom no rule wants"},
	} {
		route, later, err := e.way(ctx, w, p.user)
		if err != nil {
			return err
		}
		picture(out, c, p.title, route, later)
		fmt.Fprintln(out)
	}
	return nil
}

// lost counts the users who were gray before and are not any more.
func lost(before, after map[int]bool) (n int) {
	for u := range before {
		if !after[u] {
			n++
		}
	}
	return n
}
