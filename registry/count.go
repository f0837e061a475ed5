package registry

import (
	"context"
	"fmt"
)

// CountStable returns how many instances of service may serve everyone once no rule
// chooses a version: those that are passing, stable ([MetadataVersion] is missing, "" or
// "stable", as the default policy has it), and carry all of metadata, by which an
// operator tells a release, such as {"release": "2026-12"}. It takes what d knows first;
// an error of d, and the end of ctx, is returned, with 0. It is what
// rollout.Controller.Finish wants to know.
func CountStable(ctx context.Context, d Discovery, service string, metadata map[string]string) (n int, err error) {
	for set, err := range d.Watch(ctx, service) {
		if err != nil {
			return 0, fmt.Errorf("registry: instances of %q: %w", service, err)
		}
		for _, i := range set {
			if i.Status == StatusPassing && isStable(i) && carries(i, metadata) {
				n++
			}
		}
		return n, nil
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("registry: instances of %q: %w", service, err)
	}
	return 0, fmt.Errorf("registry: instances of %q: %w", service, ErrClosed)
}

func isStable(i Instance) bool {
	v := i.Metadata[MetadataVersion]
	return v == "" || v == "stable"
}

func carries(i Instance, metadata map[string]string) bool {
	for k, v := range metadata {
		if got, ok := i.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}
