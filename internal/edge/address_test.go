package edge_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/internal/edge"
)

func prefixes(t testing.TB, cidrs ...string) edge.Prefixes {
	t.Helper()
	p, err := edge.ParsePrefixes(cidrs)
	require.NoError(t, err)
	return p
}

func TestW3_ClientAddress(t *testing.T) {
	for _, c := range []struct {
		peer    string
		lines   []string
		trusted string
		want    string
	}{
		{"10.0.0.9:4711", []string{"192.168.1.5", "203.0.113.7"}, "10.0.0.0/8", "203.0.113.7"},
		{"198.51.100.1:80", []string{"203.0.113.7"}, "10.0.0.0/8", "198.51.100.1"},
		{"10.0.0.9:4711", nil, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:4711", []string{"203.0.113.7"}, "", "10.0.0.9"},
		// Through several proxies, on one line and on several.
		{"10.0.0.9:1", []string{"1.1.1.1, 203.0.113.7, 10.0.0.1,10.0.0.2"}, "10.0.0.0/8", "203.0.113.7"},
		{"10.0.0.9:1", []string{"1.1.1.1, 203.0.113.7", "10.0.0.1", "10.0.0.2"}, "10.0.0.0/8", "203.0.113.7"},
		{"10.0.0.9:1", []string{"10.0.0.3, 10.0.0.1"}, "10.0.0.0/8", "10.0.0.3"},
		// What is no address ends the reading.
		{"10.0.0.9:1", []string{"203.0.113.7, unknown"}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{"203.0.113.7, unknown, 10.0.0.2"}, "10.0.0.0/8", "10.0.0.2"},
		{"10.0.0.9:1", []string{"203.0.113.7", "<script>", "10.0.0.2"}, "10.0.0.0/8", "10.0.0.2"},
		{"10.0.0.9:1", []string{"203.0.113.7:"}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{"203.0.113.7:99999"}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{"[203.0.113.7]"}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{"[2001:db8::1"}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{`"2001:db8::1"`}, "10.0.0.0/8", "10.0.0.9"},
		{"10.0.0.9:1", []string{"010.1.2.3"}, "10.0.0.0/8", "10.0.0.9"},
		// Elements that are empty are none (RFC 9110).
		{"10.0.0.9:1", []string{"203.0.113.7, ,", "", "\t"}, "10.0.0.0/8", "203.0.113.7"},
		// Ports, brackets, IPv4 as IPv6, zones.
		{"10.0.0.9:1", []string{"203.0.113.7:5555"}, "10.0.0.0/8", "203.0.113.7"},
		{"10.0.0.9:1", []string{"2001:db8::1"}, "10.0.0.0/8", "2001:db8::1"},
		{"10.0.0.9:1", []string{"[2001:db8::1]"}, "10.0.0.0/8", "2001:db8::1"},
		{"10.0.0.9:1", []string{"[2001:db8::1]:443"}, "10.0.0.0/8", "2001:db8::1"},
		{"10.0.0.9:1", []string{"203.0.113.7, ::ffff:10.0.0.1"}, "10.0.0.0/8", "203.0.113.7"},
		{"[::ffff:10.0.0.9]:1", []string{"[::ffff:203.0.113.7]:5"}, "10.0.0.0/8", "203.0.113.7"},
		{"[fe80::1%eth0]:1", []string{"203.0.113.7"}, "fe80::/10", "203.0.113.7"},
		{"10.0.0.9:1", []string{"fe80::1%eth0"}, "::ffff:10.0.0.0/104", "fe80::1"},
		{"10.0.0.9:1", []string{"203.0.113.7"}, "10.0.0.9", "203.0.113.7"},
		{"10.0.0.10:1", []string{"203.0.113.7"}, "10.0.0.9", "10.0.0.10"},
		// More proxies than anybody has: the reading ends.
		{"10.0.0.9:1", []string{"203.0.113.7" + strings.Repeat(",10.0.0.1", 64)}, "10.0.0.0/8", "10.0.0.1"},
		{"10.0.0.9:1", []string{"203.0.113.7" + strings.Repeat(",10.0.0.1", 63)}, "10.0.0.0/8", "203.0.113.7"},
	} {
		var trusted edge.Prefixes
		if c.trusted != "" {
			trusted = prefixes(t, c.trusted)
		}
		got := edge.ClientAddr(edge.PeerAddr(c.peer), c.lines, trusted)
		assert.Equal(t, c.want, got.String(), "%s %q", c.peer, c.lines)
	}
}

func TestPeerWithoutAnIPAddress(t *testing.T) {
	everyone := prefixes(t, "0.0.0.0/0", "::/0")
	for _, remote := range []string{"", "@", "/run/app.sock", "pipe", "bufconn"} {
		peer := edge.PeerAddr(remote)
		assert.False(t, peer.IsValid(), remote)
		assert.False(t, everyone.Contains(peer), remote)
		assert.False(t, edge.ClientAddr(peer, []string{"203.0.113.7"}, everyone).IsValid())
	}
	assert.False(t, edge.NetAddr(nil).IsValid())
	assert.False(t, edge.NetAddr(&net.UnixAddr{Name: "/run/app.sock"}).IsValid())
	assert.Equal(t, "10.1.2.3", edge.NetAddr(&net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 1}).String())
	assert.Equal(t, "10.1.2.3", edge.NetAddr(&net.UDPAddr{IP: net.ParseIP("10.1.2.3"), Port: 1}).String())
}

