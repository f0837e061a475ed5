package consul

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/registry"
)

const (
	// maxWeight is the largest weight that Consul takes.
	maxWeight = 65535
	// ttlOutput never changes: an output that does would be written to the
	// catalog, and wake every watch.
	ttlOutput = "graylane: the process is alive"
	// cleanTimeout bounds the removal of what a failed Register may have left.
	cleanTimeout = 5 * time.Second
)

// slot is the place of one instance ID. Whoever talks to the agent about that ID
// holds its lock: requests about one instance never overtake each other, and those
// about different ones do not wait for each other.
type slot struct {
	id   string
	lock chan struct{} // of capacity 1: a lock that gives up when ctx ends
	refs int           // guarded by Registry.mu

	owner *registration // guarded by lock
}

// hold takes the slot of id, for Register. Lock order: slot.lock before
// Registry.mu.
func (r *Registry) hold(ctx context.Context, id string) (*slot, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, ErrClosed
	}
	s, ok := r.slots[id]
	if !ok {
		s = &slot{id: id, lock: make(chan struct{}, 1)}
		r.slots[id] = s
	}
	s.refs++
	r.mu.Unlock()
	if err := s.take(ctx); err != nil {
		r.unref(s)
		return nil, err
	}
	return s, nil
}

func (s *slot) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.lock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slot) give() { <-s.lock }

func (r *Registry) release(s *slot) {
	s.give()
	r.unref(s)
}

func (r *Registry) ref(s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.refs++
}

// unref forgets a slot that nobody holds, waits for or owns.
func (r *Registry) unref(s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.refs--; s.refs == 0 && r.slots[s.id] == s {
		delete(r.slots, s.id)
	}
}

// Register implements [registry.Registrar] with the agent: when it returns, the
// agent knows the instance, and its servers will within moments. An instance that
// is registered under the same ID is replaced; its registration ends where it was
// made by this Registry. A ctx without a deadline is given 10 s.
//
// An instance that Consul would refuse is a [*registry.InvalidError]. Where the
// agent cannot be reached, or refuses, the error names it, and an HTTP error is an
// [api.StatusError] inside.
func (r *Registry) Register(ctx context.Context, i registry.Instance) (registry.Registration, error) {
	err := i.Validate()
	if err == nil {
		err = checkMetadata(i.Metadata)
	}
	if err != nil {
		return nil, fmt.Errorf("consul: register: %w", err)
	}
	ctx, cancel := withLimit(ctx)
	defer cancel()
	s, err := r.hold(ctx, i.ID)
	if errors.Is(err, ErrClosed) {
		return nil, err
	}
	if err != nil {
		return nil, r.errorf(err, "register %q", i.ID)
	}
	i = i.Clone()
	if applied, err := r.put(ctx, i, true); err != nil {
		if applied {
			r.undo(s)
		} else {
			r.release(s)
		}
		return nil, r.errorf(err, "register %q", i.ID)
	}
	if !r.begin() { // closed meanwhile
		err := r.deregister(ctx, i.ID)
		r.release(s)
		return nil, errors.Join(ErrClosed, err)
	}
	if s.owner != nil {
		s.owner.end()
		r.unref(s)
	}
	r.ref(s)
	s.owner = newRegistration(r, s, i)
	r.release(s)
	return s.owner, nil
}

