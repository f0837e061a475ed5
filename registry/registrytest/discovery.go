package registrytest

import (
	"context"
	"sync"
	"time"

	"github.com/graylane/graylane/registry"
)

// test is one requirement.
type test struct {
	name     string
	statuses bool // needs instances of every status
	run      func(s *suite)
}

// tests are all requirements, in the order of the interfaces' documentation.
var tests = []test{
	{name: "Register/makes_known", run: makesKnown},
	{name: "Register/refuses_invalid", run: refusesInvalid},
	{name: "Register/fails_within_context", run: failsWithinContext},
	{name: "Register/same_ID_replaces", run: sameIDReplaces},
	{name: "Register/copies_metadata", run: copiesMetadata},
	{name: "Register/same_address_newest_by_Seq", run: newestBySeq},
	{name: "Register/keeps_status", statuses: true, run: keepsStatus},
	{name: "Update/replaces_as_a_whole", run: updateReplaces},
	{name: "Update/error_keeps_metadata", run: updateErrorKeeps},
	{name: "Deregister/removes", run: deregisterRemoves},
	{name: "Watch/empty_set_first", run: emptyFirst},
	{name: "Watch/whole_set_first", run: wholeFirst},
	{name: "Watch/only_its_service", run: onlyItsService},
	{name: "Watch/sorted_by_ID", run: sortedByID},
	{name: "Watch/every_change", run: everyChange},
	{name: "Watch/no_equal_content_twice", run: noEqualTwice},
	{name: "Watch/conflated_for_slow_readers", run: conflated},
	{name: "Watch/snapshots_stay", run: snapshotsStay},
	{name: "Watch/break_ends", run: breakEnds},
	{name: "Watch/context_ends", run: contextEnds},
	{name: "Watch/ended_context_yields_nothing", run: endedContext},
	{name: "safe_for_concurrent_use", run: concurrentUse},
}

// "Watch yields the whole current set of service first, an empty one where nobody
// registered".
func emptyFirst(s *suite) {
	y := s.watch(s.service()).next()
	if y.err != nil || len(y.set) != 0 {
		s.t.Errorf("Watch of a service that nobody registered yielded first %v, %v; want an empty set", y.set, y.err)
	}
}

func wholeFirst(s *suite) {
	s.register(s.instance(1))
	s.register(s.instance(2))
	first := s.watch(s.service())
	whole := first.untilIDs(s.instance(1).ID, s.instance(2).ID)

	// By now the registry knows both, so a second reader gets both at once: while
	// the first one reads, and after it has gone.
	y := s.watch(s.service()).next()
	if y.err != nil || !registry.EqualSnapshots(y.set, whole.set) {
		s.t.Errorf("a second Watch yielded first %v, %v; want the whole current set %v", y.set, y.err, whole.set)
	}
	first.stop()
	y = s.watch(s.service()).next()
	if y.err != nil || !registry.EqualSnapshots(y.set, whole.set) {
		s.t.Errorf("a later Watch yielded first %v, %v; want the whole current set %v", y.set, y.err, whole.set)
	}
}

func onlyItsService(s *suite) {
	other := s.instance(1)
	other.Service += "-other"
	s.register(other)
	s.watch(other.Service).untilIDs(other.ID)
	r := s.watch(s.service())
	s.register(s.instance(2))
	r.untilIDs(s.instance(2).ID)
	for _, y := range r.seen {
		for _, i := range y.set {
			if i.Service != s.service() {
				s.t.Errorf("Watch(%q) yielded %q of service %q", s.service(), i.ID, i.Service)
			}
		}
	}
}

func sortedByID(s *suite) {
	r := s.watch(s.service()) // its check looks at the order
	for _, n := range []int{3, 1, 10, 2} {
		s.register(s.instance(n))
	}
	r.untilIDs(s.instance(1).ID, s.instance(2).ID, s.instance(3).ID, s.instance(10).ID)
}

// "then the whole set after every change".
func everyChange(s *suite) {
	r := s.watch(s.service())
	r.untilIDs()
	one := s.register(s.instance(1))
	r.untilIDs(s.instance(1).ID)
	s.register(s.instance(2))
	r.untilIDs(s.instance(1).ID, s.instance(2).ID)
	s.update(one, map[string]string{"version": "changed"})
	r.until("the changed metadata and the instance that did not change", func(set []registry.Instance) bool {
		return len(set) == 2 && set[0].Metadata["version"] == "changed" && set[1].Metadata["version"] == "v2"
	})
	s.deregister(one)
	r.untilIDs(s.instance(2).ID)
}

// "never yielded twice in a row with equal content": the reader checks that; here
// are writes that change nothing, and a change to wait for behind them.
func noEqualTwice(s *suite) {
	r := s.watch(s.service())
	g := s.register(s.instance(1))
	r.untilIDs(s.instance(1).ID)
	for range 5 {
		s.update(g, s.instance(1).Metadata)
	}
	s.update(g, map[string]string{"version": "last"})
	y := r.next()
	if y.err != nil || len(y.set) != 1 || y.set[0].Metadata["version"] != "last" {
		s.t.Errorf("after five updates that change nothing and one that does, Watch yielded %v, %v", y.set, y.err)
	}
}

