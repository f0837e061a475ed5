package subset

import (
	"maps"
	"slices"

	"github.com/graylane/graylane/graytag"
)

// State is what the instances of a subset that are not ready are doing.
type State uint8

const (
	// Down says that they were tried and cannot be reached.
	Down State = iota
	// Pending says that they are connecting, or would if somebody asked: worth
	// waiting for.
	Pending
	// Overdue is Pending for longer than anybody should wait who has a choice.
	Overdue
)

// Subset is what a [Table] has to know of the instances of one version.
type Subset struct {
	Version    string // as Selector.Version returns it, "" for stable
	Registered int    // instances that the registry knows, whatever their state
	Ready      int    // instances that can serve now
	State      State  // of the others; read only where too few are ready
}

// Choice is the decision for one wanted version: which subset serves, or
// should be waited for. It is shared between callers and must not be changed.
type Choice struct {
	// Index is the position of the choice in [Table.Choices], where a balancer
	// keeps what it prepared for it.
	Index int
	// Subsets are positions in the slice that the table was made of. There are
	// several only for FallbackAny: each should serve in proportion to its
	// ready instances. There is none where the outcome is Unavailable.
	Subsets []int
	// Served is the version of the subset that serves, "" for stable and where
	// there are several.
	Served  string
	Outcome Outcome
	Reason  Reason // "" for Matched and Stable
	// Wait says that the subset is not ready: ask it to connect and wait.
	Wait bool
	// Final says, of Unavailable, that waiting cannot help: other versions of
	// the service are registered, and none that may serve.
	Final bool
}

// Table holds a decision for every version that a request can want of one
// service. It is immutable and safe for concurrent use; the cost of a look-up
// depends neither on the number of versions nor on that of instances.
type Table struct {
	selector *Selector
	stable   *Choice
	missing  *Choice // of a version that no instance has
	versions index   // of the versions that there are, and of the words for stable
	choices  []*Choice
	have     map[string]int
}

// NewTable decides for every version. subsets holds each version once.
func (s *Selector) NewTable(subsets []Subset) *Table {
	t := &Table{selector: s, have: make(map[string]int, len(subsets))}
	versions := make(map[string]*Choice, len(subsets)+len(s.stable))
	at := make(map[string]int, len(subsets))
	for i := range subsets {
		at[subsets[i].Version] = i
		if n := subsets[i].Registered; n > 0 {
			t.have[subsets[i].Version] = n
		}
	}
	d := decider{s: s, subsets: subsets, at: at}
	add := func(c *Choice) *Choice {
		c.Index = len(t.choices)
		t.choices = append(t.choices, c)
		return c
	}
	for i := range subsets {
		if v := subsets[i].Version; v != "" {
			versions[v] = add(d.choose(i, false))
		}
	}
	stable, ok := at[""]
	if !ok {
		stable = none
	}
	t.stable = add(d.choose(stable, true))
	t.missing = add(d.choose(none, false))
	for _, v := range s.stable {
		versions[v] = t.stable // one look-up says both
	}
	t.versions = newIndex(versions)
	return t
}

// Choices returns every decision of t, each at its Index.
func (t *Table) Choices() []*Choice { return slices.Clone(t.choices) }

// Choose returns the decision for a request with tag, and the version that it
// wants ("" for stable). It does not allocate, unless it has to fold the case
// of the version.
func (t *Table) Choose(tag graytag.Tag) (*Choice, string) {
	wanted := tag.Route(t.selector.key, t.selector.service)
	if wanted == "" {
		return t.stable, ""
	}
	if t.selector.foldCase {
		wanted = t.selector.fold(wanted)
	}
	x := &t.versions
	for i := x.start(wanted); ; i++ {
		switch s := &x.slots[i&(len(x.slots)-1)]; {
		case s.choice == nil:
			return t.missing, wanted
		case s.version != wanted:
		case s.choice == t.stable:
			return t.stable, ""
		default:
			return s.choice, wanted
		}
	}
}

// Stable returns the decision for requests that want stable, untagged ones
// among them.
func (t *Table) Stable() *Choice { return t.stable }

// Unavailable makes the error for a request that wanted a version and got c,
// whose outcome is Unavailable. cause may be nil.
func (t *Table) Unavailable(c *Choice, wanted string, cause error) *UnavailableError {
	return &UnavailableError{Service: t.selector.service, Wanted: wanted, Have: maps.Clone(t.have), Reason: c.Reason, Err: cause}
}

