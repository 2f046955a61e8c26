package netguard

import (
	"net/netip"
	"slices"
	"strings"
)

// reserved are address ranges that no stranger may lead us into, by the IANA special-purpose
// registries (RFC 6890) and multicast.
var reserved = map[string][]netip.Prefix{
	"an unspecified address":             prefixes("0.0.0.0/8 ::/128"),
	"a private address":                  prefixes("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7"),
	"a carrier-grade NAT address":        prefixes("100.64.0.0/10"),
	"a loopback address":                 prefixes("127.0.0.0/8 ::1/128"),
	"a link-local address":               prefixes("169.254.0.0/16 fe80::/10"),
	"an address of protocol assignments": prefixes("192.0.0.0/24 2001::/23"), // Teredo, ORCHID, benchmarking
	"a documentation address":            prefixes("192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20"),
	"a 6to4 address":                     prefixes("192.88.99.0/24 2002::/16"),
	"a benchmarking address":             prefixes("198.18.0.0/15"),
	"a multicast address":                prefixes("224.0.0.0/4 ff00::/8"),
	"a reserved or broadcast address":    prefixes("240.0.0.0/4"),
	"a local NAT64 address":              prefixes("64:ff9b:1::/48"),
}

func prefixes(list string) (all []netip.Prefix) {
	for _, p := range strings.Fields(list) {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	nat64         = netip.MustParsePrefix("64:ff9b::/96")
)

// refusal says why an address is not a public one, or "" if it is. An IPv4 address that is wrapped
// in an IPv6 one (mapped, or by NAT64) is judged as what it is.
func refusal(addr netip.Addr) string {
	if !addr.IsValid() {
		return "not an address"
	}
	if addr.Zone() != "" {
		return "an address with a zone"
	}
	addr = addr.Unmap()
	if nat64.Contains(addr) {
		wide := addr.As16()
		addr = netip.AddrFrom4([4]byte(wide[12:]))
	}
	for what, all := range reserved {
		if slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return what
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return "not a global unicast address"
	}
	return ""
}