// "conflated to the newest where the reader is slow".
func conflated(s *suite) {
	const changes = 20
	g := s.register(s.instance(1))
	slow, quick := s.watch(s.service()), s.watch(s.service())
	slow.untilIDs(s.instance(1).ID)
	quick.untilIDs(s.instance(1).ID)
	// From here on nobody takes anything from slow: its loop is stuck with one
	// snapshot at most, the first of the changes.
	for n := range changes {
		version := map[string]string{"version": string(rune('a' + n))}
		s.update(g, version)
		quick.until("the change", func(set []registry.Instance) bool {
			return len(set) == 1 && set[0].Metadata["version"] == version["version"]
		})
	}
	before := len(slow.seen)
	newest := string(rune('a' + changes - 1))
	slow.until("the newest change", func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Metadata["version"] == newest
	})
	// One that was on its way, one that the registry may have had in hand, and the
	// newest.
	if n := len(slow.seen) - before; n > 3 {
		s.t.Errorf("a slow reader saw %d sets of %d changes, want them conflated to the newest", n, changes)
	}
}

// "A snapshot … must not be changed": not by the registry either.
func snapshotsStay(s *suite) {
	r := s.watch(s.service())
	one := s.register(s.instance(1))
	r.untilIDs(s.instance(1).ID)
	s.update(one, map[string]string{"other": "x"})
	r.until("the update", func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Metadata["other"] == "x"
	})
	s.register(s.instance(0))
	r.untilIDs(s.instance(0).ID, s.instance(1).ID)
	s.deregister(one)
	r.untilIDs(s.instance(0).ID)
	for _, y := range r.seen {
		if y.err == nil && !registry.EqualSnapshots(y.set, y.copy) {
			s.t.Errorf("a snapshot changed after it was yielded: %v, was %v", y.set, y.copy)
		}
	}
}

// "Leaving the loop … releases everything".
func breakEnds(s *suite) {
	s.register(s.instance(1))
	done := make(chan int)
	go func() {
		n := 0
		for range s.reg.Watch(s.ctx, s.service()) {
			n++
			break
		}
		done <- n
	}()
	select {
	case n := <-done:
		if n != 1 {
			s.t.Errorf("a loop that breaks at once ran %d times", n)
		}
	case <-time.After(s.timeout):
		s.fatalf("a loop over Watch did not end within %v of its break", s.timeout)
	}
	// The registry works on for others.
	s.watch(s.service()).untilIDs(s.instance(1).ID)
}

// "ending ctx releases everything; nothing is yielded after that".
func contextEnds(s *suite) {
	g := s.register(s.instance(1))
	waiting := s.watch(s.service())
	waiting.untilIDs(s.instance(1).ID)
	waiting.stop()

	// The context ends inside the body: this is the last turn, whatever changes.
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	after := make(chan int)
	go func() {
		n := 0
		for range s.reg.Watch(ctx, s.service()) {
			n++
			cancel()
			ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
			if err := g.Update(ctx, map[string]string{"version": "after"}); err != nil {
				s.t.Errorf("Update: %v", err)
			}
			cancel()
		}
		after <- n
	}()
	select {
	case n := <-after:
		if n != 1 {
			s.t.Errorf("Watch yielded %d times after the end of its context", n-1)
		}
	case <-time.After(s.timeout):
		s.fatalf("the loop of Watch did not end within %v of the end of its context", s.timeout)
	}
}

func endedContext(s *suite) {
	s.register(s.instance(1))
	s.watch(s.service()).untilIDs(s.instance(1).ID)
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	for set, err := range s.reg.Watch(ctx, s.service()) {
		s.t.Errorf("Watch with an ended context yielded %v, %v", set, err)
		break
	}
}

// "Implementations are safe for concurrent use": under the race detector.
func concurrentUse(s *suite) {
	const writers, readers = 8, 4
	watching := make([]*reader, readers)
	for n := range watching {
		watching[n] = s.watch(s.service())
	}
	want := make([]string, 0, writers)
	var wg sync.WaitGroup
	for n := range writers {
		i := s.instance(n)
		if n%2 == 0 {
			want = append(want, i.ID)
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
			defer cancel()
			g, err := s.reg.Register(ctx, i)
			if err != nil {
				s.t.Errorf("Register beside others: %v", err)
				return
			}
			s.mu.Lock()
			s.registrations = append(s.registrations, g)
			s.mu.Unlock()
			var both sync.WaitGroup
			both.Go(func() {
				if err := g.Update(ctx, map[string]string{"version": "final"}); err != nil {
					s.t.Errorf("Update beside others: %v", err)
				}
			})
			both.Go(func() {
				if err := g.Update(ctx, map[string]string{"version": "final"}); err != nil {
					s.t.Errorf("Update beside others: %v", err)
				}
			})
			both.Wait()
			if n%2 == 1 {
				both.Go(func() { _ = g.Deregister(ctx) })
				both.Go(func() { _ = g.Deregister(ctx) })
				both.Wait()
			}
		})
	}
	wg.Wait()
	for _, r := range watching {
		r.until("what is left, in its last version", func(set []registry.Instance) bool {
			if len(set) != len(want) {
				return false
			}
			for n, i := range set {
				if i.ID != want[n] || i.Metadata["version"] != "final" {
					return false
				}
			}
			return true
		})
	}
}
