package gateway

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

const (
	// maxHops is how many proxies may stand in a row before us.
	maxHops = 8
	// maxHeader is how long X-Forwarded-For may be, in bytes; a longer one is not read.
	maxHeader = 4096
)

// proxies are the reverse proxies whose word is believed (NGIT_TRUSTED_PROXIES).
type proxies []netip.Prefix

// trusts reports whether the address is that of a trusted proxy.
func (trusted proxies) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// client returns the address that a request comes from. Beginning with the peer, which connected to
// us, and going through X-Forwarded-For from the right, it skips as many trusted proxies as may
// stand in a row and returns the first address that is none. Where the next entry cannot be read,
// it returns the last good address. The zero address means that the peer has none.
func (trusted proxies) client(req *http.Request) netip.Addr {
	addr := peerOf(req.RemoteAddr)
	all := strings.Join(req.Header.Values("X-Forwarded-For"), ",") // one list (RFC 9110, 5.3)
	if len(all) > maxHeader {
		return addr
	}
	nodes := strings.Split(all, ",")
	for hops := 0; hops < maxHops && len(nodes) > 0 && trusted.trusts(addr); hops++ {
		last := len(nodes) - 1
		next, ok := parseNode(strings.Trim(nodes[last], " \t"))
		if !ok {
			break
		}
		addr, nodes = next, nodes[:last]
	}
	return addr
}

// peerOf reads the address of a connection, "host:port". The zero address: it has none, or is none.
func peerOf(hostport string) netip.Addr {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return netip.Addr{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap().WithZone("")
}

// parseNode reads an address as a proxy writes it: with or without a port, IPv6 with or without
// brackets. A name, "unknown" and what is no single host's address are none.
func parseNode(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(s)
	if withPort, wrong := netip.ParseAddrPort(s); err != nil && wrong == nil {
		addr, err = withPort.Addr(), nil
	} else if inner, ok := strings.CutPrefix(s, "["); err != nil && ok && strings.HasSuffix(inner, "]") {
		addr, err = netip.ParseAddr(strings.TrimSuffix(inner, "]"))
	}
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}
