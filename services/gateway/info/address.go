package info

import (
	"net"
	"strings"
)

// Address returns the URL of a service by its domain, without a path. scheme is "http" or "ws"; it
// becomes "https" or "wss" unless the domain is this machine's own, which is served without TLS.
func Address(scheme, domain string) string {
	if !local(domain) {
		scheme += "s"
	}
	return scheme + "://" + domain
}

func local(domain string) bool {
	host := domain
	if h, _, err := net.SplitHostPort(domain); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}
