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
	// maxHeader is how long a forwarding header may be, in bytes; a longer one is not read.
	maxHeader = 4096
)

// proxies are the reverse proxies whose word is believed (NGIT_TRUSTED_PROXIES).
type proxies []netip.Prefix

// trusts reports whether the address is that of a trusted proxy.
func (trusted proxies) trusts(addr netip.Addr) bool {
	return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// client returns the address that a request comes from. Beginning with who connected to us and
// going through the forwarding headers from the right, it skips trusted proxies and returns the
// first address that is none. Where the next entry cannot be read, it returns the last good
// address. The zero address means that the peer has none.
//
// X-Forwarded-For and Forwarded (RFC 7239) must agree if both are there: a proxy that writes one
// may pass on the other as the client made it up. If they do not, the peer's address counts.
func (trusted proxies) client(req *http.Request) netip.Addr {
	peer := peerOf(req.RemoteAddr)
	if !trusted.trusts(peer) {
		return peer
	}
	xff, forwarded := req.Header.Values("X-Forwarded-For"), req.Header.Values("Forwarded")
	switch {
	case len(forwarded) == 0:
		return trusted.walk(peer, readList(xff))
	case len(xff) == 0:
		return trusted.walk(peer, readForwarded(forwarded))
	}
	addr := trusted.walk(peer, readList(xff))
	if addr != trusted.walk(peer, readForwarded(forwarded)) {
		return peer
	}
	return addr
}

// walk goes from the peer to the left, past as many trusted proxies as may stand in a row.
func (trusted proxies) walk(peer netip.Addr, nodes []string) netip.Addr {
	addr := peer
	for hops := 0; hops < maxHops && len(nodes) > 0 && trusted.trusts(addr); hops++ {
		last := len(nodes) - 1
		next, ok := parseNode(nodes[last])
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

// readList splits X-Forwarded-For. Several headers are one list (RFC 9110, 5.3).
func readList(headers []string) []string {
	all := strings.Join(headers, ",")
	if len(all) > maxHeader {
		return nil
	}
	nodes := strings.Split(all, ",")
	for i := range nodes {
		nodes[i] = strings.Trim(nodes[i], " \t")
	}
	return nodes
}
