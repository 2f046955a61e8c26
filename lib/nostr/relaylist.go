package nostr

import (
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// MaxListedRelays is how many relays of a relay list count for each purpose.
const MaxListedRelays = 4

// maxListedURL is how long a relay's URL in a list may be.
const maxListedURL = 2048

// RelayList is what counts of a relay list (kind 10002, NIP-65): the first relays for each purpose,
// each once.
type RelayList struct {
	Read  []RelayURL // where its author reads: marked read, or unmarked
	Write []RelayURL // where its author writes: marked write, or unmarked
	Past  []RelayURL // where the author's events lie: those of Write, and then others of Read
}

// ParseRelayList reads a relay list. An entry that cannot be used costs the entry, not the list.
// private also lets addresses through that are not public.
func ParseRelayList(ev *Event, private bool) (list RelayList) {
	var read, write []RelayURL
	for tag := range ev.Tags.FindAll("r") {
		marker := ""
		if len(tag) > 2 {
			marker = tag[2]
		}
		u, ok := listedRelay(tag[1], private)
		if !ok {
			continue
		}
		if marker == "" || marker == "read" {
			read = append(read, u)
		}
		if marker == "" || marker == "write" {
			write = append(write, u)
		}
	}
	return RelayList{Read: firstRelays(read), Write: firstRelays(write), Past: firstRelays(slices.Concat(write, read))}
}

// firstRelays are the first ones that count, each relay once.
func firstRelays(all []RelayURL) (first []RelayURL) {
	seen := map[string]bool{}
	for _, u := range all {
		if key := u.Key(); !seen[key] && len(first) < MaxListedRelays {
			seen[key] = true
			first = append(first, u)
		}
	}
	return first
}

// listedRelay reads an entry of a list. Refused is what no relay for everybody has: credentials,
// addresses that are not public, hidden services, and paths of what was made for one reader.
func listedRelay(text string, private bool) (RelayURL, bool) {
	if len(text) > maxListedURL {
		return "", false
	}
	given, err := url.Parse(strings.TrimSpace(text))
	if err != nil || given.User != nil || given.Scheme != "ws" && given.Scheme != "wss" {
		return "", false
	}
	u, err := NormalizeRelayURL(text)
	if err != nil {
		return "", false
	}
	parsed, err := url.Parse(string(u))
	if err != nil {
		return "", false
	}
	host := parsed.Hostname()
	if strings.HasSuffix(host, ".onion") || !private && IsLocal(host) || strings.Contains(parsed.Path, host) {
		return "", false
	}
	for segment := range strings.SplitSeq(parsed.Path, "/") {
		if IsHex64(strings.ToLower(segment)) {
			return "", false
		}
	}
	return u, true
}

// IsLocal reports whether a host can be told to be none of the public network by its name alone.
// What its name leads to is for who connects to look at.
func IsLocal(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return !addr.IsGlobalUnicast() || addr.IsPrivate()
	}
	return !strings.Contains(host, ".") || slices.ContainsFunc([]string{".localhost", ".local", ".internal", ".lan", ".home.arpa"},
		func(end string) bool { return strings.HasSuffix(host, end) })
}
