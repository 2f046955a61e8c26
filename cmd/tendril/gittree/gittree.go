// Package gittree works on folders of bare repositories, <npub>/<identifier>.git, as GRASP servers
// have them: it finds, copies and pushes them, by git and with none of the user's configuration.
package gittree

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

// Repo is a bare repository in a folder, or at a server.
type Repo struct {
	At         string // absolute path or URL
	Npub       string // of the owner
	Identifier string
}

// Name is where the repository is in a folder: <npub>/<identifier>.git, percent-encoded.
func (r Repo) Name() string { return r.Npub + "/" + nostr.EncodeIdentifier(r.Identifier) + ".git" }

// Find lists the repositories of a folder. It passes over what is named in another way.
func Find(dir string) (all []Repo, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	owners, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	for _, owner := range owners {
		if prefix, _, err := nip19.Decode(owner.Name()); err != nil || prefix != "npub" {
			continue
		}
		folders, err := os.ReadDir(filepath.Join(dir, owner.Name()))
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		for _, folder := range folders {
			path := filepath.Join(dir, owner.Name(), folder.Name())
			name, bare := strings.CutSuffix(folder.Name(), ".git")
			if _, err := os.Stat(filepath.Join(path, "objects")); !bare || err != nil {
				continue
			}
			if identifier, ok := identifierOf(name); ok {
				all = append(all, Repo{At: path, Npub: owner.Name(), Identifier: identifier})
			}
		}
	}
	return all, nil
}

// identifierOf reads an identifier that servers write percent-encoded or as it is.
func identifierOf(name string) (identifier string, ok bool) {
	identifier, err := nostr.DecodeIdentifier(name)
	if err != nil {
		if identifier, err = url.PathUnescape(name); err != nil {
			identifier = name
		}
	}
	return identifier, nostr.CheckIdentifier(identifier) == nil
}

// On returns the repository of that name at a GRASP server. server is its http(s) URL.
func (r Repo) On(server string) Repo {
	r.At = strings.TrimRight(server, "/") + "/" + r.Name()
	return r
}
