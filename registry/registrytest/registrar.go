package registrytest

import (
	"context"
	"strings"
	"time"

	"github.com/graylane/graylane/registry"
)

// "Register makes i known until Deregister is called on what it returns", with
// everything that it says.
func makesKnown(s *suite) {
	want := s.instance(1)
	want.Metadata = map[string]string{"version": "v2.1.0", "empty": "", "text": "灰度 a=b;c"}
	want.Weight = 7
	s.register(want)
	bare := registry.Instance{ID: s.instance(2).ID, Service: s.service(), Address: "[::1]:9090"}
	s.register(bare)
	y := s.watch(s.service()).untilIDs(want.ID, bare.ID)
	for n, w := range []registry.Instance{want, bare} {
		got := y.set[n]
		w.Seq = got.Seq
		if !got.Equal(w) {
			s.t.Errorf("Watch yielded %+v, registered was %+v", got, w)
		}
	}
}

// "It fails … where i is invalid …; nothing is registered then."
func refusesInvalid(s *suite) {
	for name, change := range map[string]func(*registry.Instance){
		"no ID":                func(i *registry.Instance) { i.ID = "" },
		"a long ID":            func(i *registry.Instance) { i.ID += strings.Repeat("x", registry.MaxNameLen) },
		"a control character":  func(i *registry.Instance) { i.ID += "\n" },
		"a slash in the ID":    func(i *registry.Instance) { i.ID += "/x" },
		"no service":           func(i *registry.Instance) { i.Service = "" },
		"no address":           func(i *registry.Instance) { i.Address = "" },
		"no port":              func(i *registry.Instance) { i.Address = "127.0.0.1" },
		"port 0":               func(i *registry.Instance) { i.Address = "127.0.0.1:0" },
		"a large port":         func(i *registry.Instance) { i.Address = "127.0.0.1:65536" },
		"a named port":         func(i *registry.Instance) { i.Address = "127.0.0.1:http" },
		"no host":              func(i *registry.Instance) { i.Address = ":8080" },
		"the listener's host":  func(i *registry.Instance) { i.Address = "[::]:8080" },
		"a negative weight":    func(i *registry.Instance) { i.Weight = -1 },
		"an unknown status":    func(i *registry.Instance) { i.Status = 99 },
		"an empty key":         func(i *registry.Instance) { i.Metadata = map[string]string{"": "x"} },
		"a value not in UTF-8": func(i *registry.Instance) { i.Metadata = map[string]string{"k": "\xff"} },
	} {
		i := s.instance(1)
		change(&i)
		ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
		g, err := s.reg.Register(ctx, i)
		cancel()
		if err == nil {
			s.t.Errorf("Register of an instance with %s: no error, want one", name)
			if g != nil {
				s.registrations = append(s.registrations, g)
			}
		}
	}
	// Whatever they left would come before this one, or with it.
	r := s.watch(s.service())
	s.register(s.instance(2))
	r.untilIDs(s.instance(2).ID)
	for _, y := range r.seen {
		for _, i := range y.set {
			if i.ID != s.instance(2).ID {
				s.t.Errorf("an instance that Register refused is known: %+v", i)
			}
		}
	}
}

func failsWithinContext(s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	done := make(chan error)
	go func() {
		_, err := s.reg.Register(ctx, s.instance(1))
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			s.fatalf("Register with an ended context: no error, want one")
		}
	case <-time.After(s.timeout):
		s.fatalf("Register with an ended context did not return within %v", s.timeout)
	}
	r := s.watch(s.service())
	s.register(s.instance(2))
	r.untilIDs(s.instance(2).ID)
}

// "ID is unique within the registry. It outlives a restart of the process where
// the process registers under the same ID again": the second registration counts,
// and the first one does no harm to it any more.
func sameIDReplaces(s *suite) {
	r := s.watch(s.service())
	old := s.register(s.instance(1))
	r.untilIDs(s.instance(1).ID)
	again := s.instance(1)
	again.Address = "127.0.0.1:29999"
	again.Metadata = map[string]string{"lane": "blue"}
	s.register(again)
	replaced := func(set []registry.Instance) bool {
		return len(set) == 1 && set[0].Address == again.Address &&
			len(set[0].Metadata) == 1 && set[0].Metadata["lane"] == "blue"
	}
	r.until("the instance as it was registered last", replaced)

	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := old.Update(ctx, map[string]string{"lane": "old"}); err == nil {
		s.t.Errorf("Update on a registration whose ID was registered anew: no error, want one")
	}
	s.deregister(old)
	other := s.register(s.instance(2)) // a change to wait for
	y := r.until("both instances", func(set []registry.Instance) bool { return len(set) == 2 })
	if !replaced(y.set[:1]) {
		s.t.Errorf("the registration that was replaced has changed the instance to %+v", y.set[0])
	}
	s.deregister(other)
}

