package subset

import (
	"fmt"
	"slices"
	"strings"

	"github.com/graylane/graylane/graytag"
	"github.com/graylane/graylane/registry"
)

// Words of [Policy.Fallback] that name no version.
const (
	FallbackToStable = "stable" // the stable instances
	FallbackToAny    = "any"    // every instance that can serve, in proportion
)

// Policy says which instances may serve a request. The zero value is the
// default: route by "version", fall back to stable.
type Policy struct {
	// Key is both the key that is read from the tag and the metadata key that
	// is read from instances. Default "version".
	Key string
	// Stable lists the metadata values of stable instances beside "", which
	// always is. nil means ["stable"].
	Stable []string
	// FoldCase compares versions without regard to the case of ASCII letters.
	FoldCase bool
	// Fallback is what to try, in order, where the wanted version cannot
	// serve: "stable", "any" or the name of a version. A named version serves
	// only requests that wanted a version. nil or empty means ["stable"].
	Fallback []string
	// Strict turns every fallback off. It excludes Fallback.
	Strict bool
	// MinReady is how many ready instances a gray version needs before it is
	// used. 0 means 1. It does not bind stable.
	MinReady int
}

// Selector is a checked [Policy] applied to one service. It is immutable and
// safe for concurrent use.
type Selector struct {
	service  string
	key      string
	stable   []string // folded where foldCase
	foldCase bool
	fallback []string // folded; empty where strict
	minReady int
}

// Compile checks p and applies it to service, whose name may be empty where
// nothing but [Selector.Version] is asked of the result.
func (p Policy) Compile(service string) (*Selector, error) {
	s := &Selector{service: service, key: p.Key, foldCase: p.FoldCase, minReady: max(1, p.MinReady)}
	if s.key == "" {
		s.key = registry.MetadataVersion
	}
	if !graytag.ValidKey(s.key) {
		return nil, fmt.Errorf("subset: policy: key %q, want a tag key: [A-Za-z0-9][A-Za-z0-9._-]{0,63}", p.Key)
	}
	if p.MinReady < 0 {
		return nil, fmt.Errorf("subset: policy: minReady %d, want 0 or more", p.MinReady)
	}
	s.stable = []string{"stable"}
	if p.Stable != nil {
		s.stable = slices.Clone(p.Stable)
	}
	for i, v := range s.stable {
		s.stable[i] = s.fold(v)
	}
	switch {
	case p.Strict && len(p.Fallback) > 0:
		return nil, fmt.Errorf("subset: policy: strict and fallback %q, want one of them", p.Fallback)
	case p.Strict:
	case len(p.Fallback) == 0:
		s.fallback = []string{FallbackToStable}
	default:
		for _, f := range p.Fallback {
			if f == "" {
				return nil, fmt.Errorf("subset: policy: fallback %q holds an empty name, want stable, any or a version", p.Fallback)
			}
			for _, word := range []string{FallbackToStable, FallbackToAny} {
				if f != word && strings.EqualFold(f, word) {
					return nil, fmt.Errorf("subset: policy: fallback %q holds %q, want %q, or a version of another name", p.Fallback, f, word)
				}
			}
			if f != FallbackToAny && f != FallbackToStable {
				if f = s.fold(f); slices.Contains(s.stable, f) {
					f = FallbackToStable
				}
			}
			if slices.Contains(s.fallback, f) {
				return nil, fmt.Errorf("subset: policy: fallback %q names %q twice", p.Fallback, f)
			}
			s.fallback = append(s.fallback, f)
		}
	}
	return s, nil
}

// Service returns the name of the service that s was compiled for.
func (s *Selector) Service() string { return s.service }

// Key returns the routing and metadata key.
func (s *Selector) Key() string { return s.key }

// Version returns the version of an instance with this metadata, "" for
// stable. Where the policy folds case the version is in lower case.
func (s *Selector) Version(metadata map[string]string) string { return s.canonical(metadata[s.key]) }

// Wanted returns the version that t asks of the service, "" for stable.
func (s *Selector) Wanted(t graytag.Tag) string {
	if t.IsZero() {
		return ""
	}
	return s.canonical(t.Route(s.key, s.service))
}

func (s *Selector) canonical(v string) string {
	if v == "" {
		return ""
	}
	v = s.fold(v)
	for _, st := range s.stable {
		if v == st {
			return ""
		}
	}
	return v
}

// fold lowers ASCII letters only, so that folding never changes the length of
// a version or joins letters of other scripts. It allocates only where there is
// something to lower.
func (s *Selector) fold(v string) string {
	if !s.foldCase {
		return v
	}
	for i := 0; i < len(v); i++ {
		if c := v[i]; c >= 'A' && c <= 'Z' {
			return strings.Map(func(r rune) rune {
				if r >= 'A' && r <= 'Z' {
					return r + 'a' - 'A'
				}
				return r
			}, v)
		}
	}
	return v
}
