package graygrpc

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/baggage"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
)

// Arrival is what it means that a request has arrived at this instance.
type Arrival struct {
	Service string // the own service, as [WithSelf] says
	Version string // the own version, "" for stable
	Wanted  string // the version that the request asks of the service, "" for stable
	// Outcome is subset.Matched, subset.Stable, subset.Fallback where the
	// policy lets this instance serve in place of the wanted version, or
	// subset.Misrouted: the request should never have come here.
	Outcome subset.Outcome
}

type arrivalKey struct{}

// ArrivalFromContext returns what it means that the request of ctx has arrived
// here. ok is false where the server was not told who it is, see [WithSelf], and
// for methods that are exempt.
func ArrivalFromContext(ctx context.Context) (a Arrival, ok bool) {
	p, ok := ctx.Value(arrivalKey{}).(*Arrival)
	if !ok {
		return Arrival{}, false
	}
	return *p, true
}

// self is the own instance with the policy that says what may arrive.
type self struct {
	selector *subset.Selector
	version  string
	stable   *Arrival // of a request that wants stable
	own      *Arrival // of a request that wants this version
}

func newSelf(c *config) (*self, error) {
	if c.self == nil {
		// A wrong policy is wrong without an instance, too.
		if _, err := c.policy.Compile(""); err != nil {
			return nil, fmt.Errorf("graygrpc: %w", err)
		}
		return nil, nil
	}
	if c.self.Service == "" {
		return nil, errors.New("graygrpc: WithSelf: instance without a service, want its name")
	}
	if err := registry.ValidateMetadata(c.self.Metadata); err != nil {
		return nil, fmt.Errorf("graygrpc: WithSelf: %w", err)
	}
	policy, ok := c.policies[c.self.Service]
	if !ok {
		policy = c.policy
	}
	selector, err := policy.Compile(c.self.Service)
	if err != nil {
		return nil, fmt.Errorf("graygrpc: WithSelf: service %q: %w", c.self.Service, err)
	}
	s := &self{selector: selector, version: selector.Version(c.self.Metadata)}
	s.stable = s.arrival("", selector.Arrival(graytag.Tag{}, s.version))
	own := subset.Matched
	if s.version == "" {
		own = subset.Stable
	}
	s.own = s.arrival(s.version, own)
	return s, nil
}

func (s *self) arrival(wanted string, outcome subset.Outcome) *Arrival {
	return &Arrival{Service: s.selector.Service(), Version: s.version, Wanted: wanted, Outcome: outcome}
}

// classify allocates only for requests that want neither stable nor this
// version.
func (s *self) classify(tag graytag.Tag) *Arrival {
	switch wanted := s.selector.Wanted(tag); wanted {
	case s.version:
		return s.own
	case "":
		return s.stable
	default:
		return s.arrival(wanted, s.selector.Arrival(tag, s.version))
	}
}

// untagged returns ctx in scope and without a tag, and with a where it is not
// nil.
func untagged(ctx context.Context, a *Arrival) context.Context {
	if baggage.FromContext(ctx).Len() > 0 {
		// There may be gray.* members among them that spell no tag, put there
		// by OTel middleware outside ours.
		ctx = graytag.NewContext(ctx, graytag.Tag{})
		if a != nil {
			ctx = context.WithValue(ctx, arrivalKey{}, a)
		}
		return ctx
	}
	return &untaggedContext{ctx, a}
}

// untaggedContext is the context of an untagged request with its arrival: one
// layer in place of two, since most requests are untagged.
type untaggedContext struct {
	context.Context
	arrival *Arrival // may be nil
}

// inScope answers what graytag asks of an untagged context.
var inScope = graytag.NewContext(context.Background(), graytag.Tag{})

func (c *untaggedContext) Value(key any) any {
	if key == (arrivalKey{}) {
		if c.arrival == nil {
			return nil
		}
		return c.arrival
	}
	if v := inScope.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}