// put registers i with the agent. fresh says that the agent does not know i:
// maintenance mode is set only then, so that an operator who has ended it is not
// overruled. applied says whether the agent may know i, or part of it, in spite of
// an error.
func (r *Registry) put(ctx context.Context, i registry.Instance, fresh bool) (applied bool, err error) {
	host, portText, err := net.SplitHostPort(i.Address)
	if err != nil {
		return false, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return false, err
	}
	service := &api.AgentServiceRegistration{
		ID:      i.ID,
		Name:    i.Service,
		Address: host,
		Port:    port,
		Meta:    i.Metadata,
		Check:   r.checkFor(i),
	}
	if i.Weight > 0 {
		service.Weights = &api.AgentWeights{Passing: min(i.Weight, maxWeight), Warning: 1}
	}
	// Checks that are not of this definition stay: maintenance mode is one, and
	// only who set it may end it.
	opts := api.ServiceRegisterOpts{}.WithContext(ctx)
	if err := r.clients.kv.Agent().ServiceRegisterOpts(service, opts); err != nil {
		return statusCode(err) == 0 && !unsent(err), err
	}
	if fresh && i.Status == registry.StatusMaintenance {
		q := (&api.QueryOptions{}).WithContext(ctx)
		if err := r.clients.kv.Agent().EnableServiceMaintenanceOpts(i.ID, "registered in maintenance", q); err != nil {
			return true, err
		}
	}
	// The agent gives a check that it knows already the status from before: after
	// a crash of the process, critical.
	if r.config.check == nil {
		if err := r.report(ctx, i.ID, i.Status); err != nil {
			return true, err
		}
	}
	return true, nil
}

// checkFor returns the health check of i.
func (r *Registry) checkFor(i registry.Instance) *api.AgentServiceCheck {
	check := &api.AgentServiceCheck{TTL: r.config.ttl.String()}
	if r.config.check != nil {
		check = r.config.check(i)
	}
	if check.CheckID == "" {
		check.CheckID = checkID(i.ID)
	}
	if check.Status == "" {
		check.Status = checkStatus(i.Status)
		if i.Status == registry.StatusMaintenance {
			check.Status = api.HealthCritical // until maintenance mode is on
		}
	}
	if check.DeregisterCriticalServiceAfter == "" && r.config.deregisterAfter > 0 {
		check.DeregisterCriticalServiceAfter = r.config.deregisterAfter.String()
	}
	return check
}

func checkID(instance string) string { return "service:" + instance }

// checkStatus returns the status of the check of an instance. One in maintenance
// passes: maintenance is a check of its own, and once it ends the instance serves.
func checkStatus(s registry.Status) string {
	switch s {
	case registry.StatusWarning:
		return api.HealthWarning
	case registry.StatusCritical:
		return api.HealthCritical
	}
	return api.HealthPassing
}

// report tells the agent that an instance is alive.
func (r *Registry) report(ctx context.Context, id string, s registry.Status) error {
	q := (&api.QueryOptions{}).WithContext(ctx)
	return r.clients.kv.Agent().UpdateTTLOpts(checkID(id), ttlOutput, checkStatus(s), q)
}

// deregister removes an instance from the agent; one that it does not know is fine.
func (r *Registry) deregister(ctx context.Context, id string) error {
	err := r.clients.kv.Agent().ServiceDeregisterOpts(id, (&api.QueryOptions{}).WithContext(ctx))
	if isNotFound(err) {
		return nil
	}
	return err
}

// undo takes back what a failed Register may have left, and releases the slot when
// it is done. The caller's ctx has ended by now, so this goes on without it.
func (r *Registry) undo(s *slot) {
	if s.owner != nil { // the instance that was to be replaced is to stay
		s.owner.refresh()
		r.release(s)
		return
	}
	if !r.begin() {
		r.release(s)
		return
	}
	go func() {
		defer r.work.Done()
		defer r.release(s)
		ctx, cancel := context.WithTimeout(r.ctx, cleanTimeout)
		defer cancel()
		if err := r.deregister(ctx, s.id); err != nil {
			r.logger(slog.String("instance", s.id)).
				Warn("consul: cannot take back a failed registration", slog.Any("error", r.errorf(err, "deregister %q", s.id)))
		}
	}()
}

// clear deregisters whatever the slot holds, for Close.
func (r *Registry) clear(ctx context.Context, s *slot) error {
	if err := s.take(ctx); err != nil {
		return r.errorf(err, "deregister %q", s.id)
	}
	g := s.owner
	s.give()
	if g == nil {
		return nil
	}
	return g.Deregister(ctx)
}

// withLimit gives a ctx without a deadline one.
func withLimit(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, askTimeout)
}
