package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/graylane/graylane/balancer/subset"
)

// hop is one call as the instance that served it saw it.
type hop struct {
	service, instance, address string
	version                    string // of the instance, "" for stable
	wanted                     string // by the tag, "" for stable
	outcome                    subset.Outcome
}

// tally counts what the servers saw, and keeps the hops of a few orders.
type tally struct {
	mu       sync.Mutex
	served   map[string]map[string]int // service -> version -> calls
	outcomes map[subset.Outcome]int
	hops     int
	kept     map[string][]hop // by order, of those that are to be kept
	gray     map[string]bool  // order -> it was served by v2
}

func newTally() *tally {
	return &tally{served: map[string]map[string]int{}, outcomes: map[subset.Outcome]int{}, kept: map[string][]hop{}, gray: map[string]bool{}}
}

// keep makes t keep the first order of each of some users.
func (t *tally) keep(users ...int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range users {
		t.kept[orderID(1, u)] = nil
	}
}

func (t *tally) add(order string, h hop) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hops++
	t.outcomes[h.outcome]++
	if t.served[h.service] == nil {
		t.served[h.service] = map[string]int{}
	}
	t.served[h.service][h.version]++
	if h.service == "order" {
		t.gray[order] = h.version != ""
	}
	if hops, ok := t.kept[order]; ok {
		t.kept[order] = append(hops, h)
	}
}

// chain is the order in which the services of the shop call each other, with
// the branch of the picture that leads to each.
var chain = []struct {
	service string
	branch  string
}{{"order", ""}, {"inventory", "├─ "}, {"user", "│  └─ "}, {"coupon", "└─ "}}

// isGray tells which version of the first service an order was served by.
func (t *tally) isGray(order string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gray[order]
}

// picture draws the hops of the first order of a user, one row per hop.
func (t *tally) picture(w io.Writer, c colours, user int, title string) {
	t.mu.Lock()
	hops := slices.Clone(t.kept[orderID(1, user)])
	t.mu.Unlock()
	slices.SortStableFunc(hops, func(a, b hop) int { return cmp.Compare(rank(a.service), rank(b.service)) })

	fmt.Fprintf(w, "%s\n", c.bold(title))
	for _, h := range hops {
		why := string(h.outcome)
		if h.outcome == subset.Fallback || h.outcome == subset.Misrouted {
			why += " (wanted " + name(h.wanted) + ")"
		}
		row := fmt.Sprintf("  %-15s  %-6s  %-18s  %-15s  %s", chain[rank(h.service)].branch+h.service, name(h.version), h.instance, h.address, why)
		fmt.Fprintln(w, c.hop(h, row))
	}
}

func rank(service string) int {
	for i, link := range chain {
		if link.service == service {
			return i
		}
	}
	return len(chain) - 1
}

// table prints services against versions.
func (t *tally) table(w io.Writer, c colours) {
	t.mu.Lock()
	defer t.mu.Unlock()
	versions := map[string]bool{}
	for _, by := range t.served {
		for v := range by {
			versions[v] = true
		}
	}
	columns := slices.Sorted(maps.Keys(versions)) // "" comes first: stable
	head := fmt.Sprintf("  %-12s", "calls served")
	for _, v := range columns {
		head += fmt.Sprintf(" %8s", name(v))
	}
	fmt.Fprintln(w, c.bold(head))
	for _, link := range chain {
		row := fmt.Sprintf("  %-12s", link.service)
		for _, v := range columns {
			row += fmt.Sprintf(" %8d", t.served[link.service][v])
		}
		fmt.Fprintln(w, row)
	}
}

// summary is the last line of the program.
func (t *tally) summary(requests int) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("requests=%d hops=%d matched=%d stable=%d fallback=%d misrouted=%d", requests, t.hops,
		t.outcomes[subset.Matched], t.outcomes[subset.Stable], t.outcomes[subset.Fallback], t.outcomes[subset.Misrouted])
}

func (t *tally) misrouted() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outcomes[subset.Misrouted]
}

func name(version string) string {
	if version == "" {
		return "stable"
	}
	return version
}
