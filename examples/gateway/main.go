// Gateway is the entrance of a small shop: it decides by rules who is gray, and
// follows the rules while they are edited, in a file or in Consul KV.
//
//	go run ./examples/gateway                              # tells a story and ends
//	go run ./examples/gateway -listen 127.0.0.1:8080       # serves until interrupted
//	go run ./examples/gateway -listen 127.0.0.1:8080 -rules rules.json
//	go run ./examples/gateway -listen 127.0.0.1:8080 -consul 127.0.0.1:8500
//
// With -listen it prints how to change the percentage while it runs. Rules that are
// not there yet are written: testers, and 10 % of all others. With -consul the
// agent is the registry of the services as well.
//
// The story is what an operator would do by hand: 10 %, then 50 %, then stop, while
// 1000 users come again and again. The exit status is 1 where a user who was gray
// became stable in between, a request failed or reached a version that it must not
// reach.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

// What the continuous integration expects of the output:
// ci: ^50 %: +[0-9]+ of 1000 users gray, 0 of those from before became stable$

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	var where place
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	listen := flags.String("listen", "", "`address` to serve at until interrupted, instead of the story")
	flags.StringVar(&where.file, "rules", "", "`file` with the rules, for -listen; default: one in a temporary directory")
	flags.StringVar(&where.agent, "consul", "", "`address` of a Consul agent, for the services and, instead of a file, for the rules")
	flags.StringVar(&where.key, "key", "graylane/examples/gateway/rules", "`key` of the rules in Consul KV")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *listen == "" && where.file != "" {
		return errors.New("gateway: -rules without -listen: the story writes rules of its own")
	}
	b, err := where.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()

	s := &shop{reg: b.registry}
	defer s.stop()
	if err := s.open(ctx); err != nil {
		return err
	}
	if *listen == "" {
		return story(ctx, out, b)
	}
	// Rules that are there stay as they are.
	_, err = b.rules.Put(ctx, rule.Document{Data: []byte(rulesAt(10)), Author: "examples/gateway", Reason: "a start"}, 0)
	if err != nil && !errors.Is(err, rule.ErrConflict) {
		return err
	}
	e, err := enter(ctx, *listen, b.registry, b.rules)
	if err != nil {
		return err
	}
	defer e.close()
	fmt.Fprintf(out, "the shop is open, and says who served: curl -i -H 'X-User-ID: 42' %s/orders/1\n\n%s\n", e.url, b.howTo())
	select {
	case <-ctx.Done():
		return nil
	case err := <-e.failed:
		return err
	}
}

// entrance is the gateway, and what it needs: an engine that follows the rules, and
// a server.
type entrance struct {
	url    string
	engine *rule.Engine
	failed chan error // of the server
	stops  []func()
}

// enter opens the gateway in front of the service order.
func enter(ctx context.Context, address string, disc registry.Discovery, rules rule.Store) (_ *entrance, err error) {
	engine, err := rule.NewEngine(nil) // everyone is stable, until there are rules
	if err != nil {
		return nil, err
	}
	e := &entrance{engine: engine, failed: make(chan error, 1)}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	following, stop := context.WithCancel(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		_ = engine.Follow(following, rules) // ends with its context
	}()
	e.stops = append(e.stops, func() { stop(); <-followed })

	gw, err := gateway.New(engine, disc,
		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}),
		// Visitors who have no number are drawn by a cookie. Behind a load balancer,
		// grayhttp.WithTrustedProxies says whose X-Forwarded-For counts.
		gateway.WithEdge(grayhttp.WithStickyCookie(grayhttp.StickyCookie{})))
	if err != nil {
		return nil, err
	}
	e.stops = append(e.stops, func() { _ = gw.Close() })

	lis, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	e.url = "http://" + lis.Addr().String()
	srv := gateway.NewServer("", gw)
	served := make(chan struct{})
	go func() {
		defer close(served)
		e.failed <- srv.Serve(lis) // http.ErrServerClosed after Shutdown
	}()
	e.stops = append(e.stops, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if srv.Shutdown(ctx) != nil {
			_ = srv.Close()
		}
		<-served
	})
	return e, nil
}

// close ends what was started, the last first: requests under way are answered.
func (e *entrance) close() {
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
}
