package edge

import (
	"net"
	"net/netip"
	"strings"
)

// PeerAddr returns the address in what net/http and net call the remote address
// of a connection, host:port. It is plain: IPv4 is never in IPv6 form, and there
// is no zone. It is not valid where there is no IP address, as for a Unix socket.
func PeerAddr(remote string) netip.Addr {
	a, _ := parseHop(remote)
	return a
}

// NetAddr is [PeerAddr] of an address that may hold it in parsed form.
func NetAddr(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case nil:
		return netip.Addr{}
	case *net.TCPAddr:
		return plain(a.AddrPort().Addr())
	}
	return PeerAddr(a.String())
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parseHop reads an address with or without a port, IPv6 with or without
// brackets.
func parseHop(s string) (_ netip.Addr, ok bool) {
	if len(s) > maxHopBytes {
		return netip.Addr{}, false
	}
	if s != "" && s[0] == '[' {
		if ap, err := netip.ParseAddrPort(s); err == nil {
			return plain(ap.Addr()), true
		}
		if s[len(s)-1] != ']' {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(s[1 : len(s)-1])
		if err != nil || a.Is4() {
			return netip.Addr{}, false
		}
		return plain(a), true
	}
	if i := strings.IndexByte(s, ':'); i >= 0 && strings.IndexByte(s[i+1:], ':') < 0 {
		ap, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		return plain(ap.Addr()), true
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, false
	}
	return plain(a), true
}

const (
	// maxHops is how many trusted proxies in a row are believed.
	maxHops = 64
	// maxHopBytes is more than an address with zone and port has.
	maxHopBytes = 128
)

// ClientAddr returns the address of the client: the peer's, or, where the peer
// is a trusted proxy, the rightmost one in the lines of X-Forwarded-For that is
// none. What stands further to the left is the client's own claim. What is no
// address ends the reading, and so does the end: the client is then the last
// proxy that is known.
func ClientAddr(peer netip.Addr, forwardedFor []string, trusted Prefixes) netip.Addr {
	if len(forwardedFor) == 0 || !trusted.Contains(peer) {
		return peer
	}
	client := peer
	hops := 0
	for i := len(forwardedFor) - 1; i >= 0; i-- {
		for rest := forwardedFor[i]; rest != ""; {
			entry := rest
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				entry, rest = rest[comma+1:], rest[:comma]
			} else {
				rest = ""
			}
			if hops++; hops > maxHops {
				return client
			}
			entry = strings.Trim(entry, " \t")
			if entry == "" {
				continue // an empty element of a list (RFC 9110, section 5.6.1.2)
			}
			a, ok := parseHop(entry)
			if !ok {
				return client
			}
			client = a
			if !trusted.Contains(a) {
				return client
			}
		}
	}
	return client
}

// AllHTTPS tells whether X-Forwarded-Proto, as a trusted proxy sent it, says
// that the client speaks TLS. Where several proxies disagree it does not.
func AllHTTPS(lines []string) bool {
	found := false
	for _, line := range lines {
		for proto := range strings.SplitSeq(line, ",") {
			switch proto = strings.Trim(proto, " \t"); {
			case proto == "":
			case strings.EqualFold(proto, "https"), strings.EqualFold(proto, "wss"):
				found = true
			default:
				return false
			}
		}
	}
	return found
}
