package nostr

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/idna"
)

// Bounds of URLs, in bytes.
const (
	maxRelayURL = 512
	maxCloneURL = 2048
	maxHostName = 253
)

// RelayURL is a normalised relay URL: ws or wss; scheme and host in lower case; without default
// port, trailing slash, user info, query and fragment. Only NormalizeRelayURL makes one.
type RelayURL string

// NormalizeRelayURL reads the URL of a relay. Without a scheme wss is assumed; http and https are
// taken as ws and wss, query and fragment are dropped. Refused are other schemes, user info,
// missing or illegal hosts and ports, spaces and control characters, and what is longer than 512
// bytes. Normalising twice changes nothing.
func NormalizeRelayURL(s string) (RelayURL, error) {
	u, err := parseRelayURL(s)
	normalized := ""
	if err == nil {
		normalized, err = u.normalized(maxRelayURL)
	}
	if err != nil {
		return "", fmt.Errorf("relay URL: %w", err)
	}
	return RelayURL(normalized), nil
}

func parseRelayURL(s string) (hostedURL, error) {
	s = strings.Trim(s, " ")
	if !strings.Contains(s, "://") {
		s = "wss://" + s
	}
	u, err := parseURL(s, maxRelayURL)
	if err != nil {
		return u, err
	}
	switch u.Scheme {
	case "ws", "wss":
	case "http", "https":
		u.Scheme = "ws" + strings.TrimPrefix(u.Scheme, "http")
	default:
		return u, errors.New("the scheme is not ws or wss")
	}
	return u, nil
}

// Secure reports whether the relay is reached over TLS (wss).
func (u RelayURL) Secure() bool { return strings.HasPrefix(string(u), "wss://") }

// Key is the identity of the relay, "host[:port][/path]". ws and wss to one host and effective port
// are one relay: port 443 is left out, every other is written, so that ws://h is "h:80" and wss://h
// is "h".
func (u RelayURL) Key() string {
	scheme, rest, _ := strings.Cut(string(u), "://")
	slash := strings.IndexByte(rest+"/", '/')
	host, path := rest[:slash], rest[slash:]
	switch hasPort := strings.LastIndexByte(host, ':') > strings.LastIndexByte(host, ']'); {
	case scheme != "ws":
		return rest
	case hasPort:
		return strings.TrimSuffix(host, ":443") + path
	}
	return host + ":80" + path
}

// OnDomain reports whether the relay is at the address of that service: see OnDomain.
func (u RelayURL) OnDomain(service string) bool { return OnDomain(string(u), service) }

// NormalizeCloneURL reads a URL that git data may be fetched from, and refuses everything but http
// and https, as well as passwords, queries, fragments, illegal hosts and ports, control
// characters, and what is longer than 2048 bytes. Scheme and host come back in lower case, without
// default port and trailing slash, and without a user name, which no public repository asks for.
// Normalising twice changes nothing.
func NormalizeCloneURL(s string) (normalized string, err error) {
	u, err := parseURL(withoutUser(strings.Trim(s, " ")), maxCloneURL)
	switch {
	case err != nil:
	case u.Scheme != "http" && u.Scheme != "https":
		err = errors.New("the scheme is not http or https")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		err = errors.New("it carries a query or a fragment")
	default:
		normalized, err = u.normalized(maxCloneURL)
	}
	if err != nil {
		return "", fmt.Errorf("clone URL: %w", err)
	}
	return normalized, nil
}

func normalizeCloneURLs(given []string) []string {
	var urls distinct[string]
	for _, s := range given {
		if u, err := NormalizeCloneURL(s); err == nil {
			urls.add(u)
		}
	}
	return urls.items
}

// hostedURL is a URL whose host and port were checked and are in their one spelling.
type hostedURL struct {
	*url.URL
	host string // lower-case name or IP address, IPv6 in brackets
	port string // decimal without leading zeros; the scheme's own if none was written
}

