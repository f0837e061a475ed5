package edge

import (
	"fmt"
	"net/netip"
)

// Prefixes is a set of address ranges. The zero value is empty.
type Prefixes []netip.Prefix

// ParsePrefixes reads ranges such as 10.0.0.0/8 and single addresses. IPv4 in
// IPv6 form, ::ffff:10.0.0.0/104, is IPv4.
func ParsePrefixes(cidrs []string) (Prefixes, error) {
	all := make(Prefixes, 0, len(cidrs))
	for _, s := range cidrs {
		p, err := parsePrefix(s)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func parsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("range %q, want a CIDR such as 10.0.0.0/8, or an address", s)
	}
	if a := p.Addr(); a.Is4In6() {
		if p.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("range %q, want at least 96 bits where IPv4 is written as IPv6", s)
		}
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// Contains tells whether a, which is plain, see [PeerAddr], is in the set. An
// address that is not valid is in none.
func (p Prefixes) Contains(a netip.Addr) bool {
	for i := range p {
		if p[i].Contains(a) {
			return true
		}
	}
	return false
}