func copiesMetadata(s *suite) {
	i := s.instance(1)
	i.Metadata = map[string]string{"version": "v1"}
	g := s.register(i)
	i.Metadata["version"] = "changed by the caller"
	is := func(version string) func(set []registry.Instance) bool {
		return func(set []registry.Instance) bool {
			return len(set) == 1 && set[0].Metadata["version"] == version
		}
	}
	r := s.watch(s.service())
	r.until("the metadata as it was at Register", is("v1"))
	m := map[string]string{"version": "v2"}
	s.update(g, m)
	m["version"] = "changed by the caller"
	r.until("the metadata as it was at Update", is("v2"))
}

// "of two instances with one address, the one with the higher Seq registered
// later … 0 where the registry does not tell".
func newestBySeq(s *suite) {
	old, young := s.instance(2), s.instance(1) // not in the order of the IDs
	young.Address = old.Address
	r := s.watch(s.service())
	s.register(old)
	r.untilIDs(old.ID)
	s.register(young)
	y := r.untilIDs(young.ID, old.ID)
	youngSeq, oldSeq := y.set[0].Seq, y.set[1].Seq
	if youngSeq <= oldSeq && (youngSeq != 0 || oldSeq != 0) {
		s.t.Errorf("Seq of the instance that registered later is %d, of the earlier one %d", youngSeq, oldSeq)
	}
}

// "holds instances of every status".
func keepsStatus(s *suite) {
	statuses := []registry.Status{
		registry.StatusPassing, registry.StatusWarning, registry.StatusCritical, registry.StatusMaintenance,
	}
	for n, status := range statuses {
		i := s.instance(n)
		i.Status = status
		s.register(i)
	}
	s.watch(s.service()).until("one instance of every status", func(set []registry.Instance) bool {
		if len(set) != len(statuses) {
			return false
		}
		for n, status := range statuses {
			if set[n].Status != status {
				return false
			}
		}
		return true
	})
}

// "Update replaces the metadata of the instance as a whole."
func updateReplaces(s *suite) {
	i := s.instance(1)
	i.Metadata = map[string]string{"version": "v1", "lane": "blue"}
	g := s.register(i)
	r := s.watch(s.service())
	r.untilIDs(i.ID)
	for _, m := range []map[string]string{
		{"version": "v2"},
		{"lane": "green", "zone": "a"},
		nil,
		{"version": ""},
	} {
		s.update(g, m)
		want := i
		want.Metadata = m
		r.until("the metadata of the update and nothing else changed", func(set []registry.Instance) bool {
			if len(set) != 1 {
				return false
			}
			w := want
			w.Seq = set[0].Seq
			return set[0].Equal(w)
		})
	}
}

// "After an error the metadata from before stays."
func updateErrorKeeps(s *suite) {
	g := s.register(s.instance(1))
	r := s.watch(s.service())
	before := r.untilIDs(s.instance(1).ID)

	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	if err := g.Update(ended, map[string]string{"version": "too late"}); err == nil {
		s.t.Errorf("Update with an ended context: no error, want one")
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := g.Update(ctx, map[string]string{"": "x"}); err == nil {
		s.t.Errorf("Update with an empty key: no error, want one")
	}

	s.register(s.instance(2)) // a change to wait for
	y := r.untilIDs(s.instance(1).ID, s.instance(2).ID)
	if !y.set[0].Equal(before.set[0]) {
		s.t.Errorf("failed updates have changed the instance to %+v, was %+v", y.set[0], before.set[0])
	}
}

// "Deregister removes the instance …. A second call does nothing and returns nil."
func deregisterRemoves(s *suite) {
	r := s.watch(s.service())
	g := s.register(s.instance(1))
	s.register(s.instance(2))
	r.untilIDs(s.instance(1).ID, s.instance(2).ID)
	s.deregister(g)
	r.untilIDs(s.instance(2).ID)
	s.deregister(g)

	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	if err := g.Update(ctx, map[string]string{"version": "back"}); err == nil {
		s.t.Errorf("Update of a deregistered instance: no error, want one")
	}

	// The second call must not hit who came after, under the same ID.
	s.register(s.instance(1))
	r.untilIDs(s.instance(1).ID, s.instance(2).ID)
	s.deregister(g)
	s.register(s.instance(3))
	r.untilIDs(s.instance(1).ID, s.instance(2).ID, s.instance(3).ID)
}
