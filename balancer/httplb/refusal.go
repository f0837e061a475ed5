package httplb

import (
	"bytes"
	"cmp"
	"io"
	"net/http"
	"strings"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/arrival"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
)

// maxRefusal bounds the body of a refusal that is kept until it is clear that nobody
// else takes the request.
const maxRefusal = 4 << 10

// refusal is the answer of an instance that says that the request should not have
// come to it, and that no handler has seen it.
type refusal struct {
	resp   *http.Response
	in     *instance
	choice *subset.Choice
	wanted string
}

// isRefusal tells whether resp says that the request should not have come to the
// instance: a 421, or, of gRPC, FAILED_PRECONDITION without a body.
func isRefusal(resp *http.Response) bool {
	if len(resp.Header[arrival.MisroutedHeader]) == 0 {
		return false
	}
	return resp.StatusCode == http.StatusMisdirectedRequest || resp.Header.Get("Grpc-Status") == "9"
}

// takes tells whether resp is a refusal after which the request may go
// elsewhere. Its body is in memory then. The marker has to name the service that was
// asked: an instance may hand on the refusal of another service.
func (x *exchange) takes(resp *http.Response) bool {
	if x.refusal != nil || resp.Header.Get(arrival.MisroutedHeader) != arrival.Marker(x.s.name) {
		return false
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal+1))
	if err != nil || len(head) > maxRefusal || !x.body.claim() {
		resp.Body = &rest{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
		return false
	}
	_ = resp.Body.Close()
	resp.Body = io.NopCloser(bytes.NewReader(head))
	return true
}

// rest is a body of which a part has been read.
type rest struct {
	io.Reader
	io.Closer
}

// refused returns the refusal: nobody else takes the request.
func (x *exchange) refused() *http.Response {
	r := x.refusal
	x.report(r.in, r.choice, r.wanted)
	r.resp.Request = x.req
	return r.resp
}

// tellRefusal tells the route of the request, where somebody gathers it, of the
// refusal: it is a hop of its own, unless its answer is the one that the caller gets.
func (x *exchange) tellRefusal(last *instance) {
	c := hops.CallFromContext(x.req.Context())
	if c == nil {
		return
	}
	r := x.refusal
	hop := x.decision(r.in, r.choice, r.wanted).hop()
	if last == r.in {
		c.Decided(hop) // and not whom the second try could not reach
		return
	}
	c.Refused(hop, strings.Join(r.resp.Header[hops.RouteHeader], ", "))
}

// elsewhere chooses as if the instance at refused were down. It is for the one
// request that was refused, and not quick.
func (v *view) elsewhere(tag graytag.Tag, selector *subset.Selector, refused *endpoint) (in *instance, choice *subset.Choice) {
	table := make([]subset.Subset, len(v.groups))
	ready := make([][]*instance, len(v.groups))
	for i, g := range v.groups {
		for _, in := range g.instances {
			if in.endpoint != refused && in.endpoint.due.Load() == 0 {
				ready[i] = append(ready[i], in)
			}
		}
		table[i] = subset.Subset{Version: g.version, Registered: g.registered, Ready: len(ready[i])}
	}
	choice, _ = selector.NewTable(table).Choose(tag)
	if choice.Wait {
		return nil, choice
	}
	var subsets []*alias[*instance]
	for _, i := range choice.Subsets {
		if a := newAlias(ready[i], (*instance).weight); a != nil {
			subsets = append(subsets, a)
		}
	}
	if any := newAlias(subsets, func(a *alias[*instance]) int { return len(a.slots) }); any != nil {
		in = any.next().next()
	}
	return in, choice
}

// hop is what a decision looks like on the way of a request.
func (d Decision) hop() hops.Hop {
	h := hops.Hop{
		Service: d.Service, Wanted: telemetry.Text(d.Wanted),
		Outcome: string(d.Outcome), Reason: string(d.Reason),
	}
	if d.Outcome != subset.Unavailable {
		h.Instance, h.Got = cmp.Or(d.Instance.ID, d.Instance.Address), telemetry.Text(d.Served)
	}
	return h
}
