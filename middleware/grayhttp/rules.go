package grayhttp

import (
	"context"
	"net/http"
	"net/url"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/graytag/rule"
	"github.com/graylane/graylane/internal/edge"
)

// WithRules has engine decide for requests whose tag asks for no version of the
// service that they go to, an explicit version=stable being one. source is the
// own service, which rules see as source. They see the request as it is sent,
// and the pairs of its tag in place of the attributes of the same name: a request
// whose tag holds a uid is of that user. The client's address is not known any
// more. What the rules say is added to the tag of that one request, which is
// routed by it and hands it on; the context of the caller stays as it is.
//
// The service is the one that the discovery is asked for; behind [NewTransport]
// with a base that has none, it is the host, where that is a name of one label.
// Requests that leave the system are none of the rules' business. nil is ignored.
//
// Where the entrance decides by the same engine, a request of a user whom it left
// untagged is decided anew, by what is known here: a rule for all services that asks
// for not_exists, or for a path, may match. "default": "version=stable" pins such users.
func WithRules(engine *rule.Engine, source string) TransportOption {
	return transportOptionFunc(func(c *config) {
		if engine != nil {
			c.rules = &edge.HopRules{Engine: engine, Source: source}
		}
	})
}

// decide returns ctx and tag as the rules want them for req; ok is false where
// they change nothing.
func (t *Transport) decide(ctx context.Context, req *http.Request, tag graytag.Tag) (_ context.Context, _ graytag.Tag, ok bool) {
	service := t.service(req.URL)
	if !t.rules.Applies(tag, service) {
		return ctx, tag, false
	}
	host := req.Host
	if host == "" {
		host = req.URL.Host
	}
	tag, ok = t.rules.Tag(tag, httpHeader(req.Header), edge.Fields{
		Host: host, Path: req.URL.Path, Method: method(req), RawQuery: req.URL.RawQuery, Service: service,
	})
	if ok {
		ctx = graytag.NewContext(ctx, tag)
	}
	return ctx, tag, ok
}

// service returns the name of the service that u is of, "" for none.
func (t *Transport) service(u *url.URL) string {
	if t.discovers != nil {
		if s, ok := t.discovers(u); ok {
			return s
		}
		return ""
	}
	return edge.ServiceOf(u.Host)
}

func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}
