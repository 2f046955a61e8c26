package clientaddr

import (
	"net/netip"
	"strconv"
	"strings"
)

// readForwarded returns the `for` of each element of the Forwarded headers (RFC 7239, 4), "" where
// an element has none. If the whole is not formed as it must be, it returns nothing: whoever wrote
// the wrong part may have meant it to hide the part after it.
func readForwarded(headers []string) []string {
	rest := strings.Join(headers, ",")
	if len(rest) > maxHeader {
		return nil
	}
	var nodes []string
	for {
		node, after, ok := readElement(rest)
		if !ok {
			return nil
		}
		nodes = append(nodes, node)
		if after == "" {
			return nodes
		}
		rest = after[1:] // the comma
	}
}

// readElement reads `name=value;name=value` up to the next comma, which is the first byte of rest.
func readElement(s string) (node, rest string, ok bool) {
	seen := map[string]bool{}
	s = skipSpace(s)
	for s != "" && s[0] != ',' {
		name, after := readToken(s)
		name = strings.ToLower(name)
		if name == "" || seen[name] || !strings.HasPrefix(after, "=") {
			return "", "", false
		}
		seen[name] = true
		value, after, ok := readValue(after[1:])
		if !ok {
			return "", "", false
		}
		if name == "for" {
			node = value
		}
		s = skipSpace(after)
		if strings.HasPrefix(s, ";") {
			s = skipSpace(s[1:])
		} else if s != "" && s[0] != ',' {
			return "", "", false
		}
	}
	return node, s, true
}

func skipSpace(s string) string { return strings.TrimLeft(s, " \t") }

// readToken cuts a token (RFC 9110, 5.6.2) off the beginning.
func readToken(s string) (token, rest string) {
	end := strings.IndexFunc(s, func(r rune) bool {
		letter := 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
		return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
	if end < 0 {
		end = len(s)
	}
	return s[:end], s[end:]
}

// readValue reads a token or a quoted string.
func readValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, rest = readToken(s)
		return value, rest, value != ""
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false // it has no end
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
