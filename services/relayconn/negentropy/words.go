package negentropy

import (
	"slices"
	"strings"

	"tendril.dev/services/relayconn/allowance"
)

// refusal is what a relay means that does not go on with a session.
type refusal int

const (
	unable  refusal = iota // it does not reconcile, or not with us
	tooMany                // too many events match the filter
	fewer                  // too many sessions are open
	quiet                  // we ask too much
	gone                   // it has forgotten the session
)

// refusalOf reads the reason of a NEG-ERR or CLOSED. NIP-77 has the prefixes `blocked:` and
// `closed:`; the rest are words of strfry, khatru and our own.
func refusalOf(reason string) refusal {
	switch {
	case allowance.WantsQuiet(reason):
		return quiet
	case wantsFewer(reason):
		return fewer
	case says(reason, "too many", "too big", "too large", "too broad"):
		return tooMany
	case strings.HasPrefix(strings.ToLower(reason), "closed"):
		return gone
	}
	return unable
}

func wantsFewer(text string) bool {
	return says(text, "too many concurrent", "too many subscriptions", "too many sessions", "too many neg", "maximum concurrent")
}

// concerns reports whether a NOTICE is about NIP-77.
func concerns(text string) bool {
	return says(text, "negentropy", "neg-", "neg request", "nip-77", "nip77")
}

// notUnderstood reports whether a NOTICE says that a message was none that the relay knows.
func notUnderstood(text string) bool {
	return says(text, "unknown", "unrecogni", "unsupported", "not supported", "parse", "bad msg", "unexpected", "invalid message", "command")
}

func says(text string, phrases ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(phrases, func(phrase string) bool { return strings.Contains(text, phrase) })
}
