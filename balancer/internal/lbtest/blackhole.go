//go:build unix

package lbtest

import (
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BlackHole returns an address whose kernel drops SYN packets, as a firewall or
// a dead host does: a socket that listens with no backlog, nobody accepts, and
// the queue is full. A dial hangs until its own timeout.
func BlackHole(tb testing.TB) string {
	tb.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = syscall.Close(fd) })
	require.NoError(tb, syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(tb, syscall.Listen(fd, 0))
	name, err := syscall.Getsockname(fd)
	require.NoError(tb, err)
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(name.(*syscall.SockaddrInet4).Port))
	for range 16 {
		c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
		if err != nil {
			return addr
		}
		tb.Cleanup(func() { _ = c.Close() })
	}
	require.Fail(tb, "the listen queue does not fill")
	return ""
}
