package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/registry"
)

// rulesAt is the rule set with a percentage for the users of the app.
func rulesAt(percent string) string {
	return `{
  "carry": ["uid"],
  "rules": [
    {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["99"]}], "tag": "version=v2"},
    {"id": "office",  "priority": 90,  "match": [{"attr": "ip", "op": "cidr", "values": ["10.8.0.0/16"]}], "tag": "version=v2"},
    {"id": "app",     "match": [{"attr": "channel", "op": "equals", "values": ["app"]}],
     "percent": ` + percent + `, "salt": "quickstart", "tag": "version=v2"}
  ]
}`
}

// rolledBackRules is what the operator writes when v2 misbehaves.
const rolledBackRules = `{"rules": [], "stop": true}`

const (
	aTester  = 199 // by his number
	aVisitor = 200 // neither a tester, nor in the office, nor in the app
)

// entrance is the gateway in front of the shop, and those who use it: a load
// balancer with its clients, and an operator.
type entrance struct {
	url    string
	engine *rule.Engine
	rules  rule.Store
	client *http.Client

	revision uint64 // of the rules, as the operator knows it
	round    int    // of visits

	stops []func()
}

func openEntrance(ctx context.Context, disc registry.Discovery, rules rule.Store) (*entrance, error) {
	// Stable, until there are rules. What the engine would log, the picture shows.
	engine, err := rule.NewEngine(nil, rule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	e := &entrance{engine: engine, rules: rules, client: &http.Client{Transport: transport()}}

	following, stopFollowing := context.WithCancel(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		_ = engine.Follow(following, rules) // ends with its context
	}()
	e.stops = append(e.stops, func() { stopFollowing(); <-followed })

	gw, err := gateway.New(engine, disc,
		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}),
		gateway.WithTransport(transport()),
		// The clients of this program play the load balancer in front of the
		// gateway: where a user comes from is in X-Forwarded-For.
		gateway.WithEdge(grayhttp.WithTrustedProxies("127.0.0.0/8")))
	if err != nil {
		e.stop()
		return nil, err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.stop()
		return nil, errors.Join(err, gw.Close())
	}
	srv := gateway.NewServer("", gw)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis) // ends with Close
	}()
	e.url = "http://" + lis.Addr().String()
	e.stops = append(e.stops, func() {
		e.client.CloseIdleConnections()
		_ = srv.Close()
		<-served
		_ = gw.Close()
	})
	return e, nil
}

func (e *entrance) stop() {
	for i := len(e.stops) - 1; i >= 0; i-- {
		e.stops[i]()
	}
	e.stops = nil
}

// write is all that an operator does to change who is gray. It returns when the
// gateway decides by the new rules.
func (e *entrance) write(ctx context.Context, rules, reason string) (err error) {
	e.revision, err = e.rules.Put(ctx, rule.Document{Data: []byte(rules), Author: "quickstart", Reason: reason}, e.revision)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for e.engine.Status().Revision != e.revision {
		select {
		case <-ctx.Done():
			return fmt.Errorf("quickstart: the gateway does not follow: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// visit lets every user order once, all at once, and returns who was gray.
func (e *entrance) visit(ctx context.Context, w *world) (gray map[int]bool, err error) {
	e.round++
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed []error
	)
	for u := range users {
		wg.Go(func() {
			if err := e.order(ctx, u); err != nil {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	w.later.Wait()
	if n := int(w.failed.Load()); n > 0 {
		failed = append(failed, fmt.Errorf("%d calls in the background", n))
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("quickstart: %d requests failed, the first: %w", len(failed), failed[0])
	}
	gray = map[int]bool{}
	for u := range users {
		if w.tally.Load().isGray(orderID(e.round, u)) {
			gray[u] = true
		}
	}
	return gray, nil
}

func orderID(round, user int) string { return fmt.Sprintf("%d-%d", round, user) }

// order sends one request of a user. Nothing in it says what colour it is to
// have: the rules look at who asks, with what, and from where.
func (e *entrance) order(ctx context.Context, user int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/orders/"+orderID(e.round, user), nil)
	if err != nil {
		return err
	}
	req.Header.Set("X-User-ID", strconv.Itoa(user))
	switch {
	case user%50 == 7: // somebody in the office
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("10.8.0.%d", user%250))
	case user%2 == 1: // the app
		req.Header.Set("X-Channel", "app")
		fallthrough
	default:
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("203.0.113.%d", user%250))
	}
	// Somebody always tries; the gateway does not believe it.
	req.Header.Set("X-Gray-Tag", "version=v2")
	resp, err := e.client.Do(req)
	if err != nil {
		return err
	}
	return drain(req, resp)
}

// get calls another service of the shop.
func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	return drain(req, resp)
}

// drain reads an answer to its end and tells whether it was a good one.
func drain(req *http.Request, resp *http.Response) error {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s: %s", req.URL, resp.Status, body)
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
