//go:build !unix || solaris || aix

package rule

import "context"

// lockFile does nothing where there is no flock: only the Puts of one process
// are kept apart then.
func lockFile(context.Context, string) (unlock func(), err error) { return func() {}, nil }

// syncDir does nothing where directories cannot be synced.
func syncDir(string) error { return nil }
