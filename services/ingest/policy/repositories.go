package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nip34"
)

// RepositoryList is a list of repositories as operators write it: npub, npub/identifier or identifier. The zero value is empty.
type RepositoryList struct {
	owners      map[string]bool
	identifiers map[string]bool
	repos       map[nip34.RepoRef]bool
}

// ParseRepositoryList reads the entries of a setting.
func ParseRepositoryList(entries []string) (RepositoryList, error) {
	l := RepositoryList{owners: map[string]bool{}, identifiers: map[string]bool{}, repos: map[nip34.RepoRef]bool{}}
	for _, entry := range entries {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		npub, identifier, both := strings.Cut(entry, "/")
		if !strings.HasPrefix(entry, "npub1") {
			if err := nip34.CheckIdentifier(entry); err != nil {
				return l, fmt.Errorf("%q: %w; want npub, npub/identifier or identifier, comma-separated", entry, err)
			}
			l.identifiers[entry] = true
			continue
		}
		pubkey, err := parseNpub(npub)
		if err == nil && both {
			err = nip34.CheckIdentifier(identifier)
		}
		if err != nil {
			return l, fmt.Errorf("%q: %w; want npub, npub/identifier or identifier, comma-separated", entry, err)
		}
		if both {
			l.repos[nip34.RepoRef{PubKey: pubkey, Identifier: identifier}] = true
		} else {
			l.owners[pubkey] = true
		}
	}
	return l, nil
}

// Empty says that nothing is on the list.
func (l RepositoryList) Empty() bool {
	return len(l.owners) == 0 && len(l.identifiers) == 0 && len(l.repos) == 0
}

// Has says whether the repository is on the list, by owner, by identifier or by both.
func (l RepositoryList) Has(r nip34.RepoRef) bool {
	return l.owners[r.PubKey] || l.identifiers[r.Identifier] || l.repos[r]
}

func parseNpub(s string) (string, error) {
	prefix, key, err := nip19.Decode(strings.TrimSpace(s))
	if err != nil || prefix != "npub" {
		return "", errors.New("not a legal npub")
	}
	return key.(string), nil
}
