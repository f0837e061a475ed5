//go:build unix && !solaris && !aix

package rollout

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes a lock on f, which closing f releases, and tells whether it got
// it: a shared one is kept from it by an exclusive one alone.
func tryLock(f *os.File, exclusive bool) (bool, error) {
	how := syscall.LOCK_SH
	if exclusive {
		how = syscall.LOCK_EX
	}
	for {
		err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, syscall.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, syscall.EINTR):
			return false, err
		}
	}
}
