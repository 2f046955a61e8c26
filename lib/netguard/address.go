package netguard

import (
	"net/netip"
	"slices"
	"strings"
)

// reserved are address ranges that no stranger may lead us into, by the IANA special-purpose
// registries (RFC 6890) and multicast. Of IPv6 only what lies in the global unicast addresses is
// named: Teredo, ORCHID and benchmarking, documentation, 6to4.
var (
	reserved = prefixes("0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.88.99.0/24 " +
		"192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 2001::/23 2001:db8::/32 2002::/16 3fff::/20")
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
)

func prefixes(list string) (all []netip.Prefix) {
	for _, p := range strings.Fields(list) {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// refusal says why an address is not a public one, or "" if it is. An IPv4 address that is wrapped
// in an IPv6 one (mapped, or by NAT64) is judged as what it is.
func refusal(addr netip.Addr) string {
	switch {
	case !addr.IsValid():
		return "not an address"
	case addr.Zone() != "":
		return "an address with a zone"
	}
	addr = addr.Unmap()
	if nat64.Contains(addr) {
		wide := addr.As16()
		addr = netip.AddrFrom4([4]byte(wide[12:]))
	}
	if slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(addr) }) || addr.Is6() &&
		!globalUnicast.Contains(addr) {
		return "not a public address"
	}
	return ""
}
