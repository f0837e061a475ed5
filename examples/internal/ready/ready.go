// Package ready lets the examples wait until what they registered can be found:
// Consul's agent answers before its servers know.
package ready

import (
	"context"
	"fmt"
	"time"

	"github.com/graylane/graylane/registry"
)

// Wait returns once disc knows n instances of a service that may serve.
func Wait(ctx context.Context, disc registry.Discovery, service string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var last error
	for set, err := range disc.Watch(ctx, service) {
		if last = err; err != nil {
			continue
		}
		passing := 0
		for _, i := range set {
			if i.Status == registry.StatusPassing {
				passing++
			}
		}
		if passing >= n {
			return nil
		}
	}
	if last == nil {
		last = ctx.Err()
	}
	return fmt.Errorf("waiting for %d instances of %s: %w", n, service, last)
}