func TestWrongRanges(t *testing.T) {
	for _, bad := range []string{"", "10.0.0.0/33", "10.0.0", "office", "10.0.0.0/8 ", "fe80::1%eth0", "::ffff:0.0.0.0/95"} {
		_, err := edge.ParsePrefixes([]string{"10.0.0.0/8", bad})
		assert.ErrorContains(t, err, "want", bad)
	}
	assert.True(t, prefixes(t, "10.1.2.3/8").Contains(netip.MustParseAddr("10.200.0.1")), "bits of the host do not matter")
}

func TestAllHTTPS(t *testing.T) {
	for want, all := range map[bool][][]string{
		true:  {{"https"}, {"HTTPS"}, {"https, https"}, {"https", "https"}, {"wss"}, {"", "https,"}},
		false: {nil, {""}, {"http"}, {"https, http"}, {"http", "https"}, {"httpsx"}},
	} {
		for _, lines := range all {
			assert.Equal(t, want, edge.AllHTTPS(lines), "%q", lines)
		}
	}
}

// Whatever a client writes to the left of what a trusted proxy has added changes
// nothing.
func FuzzForwardedFor(f *testing.F) {
	f.Add("192.168.1.5", "1.2.3.4", true)
	f.Add("[::1]:80, unknown", "", false)
	f.Add(",,,,10.0.0.1", "::ffff:10.0.0.1", true)
	trusted := prefixes(f, "10.0.0.0/8")
	peer := edge.PeerAddr("10.0.0.9:1")
	client := netip.MustParseAddr("203.0.113.7")
	f.Fuzz(func(t *testing.T, claimed, more string, oneLine bool) {
		lines := []string{claimed, more, "203.0.113.7, 10.0.0.1"}
		if oneLine {
			lines = []string{claimed + "," + more + ", 203.0.113.7 ,10.0.0.1"}
		}
		if got := edge.ClientAddr(peer, lines, trusted); got != client {
			t.Fatalf("%q: %v", lines, got)
		}
		for _, lines := range [][]string{{claimed}, {claimed, more}} {
			got := edge.ClientAddr(peer, lines, trusted)
			if !got.IsValid() || got.Is4In6() || got.Zone() != "" {
				t.Fatalf("%q: %v", lines, got)
			}
		}
		if edge.ClientAddr(client, []string{claimed, more}, trusted) != client {
			t.Fatal("an untrusted peer was believed")
		}
	})
}
