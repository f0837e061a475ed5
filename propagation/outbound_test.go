package propagation_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/graylane/graylane/propagation"
)

// Whatever the host, no public address counts as internal, and neither a port
// nor a final dot changes the answer.
func FuzzInternalHost(f *testing.F) {
	for _, host := range []string{"inventory", "a.svc", "10.0.0.1", "8.8.8.8", "::1", "::1%.", "[fe80::1%a.]:80", "[fd00::1]:80", "0x08080808", "a.b.internal.", "x:y:z"} {
		f.Add(host)
	}
	f.Fuzz(func(t *testing.T, host string) {
		got := propagation.InternalHost(host)
		if addr, err := netip.ParseAddr(host); err == nil {
			if addr = addr.Unmap(); got != (addr.IsLoopback() || addr.IsPrivate()) {
				t.Fatalf("address %q: %v", host, got)
			}
		}
		if strings.ContainsAny(host, ":[]") || strings.HasSuffix(host, ".") {
			return
		}
		if with := propagation.InternalHost(net.JoinHostPort(host, "80")); with != got {
			t.Fatalf("%q: %v, with a port %v", host, got, with)
		}
		if with := propagation.InternalHost(host + "."); with != got {
			t.Fatalf("%q: %v, with a final dot %v", host, got, with)
		}
	})
}
