package subset

import "github.com/graylane/graylane/graytag"

// Arrival is what it means that a request has arrived at an instance.
type Arrival struct {
	Service string // of the instance
	Version string // of the instance, "" for stable
	Wanted  string // the version that the request asks of the service, "" for stable
	// Outcome is [Matched], [Stable], [Fallback] where the policy lets this
	// instance serve in place of the wanted version, or [Misrouted]: the request
	// should never have come here.
	Outcome Outcome
}

// Arrival says what it means that a request with tag t has arrived at an
// instance of version own ("" for stable, as [Selector.Version] returns it):
// [Matched], [Stable], [Fallback] where the policy allows it, else
// [Misrouted].
func (s *Selector) Arrival(t graytag.Tag, own string) Outcome {
	wanted := s.Wanted(t)
	switch {
	case wanted == own && own == "":
		return Stable
	case wanted == own:
		return Matched
	}
	for _, f := range s.fallback {
		switch f {
		case FallbackToAny:
			return Fallback
		case FallbackToStable:
			if own == "" {
				return Fallback
			}
		case own:
			if wanted != "" {
				return Fallback
			}
		}
	}
	return Misrouted
}
