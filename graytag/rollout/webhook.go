package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Webhook posts events as JSON. It is safe for concurrent use; create one with
// [NewWebhook].
//
// The body is an object: "key" names the event, the same for the same event, however
// often it is sent; "text" says it in a line; "breach" tells that gray was worse than
// stable; the other fields are those of [Event]. So it begins, for example,
//
//	{"key":"rolled_back/lane/running/2/1764579600000000000",
//	 "text":"plan lane is rolled back, its rules are off","breach":true,
//	 "kind":"rolled_back","plan":"lane","from":{"phase":"running","stage":2,…},
//	 "to":{"phase":"rolled_back",…},"percent":0,"time":"2026-12-01T09:00:00Z",
//	 "who":"controller gw-1:4711","why":"v2 of order: 60 of 600 gray …","report":{…},"revision":42}
//
// The key is also in the header Idempotency-Key, as a quoted string. Any status 2xx
// is taken for an answer. Where there is none, and on 408, 425, 429 and 5xx, the event
// is sent again, after a delay that doubles from half a second to 15 s, half of it by
// chance, or what Retry-After asks for, up to 30 s. Other statuses are final;
// redirects are not followed.
//
// Errors name scheme and host of the URL and nothing else of it: the rest may be a
// secret, and so are headers.
type Webhook struct {
	config webhookConfig
	url    string
	name   string // what may be shown of url
	client *http.Client
}

var _ Alerter = (*Webhook)(nil)

// WebhookOption changes how a [Webhook] works.
type WebhookOption interface{ applyWebhook(*webhookConfig) }

type webhookOption func(*webhookConfig)

func (f webhookOption) applyWebhook(c *webhookConfig) { f(c) }

type webhookConfig struct {
	header         http.Header
	transport      http.RoundTripper
	attempts       int
	timeout        time.Duration
	first, longest time.Duration
	err            error
}

// token is what a name of a header is, RFC 9110, section 5.6.2.
var token = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// WithHeader sets a header of the requests, such as one that authenticates.
func WithHeader(name, value string) WebhookOption {
	return webhookOption(func(c *webhookConfig) {
		if !token.MatchString(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			c.err = fmt.Errorf("rollout: webhook: WithHeader: %q is no name of a header, or its value has a control character", shorten(name, 64))
			return
		}
		c.header.Set(name, value)
	})
}

// WithBearer sets the header Authorization to a bearer token (RFC 6750).
func WithBearer(token string) WebhookOption { return WithHeader("Authorization", "Bearer "+token) }

// WithWebhookTransport sets what requests are sent by; the default, and what nil
// means, is one of the webhook's own, with the proxy of the environment, that keeps
// no connections.
func WithWebhookTransport(t http.RoundTripper) WebhookOption {
	return webhookOption(func(c *webhookConfig) {
		if t != nil {
			c.transport = t
		}
	})
}

// WithAttempts sets how often an event is sent at most, 1 to 20; the default is 6.
func WithAttempts(n int) WebhookOption {
	return webhookOption(func(c *webhookConfig) {
		if n < 1 || n > 20 {
			c.err = fmt.Errorf("rollout: webhook: %d attempts, want 1 to 20", n)
			return
		}
		c.attempts = n
	})
}

// WithAttemptTimeout bounds one attempt; the default is 10 s.
func WithAttemptTimeout(d time.Duration) WebhookOption {
	return webhookOption(func(c *webhookConfig) {
		if d <= 0 {
			c.err = fmt.Errorf("rollout: webhook: a timeout of %s, want more than 0", d)
			return
		}
		c.timeout = d
	})
}

// maxRetryAfter bounds what Retry-After may ask for.
const maxRetryAfter = 30 * time.Second

// NewWebhook returns an alerter that posts to a URL of http or https.
func NewWebhook(target string, opts ...WebhookOption) (*Webhook, error) {
	c := webhookConfig{header: http.Header{}, attempts: 6, timeout: 10 * time.Second, first: 500 * time.Millisecond, longest: 15 * time.Second}
	for _, o := range opts {
		if o != nil {
			o.applyWebhook(&c)
		}
	}
	if c.err != nil {
		return nil, c.err
	}
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("rollout: webhook: no URL of http or https") // which may hold a secret
	}
	if c.transport == nil {
		c.transport = &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true}
	}
	return &Webhook{
		config: c, url: target, name: u.Scheme + "://" + u.Host,
		client: &http.Client{Transport: c.transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// payload is what is posted.
type payload struct {
	Key    string `json:"key"`
	Text   string `json:"text"`
	Breach bool   `json:"breach"`
	Event
}

// Alert implements [Alerter]. It tries until the event is taken, or refused for good,
// or the attempts are used up, or ctx ends.
func (w *Webhook) Alert(ctx context.Context, e Event) error {
	body, err := encode(payload{e.Key(), e.Text(), e.Breach(), e})
	if err != nil {
		return fmt.Errorf("rollout: webhook: %w", err)
	}
	wait := w.config.first
	for i := 1; ; i++ {
		after, err := w.post(ctx, e.Key(), body)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("rollout: webhook: post to %s: %w", w.name, err)
		if final := (*finalError)(nil); errors.As(err, &final) {
			return err
		}
		if i == w.config.attempts {
			return fmt.Errorf("%w (%d attempts)", err, i)
		}
		if !sleep(ctx, max(after, wait/2+rand.N(wait/2))) {
			return fmt.Errorf("%w (%d attempts, then %w)", err, i, context.Cause(ctx))
		}
		wait = min(2*wait, w.config.longest)
	}
}

// finalError is an answer that another attempt does not change.
type finalError struct{ status string }

func (e *finalError) Error() string { return "status " + e.status }

func (w *Webhook) post(ctx context.Context, key string, body []byte) (retryAfter time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.config.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(body))
	if err != nil {
		return 0, &finalError{"none: no request can be made"}
	}
	req.Header = w.config.header.Clone()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", strconv.Quote(key))
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", "graylane")
	}
	resp, err := w.client.Do(req)
	if err != nil {
		if bad := (*url.Error)(nil); errors.As(err, &bad) {
			err = bad.Err // without the URL
		}
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	status := strconv.Itoa(resp.StatusCode)
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return 0, nil
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		return retryAfterOf(resp), errors.New("status " + status)
	}
	return 0, &finalError{status}
}

// retryAfterOf returns what the answer asks for, RFC 9110, section 10.2.3.
func retryAfterOf(resp *http.Response) time.Duration {
	v := resp.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(v, 10, 16); err == nil {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}
