package gateway

import (
	"mime"
	"net/netip"
	"strconv"
	"strings"
)

// readForwarded returns the `for` of each element of the Forwarded headers (RFC 7239, 4), "" where
// an element has none. If the whole is not formed as it must be, it returns nothing: whoever wrote
// the wrong part may have meant it to hide the part after it.
func readForwarded(headers []string) (nodes []string) {
	all := strings.Join(headers, ",")
	if len(all) > maxHeader {
		return nil
	}
	// A comma in a quoted string ends an element too early, and neither part of it is well-formed.
	for element := range strings.SplitSeq(all, ",") {
		// An element is written as the parameters of a media type are.
		_, fields, err := mime.ParseMediaType("x/x;" + element)
		if err != nil {
			return nil
		}
		nodes = append(nodes, fields["for"])
	}
	return nodes
}

// parseNode reads an address as a proxy writes it: with or without a port, IPv6 with or without
// brackets. A name, an obfuscated identifier ("_hidden"), "unknown" and what is no single host's
// address are none.
func parseNode(s string) (netip.Addr, bool) {
	host, port := s, ""
	if inner, after, found := strings.Cut(strings.TrimPrefix(s, "["), "]"); strings.HasPrefix(s, "[") {
		if !found || !strings.Contains(inner, ":") || after != "" && after[0] != ':' {
			return netip.Addr{}, false
		}
		host, port = inner, after
	} else if strings.Count(s, ":") == 1 {
		colon := strings.IndexByte(s, ':')
		host, port = s[:colon], s[colon:]
	}
	if port != "" {
		if _, err := strconv.ParseUint(port[1:], 10, 16); err != nil && !obfuscated(port[1:]) {
			return netip.Addr{}, false
		}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}

// obfuscated reports whether a port is one that a proxy does not tell (RFC 7239, 6.3).
func obfuscated(port string) bool {
	return len(port) > 1 && port[0] == '_' && strings.Trim(port[1:], "._-") != ""
}
