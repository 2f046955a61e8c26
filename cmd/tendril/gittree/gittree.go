// Package gittree works on folders of bare repositories, <npub>/<identifier>.git, as GRASP servers
// lay them out: it finds, copies, checks and pushes them, by git and with none of the user's
// configuration.
package gittree

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Suffix ends the names of bare repositories.
const Suffix = ".git"

// Found is a bare repository below a folder.
type Found struct {
	Path  string // of the repository
	Owner string // public key, hex
	Npub  string // the same, as the folder is named
	// Identifiers are those that the folder may be named for, the likeliest first: servers write
	// them percent-encoded or as they are. At least one.
	Identifiers []string
}

// Find lists the repositories of a folder, by owner and name. What is named in another way is
// passed over.
func Find(dir string) ([]Found, error) {
	owners, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	var all []Found
	for _, owner := range owners {
		key, ok := decodeNpub(owner.Name())
		if !ok {
			continue
		}
		folders, err := os.ReadDir(filepath.Join(dir, owner.Name()))
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		for _, folder := range folders {
			path := filepath.Join(dir, owner.Name(), folder.Name())
			name, is := strings.CutSuffix(folder.Name(), Suffix)
			identifiers := identifiersOf(name)
			if !is || len(identifiers) == 0 || !isBare(path) {
				continue
			}
			all = append(all, Found{Path: path, Owner: key, Npub: owner.Name(), Identifiers: identifiers})
		}
	}
	return all, nil
}

// identifiersOf returns the identifiers that a folder may be named for.
func identifiersOf(name string) (identifiers []string) {
	add := func(identifier string, err error) {
		if err == nil && nostr.CheckIdentifier(identifier) == nil && !slices.Contains(identifiers, identifier) {
			identifiers = append(identifiers, identifier)
		}
	}
	add(nostr.DecodeIdentifier(name))
	add(url.PathUnescape(name))
	add(name, nil)
	return identifiers
}

// isBare reports whether a folder looks like a bare repository, or is a link to one.
func isBare(path string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Stat(filepath.Join(path, name)); err != nil {
			return false
		}
	}
	return true
}

// URL is where a GRASP server serves a repository. server is its http(s) URL.
func URL(server, npub, identifier string) string {
	return strings.TrimRight(server, "/") + "/" + npub + "/" + nostr.EncodeIdentifier(identifier) + Suffix
}

func decodeNpub(name string) (key string, ok bool) {
	if !strings.HasPrefix(name, "npub1") {
		return "", false
	}
	prefix, value, err := nip19.Decode(name)
	if err != nil || prefix != "npub" {
		return "", false
	}
	key, ok = value.(string)
	return key, ok && nostr.IsHex64(key)
}
