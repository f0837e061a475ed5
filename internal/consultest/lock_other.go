//go:build !unix

package consultest

import "context"

// lock does nothing where there is no flock: two processes may then build at the
// same time, which costs time, and the rename of the result still is atomic.
func lock(context.Context, string) (unlock func(), err error) {
	return func() {}, nil
}
