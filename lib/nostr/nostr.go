// Package nostr parses, verifies and encodes nostr events, and says what NIP-34 means by them:
// announcements, states, pull requests, maintainer sets, references, relay and clone URLs. The
// types of go-nostr that are used everywhere have aliases here, so that a file imports one package
// of this name.
//
// Every input was written by a stranger. Parsers are strict and bounded, and their errors are one
// sentence that may be shown to the author after "invalid: ". Nothing here does I/O.
package nostr

import gonostr "github.com/nbd-wtf/go-nostr"

// Types and functions of go-nostr.
type (
	Event     = gonostr.Event
	Filter    = gonostr.Filter
	Filters   = gonostr.Filters
	Tag       = gonostr.Tag
	TagMap    = gonostr.TagMap
	Tags      = gonostr.Tags
	Timestamp = gonostr.Timestamp
)

// Now returns the time of the clock.
func Now() Timestamp { return gonostr.Now() }

// IsReplaceableKind reports whether an author has one event of this kind.
func IsReplaceableKind(kind int) bool { return gonostr.IsReplaceableKind(kind) }

// IsAddressableKind reports whether an author has one event of this kind for each "d" tag.
func IsAddressableKind(kind int) bool { return gonostr.IsAddressableKind(kind) }

// IsEphemeralKind reports whether events of this kind are never stored.
func IsEphemeralKind(kind int) bool { return gonostr.IsEphemeralKind(kind) }
