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
	"strings"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/middleware/gateway"
	"github.com/graylane/graylane/middleware/grayhttp"
	"github.com/graylane/graylane/propagation"
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
	url      string
	operator string // the URL of a door for operators
	engine   *rule.Engine
	rules    rule.Store
	client   *http.Client

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
	e.stops = append(e.stops, func() { stopFollowing(); <-followed }, e.client.CloseIdleConnections)

	// The clients of this program play the load balancer in front of the gateway:
	// where a user comes from is in X-Forwarded-For.
	if e.url, err = e.open(disc, grayhttp.WithTrustedProxies("127.0.0.0/8")); err == nil {
		// Who may ask for the way of a request is trusted like another gateway. This
		// door must not be open to the public.
		e.operator, err = e.open(disc, grayhttp.WithTrustedProxies("127.0.0.0/8"), grayhttp.WithTrustedGateways("127.0.0.0/8"))
	}
	if err != nil {
		e.stop()
		return nil, err
	}
	return e, nil
}

// open opens a door: a gateway with a listener of its own. All decide by one engine.
func (e *entrance) open(disc registry.Discovery, opts ...grayhttp.EdgeOption) (url string, err error) {
	gw, err := gateway.New(e.engine, disc,
		gateway.WithRoutes(gateway.Route{Prefix: "/orders", Service: "order"}),
		gateway.WithTransport(transport()),
		gateway.WithEdge(opts...))
	if err != nil {
		return "", err
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", errors.Join(err, gw.Close())
	}
	srv := gateway.NewServer("", gw)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(lis) // ends with Close
	}()
	e.stops = append(e.stops, func() {
		_ = srv.Close()
		<-served
		_ = gw.Close()
	})
	return "http://" + lis.Addr().String(), nil
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
	gray = map[int]bool{}
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex // of gray and failed
		failed []error
	)
	for u := range users {
		wg.Go(func() {
			servedBy, err := e.order(ctx, u)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
			} else if strings.HasPrefix(servedBy, "order-v2-") {
				gray[u] = true
			}
		})
	}
	wg.Wait()
	if err := w.ended(); err != nil {
		failed = append(failed, err)
	}
	if len(failed) > 0 {
		return nil, fmt.Errorf("quickstart: %d requests failed, the first: %w", len(failed), failed[0])
	}
	return gray, nil
}

// order sends one request of a user and returns the instance that served it. Nothing
// in the request says what colour it is to have: the rules look at who asks, with
// what, and from where.
func (e *entrance) order(ctx context.Context, user int) (servedBy string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := request(ctx, e.url, fmt.Sprintf("%d-%d", e.round, user), user)
	if err != nil {
		return "", err
	}
	// Somebody always tries; the gateway does not believe it.
	req.Header.Set("X-Gray-Tag", "version=v2")
	resp, err := e.client.Do(req)
	if err != nil {
		return "", err
	}
	return read(req, resp)
}

func request(ctx context.Context, url, order string, user int) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/orders/"+order, nil)
	if err != nil {
		return nil, err
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
	return req, nil
}

// way asks for the way of an order of a user, and for that of what it leaves behind.
func (e *entrance) way(ctx context.Context, w *world, user int) (route, later []propagation.Hop, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	order := fmt.Sprintf("way-%d", user)
	req, err := request(ctx, e.operator, order, user)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set(propagation.TraceHeader, "1")
	resp, err := e.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	if _, err := read(req, resp); err != nil {
		return nil, nil, err
	}
	if route, _, err = propagation.ParseRoute(resp.Header.Get(propagation.RouteHeader)); err != nil {
		return nil, nil, err
	}
	if err := w.ended(); err != nil {
		return nil, nil, err
	}
	if hops, ok := w.routes.Load(order); ok {
		later = hops.([]propagation.Hop)
	}
	for i := range later {
		later[i].Depth++ // beneath the order
	}
	return route, later, nil
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
	_, err = read(req, resp)
	return err
}

// read reads an answer to its end; one that is not good is an error.
func read(req *http.Request, resp *http.Response) (string, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", req.URL, resp.Status, body)
	}
	return string(body), nil
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