// withoutUser is a URL without its user name. With a password it stays as it is.
func withoutUser(s string) string {
	scheme, rest, found := strings.Cut(s, "://")
	authority, _, _ := strings.Cut(rest, "/")
	user, _, named := strings.Cut(authority, "@")
	if !found || !named || user == "" || strings.ContainsAny(user, ":?#") {
		return s
	}
	return scheme + "://" + rest[len(user)+1:]
}

// parseURL reads an absolute URL with a legal host and without credentials.
func parseURL(s string, longest int) (hostedURL, error) {
	if len(s) > longest {
		return hostedURL{}, fmt.Errorf("it is longer than %d bytes", longest)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || (r >= 0x7f && r <= 0x9f) }); i >= 0 {
		return hostedURL{}, errors.New("it contains spaces or control characters")
	}
	u, err := url.Parse(s)
	if err != nil {
		return hostedURL{}, errors.New("it is not a URL")
	}
	if u.User != nil {
		return hostedURL{}, errors.New("it carries credentials")
	}
	if strings.HasSuffix(u.Host, ":") {
		return hostedURL{}, errors.New("its port is empty") // as in wss://wss://relay.example
	}
	host, err := normalizeHost(u.Hostname())
	if err != nil {
		return hostedURL{}, err
	}
	port := defaultPort(u.Scheme)
	if given := u.Port(); given != "" {
		n, err := strconv.ParseUint(given, 10, 16)
		if err != nil || n == 0 {
			return hostedURL{}, errors.New("its port is not a number from 1 to 65535")
		}
		port = strconv.FormatUint(n, 10)
	}
	return hostedURL{URL: u, host: host, port: port}, nil
}

// normalized writes scheme, host, port unless it is the scheme's own, and path without trailing
// slashes.
func (u hostedURL) normalized(longest int) (string, error) {
	authority := u.host
	if u.port != defaultPort(u.Scheme) {
		authority += ":" + u.port
	}
	s := u.Scheme + "://" + authority + strings.TrimRight(u.EscapedPath(), "/")
	if len(s) > longest {
		return "", fmt.Errorf("it is longer than %d bytes", longest)
	}
	return s, nil
}

// on reports whether the URL's host and port are those of a service, and its path lies below the
// service's. The default ports of http and https, written or not, are one: the scheme of a URL makes
// no difference.
func (u hostedURL) on(service string) bool {
	d, base, err := parseService(service)
	if err != nil || u.host != d.host || withoutDefault(u.port) != withoutDefault(d.port) {
		return false
	}
	return base == "" || u.EscapedPath() == base || strings.HasPrefix(u.EscapedPath(), base+"/")
}

// withoutDefault is "" for the default port of every scheme that services are reached by.
func withoutDefault(port string) string {
	if port == "80" || port == "443" {
		return ""
	}
	return port
}

func defaultPort(scheme string) string {
	switch scheme {
	case "ws", "http":
		return "80"
	case "wss", "https":
		return "443"
	}
	return ""
}

// normalizeHost brings a host name or IP address to its one spelling: lower case, international
// names in ASCII, no dot at the end, IPv6 in brackets and shortest form.
func normalizeHost(host string) (string, error) {
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		if err != nil || ip.Zone() != "" {
			return "", errors.New("its host is not an IP address")
		}
		return "[" + ip.String() + "]", nil
	}
	if strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		ascii, err := idna.Lookup.ToASCII(host)
		if err != nil {
			return "", errors.New("its host is not a legal international name")
		}
		host = ascii
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	switch {
	case host == "":
		return "", errors.New("it has no host")
	case len(host) > maxHostName:
		return "", fmt.Errorf("its host is longer than %d bytes", maxHostName)
	case host[0] == '.' || host[len(host)-1] == '.' || strings.Contains(host, ".."):
		return "", errors.New("its host has an empty label")
	}
	for i := range len(host) {
		c := host[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '.' && c != '-' && c != '_' {
			return "", fmt.Errorf("its host contains %q", c)
		}
	}
	return host, nil
}
