// Observability is a chain as an on-call engineer wants to see it: an entrance, a
// service over HTTP and one over gRPC, each stable and v2, with metrics for
// Prometheus, traces and log lines. What is to be copied is in telemetry.go, and in
// shop.go the options that hand it to graylane.
//
//	go run -C examples/observability .                                  # 200 requests
//	go run -C examples/observability . -fail 0.3                        # v2 has a fault
//	go run -C examples/observability . -listen 127.0.0.1:9464 -for 10m  # for a Prometheus to scrape
//	go run -C examples/observability . -dir .                           # keeps traces.json and log.json
//
// It is a module of its own, so that graylane does not bring the exporters along.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/registry"
	"github.com/graylane/graylane/registry/memory"
)

// What the continuous integration expects of the output:
// ci: ^requests=200 gray=[1-9][0-9]* failed=0 spans=800$

// rules make testers gray, and a quarter of all others.
const rules = `{"rules": [
  {"id": "testers", "priority": 100, "match": [{"attr": "uid", "op": "suffix", "values": ["99"]}], "tag": "version=v2"},
  {"id": "quarter", "percent": 25, "salt": "v2", "tag": "version=v2"}
], "carry": ["uid"]}`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type settings struct {
	listen   string
	requests int
	lasting  time.Duration
	every    time.Duration
	fail     float64
	dir      string
}

func parse(args []string) (s settings, err error) {
	flags := flag.NewFlagSet("observability", flag.ContinueOnError)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "`address` of /metrics")
	flags.IntVar(&s.requests, "requests", 200, "how many requests are sent")
	flags.DurationVar(&s.lasting, "for", 0, "how long requests are sent, instead of a number of them")
	flags.DurationVar(&s.every, "every", 5*time.Millisecond, "time between two requests, with -for")
	flags.Float64Var(&s.fail, "fail", 0, "`share` of the requests to inventory v2 that fail, 0 to 1")
	flags.StringVar(&s.dir, "dir", "", "`directory` in which traces.json and log.json are kept")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("observability: argument %q, want flags alone", flags.Arg(0))
	case !(s.fail >= 0 && s.fail <= 1):
		return s, fmt.Errorf("observability: -fail %v, want 0 to 1", s.fail)
	case s.requests < 1 || s.lasting < 0 || s.every <= 0:
		return s, errors.New("observability: -requests, -for and -every, want more than 0")
	}
	return s, nil
}

func run(ctx context.Context, args []string, out io.Writer) (err error) {
	set, err := parse(args)
	if err != nil {
		return err
	}
	dir := set.dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "observability"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	t, err := openTelemetry(dir)
	if err != nil {
		return err
	}
	flush := true
	defer func() {
		if flush {
			err = errors.Join(err, t.flush())
		}
	}()
	metrics, stopMetrics, err := t.serve(set.listen)
	if err != nil {
		return err
	}
	defer stopMetrics()

	s := &shop{reg: memory.New(), telemetry: t, fail: set.fail}
	defer s.close()
	if err := s.open(ctx); err != nil {
		return err
	}
	p, err := t.process(registry.Instance{ID: "entrance", Service: "entrance"})
	if err != nil {
		return err
	}
	engine, stopEngine, err := follow(ctx, p)
	if err != nil {
		return err
	}
	defer stopEngine()
	url, err := s.enter(engine, p)
	if err != nil {
		return err
	}

	fmt.Fprintf(out, "rules\n%s\n\nrequests, metrics at %s\n", rules, metrics)
	c := customers{url: url, client: &http.Client{Timeout: time.Minute}, out: out}
	if err := c.visit(ctx, set); err != nil {
		return err
	}
	c.client.CloseIdleConnections()
	s.close() // a request is counted when its handler has returned, which may be after the answer
	fmt.Fprintln(out, "\nmetrics")
	if err := excerpt(context.WithoutCancel(ctx), metrics, out); err != nil {
		return err
	}
	flush = false
	if err := t.flush(); err != nil {
		return err
	}
	if err := oneTrace(filepath.Join(dir, "traces.json"), out); err != nil {
		return err
	}
	if err := logLines(filepath.Join(dir, "log.json"), out); err != nil {
		return err
	}
	if set.dir != "" {
		fmt.Fprintf(out, "\nspans in %s, log lines in %s\n", t.traces.Name(), t.logs.Name())
	}
	fmt.Fprintf(out, "\nrequests=%d gray=%d failed=%d spans=%d\n", c.requests, c.gray, c.failed, t.spans.Load())
	return nil
}

