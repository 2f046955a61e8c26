package throttle

import (
	"net/netip"
	"net/url"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Domain is the host name in a URL, or its IP address, whatever the port; in lower case, without a
// dot at the end. It is what limits are counted by.
func Domain(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// ownerOf is whom a share of all requests belongs to: the registrable domain of a host name, for
// one who has that has any number of names below it; the network of an address.
func ownerOf(domain string) string {
	if addr, err := netip.ParseAddr(domain); err == nil {
		return networkOf(addr)
	}
	if registrable, err := publicsuffix.EffectiveTLDPlusOne(domain); err == nil {
		return registrable
	}
	return domain
}

// networkOf is what one party is most often given of an address space: a /24 of IPv4, a /48 of
// IPv6.
func networkOf(addr netip.Addr) string {
	addr = addr.Unmap()
	bits := 48
	if addr.Is4() {
		bits = 24
	}
	network, err := addr.WithZone("").Prefix(bits)
	if err != nil {
		return addr.String()
	}
	return network.String()
}
