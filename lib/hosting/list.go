package hosting

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// List is a list of repositories as operators write it: npub, npub/identifier or identifier. The
// zero value is empty.
type List struct {
	owners      map[string]bool
	identifiers map[string]bool
	repos       map[nostr.RepoRef]bool
}

// ParseList reads the entries of a setting.
func ParseList(entries []string) (List, error) {
	l := List{owners: map[string]bool{}, identifiers: map[string]bool{}, repos: map[nostr.RepoRef]bool{}}
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		npub, identifier, both := strings.Cut(entry, "/")
		if !strings.HasPrefix(entry, "npub1") {
			if err := nostr.CheckIdentifier(entry); err != nil {
				return l, fmt.Errorf("%q: %w; want npub, npub/identifier or identifier, comma-separated", entry, err)
			}
			l.identifiers[entry] = true
			continue
		}
		pubkey, err := ParseNpub(npub)
		if err == nil && both {
			err = nostr.CheckIdentifier(identifier)
		}
		if err != nil {
			return l, fmt.Errorf("%q: %w; want npub, npub/identifier or identifier, comma-separated", entry, err)
		}
		if both {
			l.repos[nostr.RepoRef{PubKey: pubkey, Identifier: identifier}] = true
		} else {
			l.owners[pubkey] = true
		}
	}
	return l, nil
}

// Empty says that nothing is on the list.
func (l List) Empty() bool {
	return len(l.owners) == 0 && len(l.identifiers) == 0 && len(l.repos) == 0
}

// Has reports whether the repository is on the list, by owner, by identifier or by both.
func (l List) Has(r nostr.RepoRef) bool {
	return l.owners[r.PubKey] || l.identifiers[r.Identifier] || l.repos[r]
}

// ParseNpub reads a public key as operators write it, and returns its 64 hex digits.
func ParseNpub(s string) (string, error) {
	prefix, key, err := nip19.Decode(strings.TrimSpace(s))
	if err != nil || prefix != "npub" {
		return "", errors.New("not a legal npub")
	}
	return key.(string), nil
}
