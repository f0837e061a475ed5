package memory

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"sync"

	"github.com/graylane/graylane/registry"
)

// Registry is a registry in memory. It is safe for concurrent use. The zero value
// is not usable; create one with [New].
type Registry struct {
	// mu guards everything below and everything in the services. It is held for
	// moments only: readers run without it.
	mu       sync.Mutex
	seq      uint64
	services map[string]*service
	entries  map[string]*entry // by instance ID
}

var (
	_ registry.Registrar    = (*Registry)(nil)
	_ registry.Discovery    = (*Registry)(nil)
	_ registry.Registration = (*registration)(nil)
)

// service is what readers of one service share. It exists while it has entries or
// readers, so that names that are asked for once cost nothing for good.
type service struct {
	entries map[string]*entry
	readers int
	// snapshot is nil after a change, until a reader asks for it: a thousand
	// registrations in a row then sort once.
	snapshot []registry.Instance
	changed  chan struct{} // closed and replaced with every change
}

// entry is one registered instance. Its Metadata is replaced, never changed:
// snapshots hold it.
type entry struct {
	instance registry.Instance
}

// New returns an empty registry.
func New() *Registry {
	return &Registry{
		services: make(map[string]*service),
		entries:  make(map[string]*entry),
	}
}

// Register implements [registry.Registrar]. An instance that is registered under
// the same ID is replaced, and its registration ends: Update on it returns
// [registry.ErrNotRegistered], Deregister does nothing. It fails with a
// [*registry.InvalidError] where [registry.Instance.Validate] does, and where ctx
// has ended.
func (r *Registry) Register(ctx context.Context, i registry.Instance) (registry.Registration, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("memory: register %q: %w", i.ID, err)
	}
	if err := i.Validate(); err != nil {
		return nil, fmt.Errorf("memory: register: %w", err)
	}
	e := &entry{instance: i.Clone()}

	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	e.instance.Seq = r.seq
	if old, ok := r.entries[i.ID]; ok && old.instance.Service != i.Service {
		r.remove(old)
	}
	r.entries[i.ID] = e
	s := r.service(i.Service)
	s.entries[i.ID] = e
	s.change()
	return &registration{registry: r, id: i.ID, entry: e}, nil
}

// SetStatus sets the health of the instance registered under id, as a health
// check or an operator would. It returns [registry.ErrNotRegistered] for an
// unknown id and a [*registry.InvalidError] for an unknown status, wrapped.
func (r *Registry) SetStatus(id string, status registry.Status) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, ok := r.entries[id]
	if !ok {
		return fmt.Errorf("memory: set status of %q: %w", id, registry.ErrNotRegistered)
	}
	i := e.instance
	i.Status = status
	if err := i.Validate(); err != nil {
		return fmt.Errorf("memory: set status of %q: %w", id, err)
	}
	e.instance = i
	r.service(i.Service).change()
	return nil
}

// Watch implements [registry.Discovery]. It never yields an error.
func (r *Registry) Watch(ctx context.Context, name string) iter.Seq2[[]registry.Instance, error] {
	return func(yield func([]registry.Instance, error) bool) {
		r.mu.Lock()
		s := r.service(name)
		s.readers++
		r.mu.Unlock()
		defer func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			s.readers--
			r.drop(name, s)
		}()

		var last []registry.Instance
		for first := true; ctx.Err() == nil; first = false {
			set, changed := r.load(s)
			if first || !registry.EqualSnapshots(last, set) {
				last = set
				if !yield(set, nil) {
					return
				}
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}
}

// load returns the snapshot of s and a channel that is closed when it is outdated.
func (r *Registry) load(s *service) ([]registry.Instance, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.snapshot == nil {
		s.snapshot = make([]registry.Instance, 0, len(s.entries))
		for _, e := range s.entries {
			s.snapshot = append(s.snapshot, e.instance)
		}
		registry.SortSnapshot(s.snapshot)
	}
	return s.snapshot, s.changed
}

// service returns the service of that name, creating it. mu is held.
func (r *Registry) service(name string) *service {
	s, ok := r.services[name]
	if !ok {
		s = &service{entries: make(map[string]*entry), changed: make(chan struct{})}
		r.services[name] = s
	}
	return s
}

// remove takes e out of its service. mu is held.
func (r *Registry) remove(e *entry) {
	id, name := e.instance.ID, e.instance.Service
	s := r.service(name)
	if s.entries[id] == e {
		delete(s.entries, id)
		s.change()
	}
	r.drop(name, s)
}

// drop forgets a service that nobody needs. mu is held.
func (r *Registry) drop(name string, s *service) {
	if s.readers == 0 && len(s.entries) == 0 {
		delete(r.services, name)
	}
}

// change outdates the snapshot and wakes the readers. The registry's mu is held.
func (s *service) change() {
	s.snapshot = nil
	close(s.changed)
	s.changed = make(chan struct{})
}

// registration is the hold of its owner on an entry. It is in force as long as
// the registry has that very entry under the ID.
type registration struct {
	registry *Registry
	id       string
	entry    *entry // its fields are guarded by the registry's mu
}

// Update implements [registry.Registration]. It fails where ctx has ended, the
// metadata is invalid, or the registration has ended.
func (g *registration) Update(ctx context.Context, metadata map[string]string) error {
	r, id := g.registry, g.id
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memory: update %q: %w", id, err)
	}
	if err := registry.ValidateMetadata(metadata); err != nil {
		return fmt.Errorf("memory: update %q: %w", id, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries[id] != g.entry {
		return fmt.Errorf("memory: update %q: %w", id, registry.ErrNotRegistered)
	}
	g.entry.instance.Metadata = maps.Clone(metadata)
	r.service(g.entry.instance.Service).change()
	return nil
}

// Deregister implements [registry.Registration]. It never fails, and works with a
// ctx that has ended too: a shutdown must not leave the instance behind.
func (g *registration) Deregister(context.Context) error {
	r := g.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries[g.id] == g.entry {
		delete(r.entries, g.id)
		r.remove(g.entry)
	}
	return nil
}
