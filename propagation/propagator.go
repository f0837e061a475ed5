package propagation

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/metric"
	otelprop "go.opentelemetry.io/otel/propagation"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/telemetry"
)

// baggageKey is the header of W3C Baggage, https://www.w3.org/TR/baggage/, in
// the form in which net/http keeps it: looking it up costs no allocation.
const baggageKey = "Baggage"

// Propagator moves the tag of a context into carriers and back. It is an OTel
// TextMapPropagator, composes with TraceContext{} and Baggage{} in any order,
// and is safe for concurrent use. Make one with [New].
type Propagator struct {
	formats []format // compatibility formats, in the order of the options
	metrics *telemetry.Metrics
	fields  []string
}

var _ otelprop.TextMapPropagator = (*Propagator)(nil)

// Option configures [New].
type Option interface{ apply(*config) }

type optionFunc func(*config)

func (f optionFunc) apply(c *config) { f(c) }

type config struct {
	formats  []format
	provider metric.MeterProvider
}

// WithMeterProvider sets where malformed and withheld tags are counted. The
// default, also for nil, is the global provider.
func WithMeterProvider(p metric.MeterProvider) Option {
	return optionFunc(func(c *config) { c.provider = p })
}

// New makes a Propagator. It fails where a compatibility header has no valid
// name, is one of the names that the library uses itself, or is named twice.
func New(opts ...Option) (*Propagator, error) {
	var c config
	for _, o := range opts {
		if o != nil {
			o.apply(&c)
		}
	}
	p := &Propagator{metrics: telemetry.New(c.provider), fields: []string{graytag.Header, "baggage"}}
	for _, f := range c.formats {
		if err := f.check(); err != nil {
			return nil, err
		}
		f.name = http.CanonicalHeaderKey(f.name)
		if slices.ContainsFunc(p.fields, func(s string) bool { return http.CanonicalHeaderKey(s) == f.name }) {
			return nil, fmt.Errorf("propagation: compatibility header %q, want one that nothing else uses", f.name)
		}
		p.formats = append(p.formats, f)
		p.fields = append(p.fields, f.name)
	}
	return p, nil
}

// Fields returns the names of the headers that Inject sets.
func (p *Propagator) Fields() []string { return slices.Clone(p.fields) }

// Inject writes the tag of ctx into c: X-Gray-Tag, baggage, and the enabled
// compatibility formats. Where ctx is in scope it is the only truth: what c
// held of another tag goes, also where ctx is untagged. Baggage members that
// are not ours stay, those of c and those of ctx. Where ctx is not in scope,
// Inject leaves c as it is.
//
// A carrier that can delete and list several values (see [HeaderCarrier]) is
// used so; on another one a header is removed by setting it to "".
func (p *Propagator) Inject(ctx context.Context, c otelprop.TextMapCarrier) {
	tag := graytag.FromContext(ctx)
	if tag.IsZero() && !graytag.InScope(ctx) {
		return
	}
	k := adapt(c)
	if tag.IsZero() {
		if k.get(graytag.Header) != "" {
			k.remove(graytag.Header)
		}
	} else {
		k.set(graytag.Header, tag.String())
	}
	for i := range p.formats {
		f := &p.formats[i]
		if v := f.write(tag); v != "" {
			k.set(f.name, v)
		} else if k.get(f.name) != "" {
			k.remove(f.name)
		}
	}
	p.injectBaggage(ctx, tag, &k)
}

func (p *Propagator) injectBaggage(ctx context.Context, tag graytag.Tag, k *carrier) {
	present := k.values(baggageKey)
	bag := baggage.FromContext(ctx)
	if len(present) == 0 && bag.Len() == 0 && tag.IsZero() {
		return
	}
	own := tag.BaggageHeader()
	if len(present) == 0 && own != "" && tag.IsBaggage(bag) {
		k.set(baggageKey, own)
		return
	}
	foreign, n := joinForeign(bag, present)
	if own != "" && foreign != "" {
		if n+tag.Len() > maxMembers || len(foreign)+1+len(own) > maxBytes {
			// Somebody else's members are not ours to drop; the header went.
			p.metrics.CountWithheld(ctx, telemetry.WithheldBaggage)
			own = ""
		} else {
			own = foreign + "," + own
		}
	}
	if own == "" {
		own = foreign
	}
	switch {
	case own != "":
		k.set(baggageKey, own)
	case len(present) > 0:
		k.remove(baggageKey)
	}
}

