package arrival

import (
	"errors"
	"fmt"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/internal/hops"
	"github.com/graylane/graylane/internal/telemetry"
	"github.com/graylane/graylane/registry"
)

// Self is the own instance with the policy that says what may arrive. It is
// immutable and safe for concurrent use.
type Self struct {
	selector *subset.Selector
	version  string
	stable   *subset.Arrival // of a request that wants stable
	own      *subset.Arrival // of a request that wants this version
}

// NewSelf returns what i says about itself, nil where i is nil. The policy of its
// service is that of policies, else policy; both are checked without an instance,
// too. Errors have no prefix: they are about the options of the caller.
func NewSelf(i *registry.Instance, policy subset.Policy, policies map[string]subset.Policy) (*Self, error) {
	for service, p := range policies {
		if service == "" {
			return nil, errors.New("policy for a service without a name")
		}
		if _, err := p.Compile(service); err != nil {
			return nil, fmt.Errorf("policy for service %q: %w", service, err)
		}
	}
	if i == nil {
		_, err := policy.Compile("")
		return nil, err
	}
	if i.Service == "" {
		return nil, errors.New("WithSelf: instance without a service, want its name")
	}
	if err := registry.ValidateMetadata(i.Metadata); err != nil {
		return nil, fmt.Errorf("WithSelf: %w", err)
	}
	if p, ok := policies[i.Service]; ok {
		policy = p
	}
	selector, err := policy.Compile(i.Service)
	if err != nil {
		return nil, fmt.Errorf("WithSelf: service %q: %w", i.Service, err)
	}
	s := &Self{selector: selector, version: selector.Version(i.Metadata)}
	s.stable = s.arrival("", selector.Arrival(graytag.Tag{}, s.version))
	own := subset.Matched
	if s.version == "" {
		own = subset.Stable
	}
	s.own = s.arrival(s.version, own)
	return s, nil
}

func (s *Self) arrival(wanted string, outcome subset.Outcome) *subset.Arrival {
	return &subset.Arrival{Service: s.selector.Service(), Version: s.version, Wanted: wanted, Outcome: outcome}
}

// Hidden tells whether versions are names of people.
func (s *Self) Hidden() bool { return telemetry.Hidden(s.selector.Key()) }

// Selector returns the policy of the own service.
func (s *Self) Selector() *subset.Selector { return s.selector }

// Version returns the own version, "" for stable.
func (s *Self) Version() string { return s.version }

// Labels returns what metrics show of a: where versions are names of people, none of them.
func (s *Self) Labels(a *subset.Arrival) (version, wanted string) {
	if s.Hidden() {
		return telemetry.Hide(a.Version), telemetry.Hide(a.Wanted)
	}
	return a.Version, a.Wanted
}

// Hop is a on the route of its request, at the instance of that ID or address; the zero
// Hop where a is nil.
func Hop(a *subset.Arrival, instance string) hops.Hop {
	if a == nil {
		return hops.Hop{}
	}
	return hops.Hop{
		Service: a.Service, Instance: instance,
		Wanted: telemetry.Text(a.Wanted), Got: telemetry.Text(a.Version), Outcome: string(a.Outcome),
	}
}

// Classify says what it means that a request with tag has arrived. It allocates
// only for requests that want neither stable nor this version.
func (s *Self) Classify(tag graytag.Tag) *subset.Arrival {
	switch wanted := s.selector.Wanted(tag); wanted {
	case s.version:
		return s.own
	case "":
		return s.stable
	default:
		return s.arrival(wanted, s.selector.Arrival(tag, s.version))
	}
}
