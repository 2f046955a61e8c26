package nostr

// everyRelay is the value of a `relay` tag by which a request to vanish is meant for all relays
// (NIP-62).
const everyRelay = "ALL_RELAYS"

// VanishesFrom reports whether a request to vanish (kind 62) is meant for a service: a
// `relay` tag names all relays, or has a relay URL that leads to it.
func VanishesFrom(request *Event, service string) bool {
	for tag := range request.Tags.FindAll("relay") {
		u, err := parseRelayURL(tag[1])
		if tag[1] == everyRelay || err == nil && u.on(service) {
			return true
		}
	}
	return false
}
