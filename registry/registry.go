package registry

import (
	"context"
	"iter"
)

// Status is the health of an instance as its registry sees it. The zero value
// is [StatusPassing].
type Status uint8

const (
	// StatusPassing is an instance that may serve.
	StatusPassing Status = iota
	// StatusWarning is an instance with a check in warning. Readers leave it out
	// unless told otherwise.
	StatusWarning
	// StatusCritical is an instance with a failing check. It serves nobody.
	StatusCritical
	// StatusMaintenance is an instance that an operator took out. It serves
	// nobody, whatever the options of a reader say.
	StatusMaintenance
)

// String returns "passing", "warning", "critical" or "maintenance".
func (s Status) String() string {
	switch s {
	case StatusPassing:
		return "passing"
	case StatusWarning:
		return "warning"
	case StatusCritical:
		return "critical"
	case StatusMaintenance:
		return "maintenance"
	}
	return "unknown"
}

// MetadataVersion is the metadata key that holds the version of an instance
// where a policy does not name another one. An instance without it is stable.
const MetadataVersion = "version"

// Instance is one running copy of a service: what a service registers and what
// a [Discovery] finds. A value that came out of a Discovery is shared between
// readers and must not be changed, its Metadata included.
type Instance struct {
	// ID is unique within the registry. It outlives a restart of the process
	// where the process registers under the same ID again.
	ID string
	// Service is the name under which callers look the instance up.
	Service string
	// Address is host:port as callers dial it; an IPv6 host is in brackets.
	Address string
	// Metadata holds what routing reads ("version") and what operators add.
	Metadata map[string]string
	// Weight is the share of the instance among those of its version, relative
	// to theirs. 0 means 1; a registry may clamp large values.
	Weight int
	// Status is the health of the instance. The zero value is StatusPassing.
	Status Status
	// Seq orders registrations: of two instances with one address, the one with
	// the higher Seq registered later. Set by the registry, ignored by
	// Register; 0 where the registry does not tell.
	Seq uint64
}

// Registrar makes instances known. Implementations are safe for concurrent use.
type Registrar interface {
	// Register makes i known until Deregister is called on what it returns. It
	// fails, within ctx, where i is invalid or the registry cannot be reached;
	// nothing is registered then.
	Register(ctx context.Context, i Instance) (Registration, error)
}

// Registration is one registered instance. It is safe for concurrent use.
type Registration interface {
	// Update replaces the metadata of the instance as a whole. After an error
	// the metadata from before stays.
	Update(ctx context.Context, metadata map[string]string) error
	// Deregister removes the instance and ends all background work of the
	// registration. A second call does nothing and returns nil.
	Deregister(ctx context.Context) error
}

// Discovery finds the instances of a service. Implementations are safe for
// concurrent use.
type Discovery interface {
	// Watch yields the whole current set of service first, an empty one where
	// nobody registered, then the whole set after every change, conflated to
	// the newest where the reader is slow. A snapshot is sorted by ID, holds
	// instances of every status, must not be changed, and is never yielded
	// twice in a row with equal content.
	//
	// An error is yielded with a nil set and watching goes on; the reader keeps
	// the last set that it saw. The sequence is for a single use. Leaving the
	// loop or ending ctx releases everything; nothing is yielded after that.
	Watch(ctx context.Context, service string) iter.Seq2[[]Instance, error]
}
