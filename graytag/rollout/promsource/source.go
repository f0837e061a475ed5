package promsource

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/graylane/graylane/graytag/rollout"
)

// Source asks a Prometheus. It is safe for concurrent use, and holds nothing that
// would have to be closed.
type Source struct {
	config
	url  string
	name string // what may be shown of url
}

var _ rollout.Source = (*Source)(nil)

var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// New returns a source that asks the query API below a base URL, as in
// http://prometheus:9090 or https://mimir.example/prometheus. It does not connect.
func New(base string, opts ...Option) (*Source, error) {
	c := newConfig(opts)
	u, err := url.Parse(base)
	switch {
	case err != nil:
		return nil, fmt.Errorf("promsource: %w", errors.Unwrap(err)) // without the URL, which may hold a password
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, fmt.Errorf("promsource: URL %q, want http://host or https://host, and a path where there is one", u.Scheme+"://"+u.Host)
	case c.timeout <= 0 || c.timeout > MaxTimeout:
		return nil, fmt.Errorf("promsource: a timeout of %s, want more than 0 and at most %s", c.timeout, MaxTimeout)
	case !labelName.MatchString(c.label):
		return nil, fmt.Errorf("promsource: label %q, want a name of a label", c.label)
	case c.queries.Requests == "":
		return nil, errors.New("promsource: no query for requests")
	}
	for name, template := range map[string]string{
		"requests": c.queries.Requests, "latency": c.queries.Latency, "unserved": c.queries.Unserved, "scrapes": c.queries.Scrapes,
	} {
		if err := checkTemplate(name, template); err != nil {
			return nil, err
		}
	}
	for key, values := range c.header {
		if strings.ContainsAny(key+values[0], "\r\n\x00") {
			return nil, fmt.Errorf("promsource: a header %q with a line break", key)
		}
	}
	u.Fragment = ""
	client := *c.client
	if client.CheckRedirect == nil {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	c.client = &client
	return &Source{config: c, url: u.JoinPath("api/v1/query").String(), name: u.Scheme + "://" + u.Host}, nil
}

// Samples implements [rollout.Source]. Numbers are estimates, rounded. The error
// wraps a [*APIError], an [*AnswerError], a [*PartialError], a
// [*rollout.IncompleteError] where there are too few scrapes, or what net/http says.
func (s *Source) Samples(ctx context.Context, q rollout.Query) ([]rollout.Sample, error) {
	// In milliseconds, which is what Prometheus tells apart, and not a part of one
	// from outside.
	from, to := q.From.Add(time.Millisecond-1).UnixMilli(), q.To.UnixMilli()
	window := time.Duration(to-from) * time.Millisecond
	if window < minWindow {
		return nil, &rollout.IncompleteError{From: q.From, To: q.To, Reason: "the window is too short"}
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	asked := []*struct {
		name, template string
		window         time.Duration
		rows           []row
		err            error
	}{
		{name: "requests", template: s.queries.Requests, window: window},
		{name: "latency", template: s.queries.Latency, window: window},
		{name: "unserved", template: s.queries.Unserved, window: window},
		{name: "scrapes", template: s.queries.Scrapes, window: window},
		{name: "newest scrapes", template: s.queries.Scrapes, window: window / 2},
	}
	var group sync.WaitGroup
	for _, a := range asked {
		if a.template == "" {
			continue
		}
		group.Go(func() {
			if a.rows, a.err = s.ask(ctx, s.expand(a.template, &q, a.window), to); a.err != nil {
				cancel() // the others are of no use
			}
		})
	}
	group.Wait()
	var failure error
	for _, a := range asked {
		if a.err != nil && (failure == nil || errors.Is(failure, context.Canceled)) {
			failure = fmt.Errorf("promsource: query of %s: %w", a.name, a.err)
		}
	}
	if failure != nil {
		return nil, failure
	}
	requests, latency, unserved, scrapes, newest := asked[0].rows, asked[1].rows, asked[2].rows, asked[3].rows, asked[4].rows
	if s.queries.Scrapes != "" && len(requests)+len(scrapes) > 0 {
		if why := tooFew(most(scrapes), most(newest)); why != "" {
			return nil, &rollout.IncompleteError{From: q.From, To: q.To, Reason: why}
		}
	}
	return samples(requests, latency, unserved)
}

func tooFew(scrapes, newest float64) string {
	switch {
	case scrapes < 2:
		return fmt.Sprintf("%v scrapes in the window, at least 2 are needed", scrapes)
	case newest < 1:
		return "there was no scrape in the newer half of the window"
	}
	return ""
}

func most(rows []row) (v float64) {
	for _, r := range rows {
		v = max(v, r.value)
	}
	return v
}

// ask sends one query.
func (s *Source) ask(ctx context.Context, query string, at int64) ([]row, error) {
	form := url.Values{"query": {query}, "time": {strconv.FormatFloat(float64(at)/1000, 'f', 3, 64)}}
	if deadline, ok := ctx.Deadline(); ok {
		form.Set("timeout", duration(max(time.Until(deadline), time.Millisecond)))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	for key, values := range s.header {
		req.Header[key] = values
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		if bad := (*url.Error)(nil); errors.As(err, &bad) {
			err = bad.Err // without the URL
		}
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswerBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > MaxAnswerBytes:
		return nil, badAnswer("more than %d bytes", MaxAnswerBytes)
	}
	return parse(resp.StatusCode, body)
}
