//go:build !unix || solaris || aix

package rollout

import (
	"errors"
	"os"
)

// tryLock fails: without flock two processes could lead.
func tryLock(*os.File, bool) (bool, error) { return false, errors.ErrUnsupported }