// follow returns an engine that has the rules in force, as a store would give them
// to it.
func follow(ctx context.Context, p *process) (_ *rule.Engine, stop func(), err error) {
	loaded := make(chan struct{}, 1)
	engine, err := rule.NewEngine(nil, rule.WithMeterProvider(p.meter), rule.WithLogger(p.logger), rule.WithNotify(func(s rule.Status) {
		if s.Revision > 0 {
			select {
			case loaded <- struct{}{}:
			default:
			}
		}
	}))
	if err != nil {
		return nil, nil, err
	}
	store := rule.NewMemoryStore()
	if _, err := store.Put(ctx, rule.Document{Data: []byte(rules), Author: "examples/observability", Reason: "a start"}, 0); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- engine.Follow(ctx, store) }()
	select {
	case <-loaded:
		return engine, func() { cancel(); <-done }, nil
	case err := <-done: // of ctx
		cancel()
		return nil, nil, err
	}
}

// customers send requests and remember what they were answered.
type customers struct {
	url    string
	client *http.Client
	out    io.Writer

	requests, gray, failed int
	shown                  map[string]bool // one line for each kind of answer
}

func (c *customers) visit(ctx context.Context, set settings) error {
	c.shown = map[string]bool{}
	var end <-chan time.Time
	var tick <-chan time.Time
	if set.lasting > 0 {
		timer, ticker := time.NewTimer(set.lasting), time.NewTicker(set.every)
		defer timer.Stop()
		defer ticker.Stop()
		end, tick = timer.C, ticker.C
	}
	for n := 0; set.lasting > 0 || n < set.requests; n++ {
		if err := c.order(ctx, n); err != nil {
			if ctx.Err() != nil {
				return nil // somebody has interrupted us: show what there is
			}
			return err
		}
		if tick == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-end:
			return nil
		case <-tick:
		}
	}
	return nil
}

func (c *customers) order(ctx context.Context, n int) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/orders/"+strconv.Itoa(n), nil)
	if err != nil {
		return err
	}
	user := strconv.Itoa(1000 + n)
	req.Header.Set("X-User-ID", user)
	resp, err := c.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err != nil {
		return err
	}
	c.requests++
	if resp.Header.Get("X-Version") != "stable" {
		c.gray++
	}
	if resp.StatusCode != http.StatusOK {
		c.failed++
	}
	if answer := resp.Status + " " + string(body); !c.shown[answer] && len(c.shown) < 10 {
		c.shown[answer] = true
		fmt.Fprintf(c.out, "  user %s: %s from %s\n", user, resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

// excerpt prints what Prometheus would be given of graylane, without the buckets.
func excerpt(ctx context.Context, url string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	var lines []string
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if strings.HasPrefix(s.Text(), "graylane_") && !strings.Contains(s.Text(), "_bucket{") {
			lines = append(lines, "  "+s.Text())
		}
	}
	slices.SortFunc(lines, cmp.Compare)
	_, err = fmt.Fprintln(out, strings.Join(lines, "\n"))
	return err
}

// logLines prints the first line of a gray request, and that of a stable one.
func logLines(name string, out io.Writer) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "\nlog")
	for _, version := range []string{"v2", "stable"} {
		mark := []byte(`"gray.version":"` + version + `"`)
		for line := range bytes.Lines(data) {
			if bytes.Contains(line, mark) {
				fmt.Fprintf(out, "  %s", line)
				break
			}
		}
	}
	return nil
}