// Extract reads a tag from c and returns ctx with it. X-Gray-Tag is asked
// first, then baggage, then the enabled compatibility formats; the first that
// holds a valid tag wins. A malformed one is counted and passed over: it never
// fails a request. The winning tag replaces the gray.* baggage members of ctx;
// other members of the carrier's baggage are added to those of ctx.
//
// Where c holds no valid tag ctx is not marked as in scope; that is for the
// middleware to do, which knows that it stands at the entrance of a service, and
// for [Propagator.Receive].
func (p *Propagator) Extract(ctx context.Context, c otelprop.TextMapCarrier) context.Context {
	k := adapt(c)
	lines := k.values(baggageKey)
	tag, malformed := p.read(ctx, k, lines)
	if len(lines) > 0 {
		ctx = withForeign(ctx, lines)
	}
	switch {
	case !tag.IsZero():
		return graytag.NewContext(ctx, tag)
	case malformed:
		// OTel middleware outside ours may have made something of it.
		if bag := baggage.FromContext(ctx); bag.Len() > 0 {
			bag, _ = graytag.Tag{}.IntoBaggage(bag)
			return baggage.ContextWithBaggage(ctx, bag)
		}
	}
	return ctx
}

// Receive is Extract for the consumer of a message, who stands where a service's
// inbound middleware would: the context that it returns is in scope, also where
// the message is untagged. A default tag of a client does not apply to it, and
// its calls are no orphans.
func (p *Propagator) Receive(ctx context.Context, c otelprop.TextMapCarrier) context.Context {
	next := p.Extract(ctx, c)
	if graytag.InScope(next) {
		return next
	}
	return graytag.NewContext(next, graytag.Tag{})
}

// Tag reads the tag that c holds, as Extract does, and touches no context. ok
// is false where there is none that is valid.
func (p *Propagator) Tag(ctx context.Context, c otelprop.TextMapCarrier) (tag graytag.Tag, ok bool) {
	k := adapt(c)
	tag, _ = p.read(ctx, k, k.values(baggageKey))
	return tag, !tag.IsZero()
}

// Remove takes everything out of c that says something of a tag: X-Gray-Tag,
// the enabled compatibility formats and the gray.* members of baggage. Other
// members stay. It tells whether there was something.
func (p *Propagator) Remove(c otelprop.TextMapCarrier) (removed bool) {
	k := adapt(c)
	if k.get(graytag.Header) != "" {
		k.remove(graytag.Header)
		removed = true
	}
	for i := range p.formats {
		if k.get(p.formats[i].name) != "" {
			k.remove(p.formats[i].name)
			removed = true
		}
	}
	lines := k.values(baggageKey)
	own := false
	for key := range listMembers(lines, wholly) {
		own = own || isOwn(key)
	}
	if !own {
		return removed
	}
	if foreign, _ := joinForeign(baggage.Baggage{}, lines); foreign != "" {
		k.set(baggageKey, foreign)
	} else {
		k.remove(baggageKey)
	}
	return true
}

// read returns the first valid tag of a carrier and whether it passed over a
// malformed one.
func (p *Propagator) read(ctx context.Context, k carrier, lines []string) (tag graytag.Tag, malformed bool) {
	if v, ok := single(k.values(graytag.Header)); !ok {
		malformed = true
		p.metrics.CountMalformed(ctx, "header")
	} else if v != "" {
		t, err := graytag.Parse(v)
		if err == nil && !t.IsZero() {
			return t, false
		}
		if err != nil {
			malformed = true
			p.metrics.CountMalformed(ctx, "header")
		}
	}
	if len(lines) > 0 {
		t, err := tagFromBaggage(lines)
		if err == nil && !t.IsZero() {
			return t, malformed
		}
		if err != nil {
			malformed = true
			p.metrics.CountMalformed(ctx, "baggage")
		}
	}
	for i := range p.formats {
		f := &p.formats[i]
		v, ok := single(k.values(f.name))
		if ok && v == "" {
			continue
		}
		if ok {
			if t, valid := f.read(v); valid {
				return t, malformed
			}
		}
		malformed = true
		p.metrics.CountMalformed(ctx, f.kind.String())
	}
	return graytag.Tag{}, malformed
}

// single returns the one value of a header that is not empty. Values that
// differ are no value: one of them was not meant for us, and nobody knows which.
func single(values []string) (v string, ok bool) {
	for _, s := range values {
		if s == "" || s == v {
			continue
		}
		if v != "" {
			return "", false
		}
		v = s
	}
	return v, true
}
