// Quickstart is the whole of graylane in one process: four services over real
// sockets, some of them in two versions, and requests of which some are gray.
//
//	go run ./examples/quickstart               # the embedded registry
//	go run ./examples/quickstart -consul ADDR  # the same on a Consul agent
//
// order (HTTP) calls inventory (gRPC), which calls user (gRPC), and calls coupon
// (HTTP) from a goroutine that outlives the request. order, inventory and user
// run as stable and as v2, coupon as stable only: a gray request is v2 on every
// hop that has a v2, also behind one that has not.
//
// Every figure that it prints is what the servers saw. The exit status is 1
// where a request failed or reached a version that it must not reach.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry/consul"
	"github.com/graylane/graylane/registry/memory"
)

const (
	requests = 2000
	grayOf   = 5 // one user of five is gray
)

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
	if *agent != "" {
		c, err := consul.New(&api.Config{Address: *agent})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Close()) }()
		reg = c
	}

	const grayOrder, stableOrder = "5", "6"
	w := &world{reg: reg, tally: newTally(grayOrder, stableOrder)}
	defer w.stop()
	if err := w.open(ctx); err != nil {
		return err
	}

	// A client of the shop. What the entrance will do, colouring requests by
	// rules, it does itself: users whose number is a multiple of five are gray.
	client, err := grayhttp.NewClient(reg)
	if err != nil {
		return err
	}
	defer closeClient(client)()

	start := time.Now()
	var failed atomic.Int64
	var firstFailure atomic.Pointer[error]
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			if err := order(ctx, client, i); err != nil {
				failed.Add(1)
				firstFailure.CompareAndSwap(nil, &err)
			}
		})
	}
	wg.Wait()
	w.later.Wait()
	failed.Add(w.failed.Load())
	took := time.Since(start)

	c := coloursFor(out)
	w.tally.picture(out, c, grayOrder, "one gray request: version=v2")
	fmt.Fprintln(out)
	w.tally.picture(out, c, stableOrder, "one request without a colour")
	fmt.Fprintln(out)
	w.tally.table(out, c)
	fmt.Fprintf(out, "\n%d requests at once, %s\n", requests, took.Round(time.Millisecond))
	fmt.Fprintln(out, w.tally.summary(requests))

	if n := failed.Load(); n > 0 {
		err := errors.New("calls in the background failed")
		if p := firstFailure.Load(); p != nil {
			err = *p
		}
		return fmt.Errorf("quickstart: %d calls failed, the first: %w", n, err)
	}
	if n := w.tally.misrouted(); n > 0 {
		return fmt.Errorf("quickstart: %d calls reached a version that they must not reach", n)
	}
	return nil
}

// order places the order of one user.
func order(ctx context.Context, client *http.Client, user int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tag, err := graytag.New(map[string]string{graytag.KeyUID: strconv.Itoa(user)})
	if err != nil {
		return err
	}
	if user%grayOf == 0 {
		if tag, err = tag.With(graytag.KeyVersion, "v2"); err != nil {
			return err
		}
	}
	return get(graytag.NewContext(ctx, tag), client, fmt.Sprintf("http://order/orders/%d?user=%d", user, user))
}

// get reads an answer to its end and tells whether it was a good one.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", url, resp.Status, body)
	}
	return nil
}

// closeClient returns what ends a client: its connections and its watches.
func closeClient(client *http.Client) func() {
	return func() {
		client.CloseIdleConnections()
		if c, ok := client.Transport.(io.Closer); ok {
			_ = c.Close()
		}
	}
}
