// Package gittree works on folders of bare repositories, <npub>/<identifier>.git, as GRASP servers
// lay them out: it finds, copies, checks and pushes them, by git and with none of the user's
// configuration.
package gittree

import (
	"errors"
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

// Path is where a repository lies below a folder.
func Path(dir string, ref nostr.RepoRef) (string, error) {
	npub, err := nip19.EncodePublicKey(ref.PubKey)
	if err != nil {
		return "", fmt.Errorf("name a repository: %w", err)
	}
	if err := nostr.CheckIdentifier(ref.Identifier); err != nil {
		return "", fmt.Errorf("name a repository: %w", err)
	}
	return filepath.Join(dir, npub, nostr.EncodeIdentifier(ref.Identifier)+Suffix), nil
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

// objectFolders are the folder of a repository's objects and those that it borrows from, as
// absolute paths: git passes over relative ones of a repository that another borrows from.
func objectFolders(repository string) ([]string, error) {
	repository, err := filepath.Abs(repository)
	if err != nil {
		return nil, err
	}
	folders := []string{filepath.Join(repository, "objects")}
	for i := 0; i < len(folders); i++ { // it grows
		content, err := os.ReadFile(filepath.Join(folders[i], "info", "alternates"))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read what a repository borrows from: %w", err)
		}
		for line := range strings.Lines(string(content)) {
			line = strings.TrimRight(line, "\n")
			if line == "" || line[0] == '#' {
				continue
			}
			if !filepath.IsAbs(line) {
				line = filepath.Join(folders[i], line)
			}
			if len(folders) < maxBorrowed && !slices.Contains(folders, filepath.Clean(line)) {
				folders = append(folders, filepath.Clean(line))
			}
		}
	}
	return folders, nil
}

// maxBorrowed bounds the object folders of one repository.
const maxBorrowed = 64