// Have returns the registered instances per version, stable under "".
func (t *Table) Have() map[string]int { return maps.Clone(t.have) }

const none = -1

type decider struct {
	s       *Selector
	subsets []Subset
	at      map[string]int
}

func (d decider) registered(i int) bool { return i != none && d.subsets[i].Registered > 0 }

func (d decider) ready(i int) bool {
	if i == none {
		return false
	}
	need := d.s.minReady
	if d.subsets[i].Version == "" {
		need = 1
	}
	return d.subsets[i].Ready >= need
}

// pending tells whether a subset without any ready instance has one on the way.
func (d decider) pending(i int, states ...State) bool {
	if !d.registered(i) || d.subsets[i].Ready > 0 {
		return false
	}
	for _, st := range states {
		if d.subsets[i].State == st {
			return true
		}
	}
	return false
}

func (d decider) reason(i int) Reason {
	switch {
	case !d.registered(i):
		return Missing
	case d.subsets[i].Ready > 0:
		return Warming
	case d.pending(i, Pending, Overdue):
		return Connecting
	}
	return Unhealthy
}

// choose decides for the version of subset wanted, none for a version that no
// instance has.
func (d decider) choose(wanted int, wantsStable bool) *Choice {
	own := &Choice{Outcome: Matched}
	if wantsStable {
		own.Outcome = Stable
	}
	if wanted != none {
		own.Subsets, own.Served = []int{wanted}, d.subsets[wanted].Version
	}
	if d.ready(wanted) {
		return own
	}
	reason := d.reason(wanted)
	own.Wait = true
	if d.pending(wanted, Pending) {
		return own
	}
	candidates := d.candidates(wanted, wantsStable)
	// A subset that connects is worth a wait, but not to somebody who has
	// waited for the wanted one already.
	waiting := []State{Pending}
	if d.pending(wanted, Overdue) {
		waiting = nil
	}
	for _, c := range candidates {
		if got := d.take(c, reason, waiting...); got != nil {
			return got
		}
	}
	if d.pending(wanted, Overdue) {
		return own
	}
	final := !d.registered(wanted) && d.anyRegistered()
	for _, c := range candidates {
		if got := d.take(c, reason, Pending, Overdue); got != nil {
			return got
		}
		for _, i := range c.subsets {
			final = final && !d.registered(i)
		}
	}
	return &Choice{Outcome: Unavailable, Reason: reason, Final: final}
}

func (d decider) anyRegistered() bool {
	for i := range d.subsets {
		if d.subsets[i].Registered > 0 {
			return true
		}
	}
	return false
}

type candidate struct {
	subsets []int
	outcome Outcome
}

func (d decider) candidates(wanted int, wantsStable bool) []candidate {
	var list []candidate
	for _, f := range d.s.fallback {
		switch f {
		case FallbackToAny:
			all := make([]int, len(d.subsets))
			for i := range all {
				all[i] = i
			}
			list = append(list, candidate{all, FallbackAny})
		case FallbackToStable:
			if i, ok := d.at[""]; ok && !wantsStable {
				list = append(list, candidate{[]int{i}, FallbackStable})
			}
		default:
			if i, ok := d.at[f]; ok && !wantsStable && i != wanted {
				list = append(list, candidate{[]int{i}, FallbackVersion})
			}
		}
	}
	return list
}

// take returns the decision for c where it is ready or in one of the states
// waiting, else nil.
func (d decider) take(c candidate, reason Reason, waiting ...State) *Choice {
	var ready, pending []int
	for _, i := range c.subsets {
		// MinReady guards a version against its own rush; "any" is no rush.
		if c.outcome == FallbackAny && d.subsets[i].Ready > 0 || d.ready(i) {
			ready = append(ready, i)
		} else if d.pending(i, waiting...) {
			pending = append(pending, i)
		}
	}
	got := &Choice{Subsets: ready, Outcome: c.outcome, Reason: reason}
	if len(ready) == 0 {
		got.Subsets, got.Wait = pending, true
	}
	switch len(got.Subsets) {
	case 0:
		return nil
	case 1:
		got.Served = d.subsets[got.Subsets[0]].Version
	}
	return got
}
