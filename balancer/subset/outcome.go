package subset

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Outcome is what became of a routing decision.
type Outcome string

const (
	Matched         Outcome = "matched"          // a gray version was wanted and serves
	Stable          Outcome = "stable"           // stable was wanted and serves
	FallbackStable  Outcome = "fallback_stable"  // stable serves in place of the wanted version
	FallbackVersion Outcome = "fallback_version" // a version that the policy names serves in its place
	FallbackAny     Outcome = "fallback_any"     // whatever there is serves in its place
	Unavailable     Outcome = "unavailable"      // nothing may serve
)

// What [Selector.Arrival] says beside [Matched] and [Stable].
const (
	Fallback  Outcome = "fallback"  // the instance serves in place of the wanted version
	Misrouted Outcome = "misrouted" // the request should never have come here
)

// Reason is why the wanted version does not serve.
type Reason string

const (
	Missing    Reason = "missing"    // no instance of the version is registered
	Unhealthy  Reason = "unhealthy"  // registered, none can be reached
	Connecting Reason = "connecting" // registered, connections are under way
	Warming    Reason = "warming"    // some are ready, fewer than Policy.MinReady
)

// UnavailableError says that no instance may serve a request: neither one of
// the wanted version nor one that the policy allows in its place.
type UnavailableError struct {
	Service string
	Wanted  string         // the version that was wanted, "" for stable
	Have    map[string]int // registered instances per version, stable under ""
	Reason  Reason         // why the wanted version cannot serve
	Err     error          // the last cause that was seen, nil where there is none
}

// haveShown bounds the versions that an error message lists.
const haveShown = 16

// Error names the service, the version that was wanted, what is registered (at
// most 16 versions) and the last cause.
func (e *UnavailableError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "subset: no instance of service %q may serve version %q (%s); registered:", e.Service, name(e.Wanted), e.Reason)
	if len(e.Have) == 0 {
		b.WriteString(" none")
	}
	for i, v := range slices.Sorted(maps.Keys(e.Have)) {
		if i == haveShown {
			fmt.Fprintf(&b, " and %d more", len(e.Have)-i)
			break
		}
		fmt.Fprintf(&b, " %s=%d", name(v), e.Have[v])
	}
	if _, ok := e.Have[""]; e.Wanted == "" && e.Reason == Missing && len(e.Have) > 0 && !ok {
		b.WriteString("; stable instances have no version in their metadata, or one that the policy calls stable")
	}
	if e.Err != nil {
		fmt.Fprintf(&b, "; last error: %v", e.Err)
	}
	return b.String()
}

// Unwrap returns the last cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

func name(version string) string {
	if version == "" {
		return "stable"
	}
	return version
}
