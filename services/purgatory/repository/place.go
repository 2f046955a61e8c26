package repository

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
)

const (
	// Folders of the root that are no owner's. An npub begins otherwise.
	newFolder   = ".new"
	trashFolder = ".trash"
	emptyFolder = ".empty.git"
	// prsFolder is the one in which contributors' repositories lie.
	prsFolder = "_prs"
	// OrphansFolder is the one into which `tendril check --repair` puts repositories that no
	// announcement is for.
	OrphansFolder = "_orphans"

	suffix = ".git"
)

// Place says where a repository lies: among those that are announced,
// <root>/<npub>/<identifier>.git, or among those in which contributors offer their pull requests,
// <root>/_prs/<npub>/<identifier>.git (GRASP-06).
type Place struct {
	nostr.RepoRef
	PRs bool
}

// String writes the place as people read it: as the reference of a repository, after "prs/" if it
// is a contributor's.
func (p Place) String() string {
	if p.PRs {
		return "prs/" + p.RepoRef.String()
	}
	return p.RepoRef.String()
}

// folder is where the folders of owners, or of contributors, lie.
func (s *Store) folder(prs bool) string {
	if prs {
		return filepath.Join(s.Root, prsFolder)
	}
	return s.Root
}

// Places returns what lies on disk: announced repositories in the order of the folders' names, then
// those of contributors. An owner or an identifier in only leaves out all others. Folders that are
// no repositories of ours are passed over. An error ends it.
func (s *Store) Places(ctx context.Context, only nostr.RepoRef) iter.Seq2[Place, error] {
	return func(yield func(Place, error) bool) {
		npub, encoded := "", ""
		if only.PubKey != "" {
			npub, _ = nip19.EncodePublicKey(only.PubKey)
		}
		if only.Identifier != "" {
			encoded = nostr.EncodeIdentifier(only.Identifier) + suffix
		}
		for _, prs := range []bool{false, true} {
			owners, err := names(s.folder(prs), npub)
			for _, owner := range owners {
				key, ok := decodeOwner(owner)
				if !ok || err != nil {
					continue
				}
				var folders []string
				folders, err = names(filepath.Join(s.folder(prs), owner), encoded)
				for _, folder := range folders {
					encoded, is := strings.CutSuffix(folder, suffix)
					identifier, failed := nostr.DecodeIdentifier(encoded)
					place := Place{nostr.RepoRef{PubKey: key, Identifier: identifier}, prs}
					repo, illegal := s.At(place)
					if is && failed == nil && illegal == nil && repo.Exists() && !yield(place, nil) {
						return
					}
				}
				err = cmp.Or(err, ctx.Err())
			}
			if err != nil {
				yield(Place{}, fmt.Errorf("list repositories: %w", err))
				return
			}
		}
	}
}

// names lists a folder, unless one name is given.
func names(folder, given string) (names []string, err error) {
	if given != "" {
		return []string{given}, nil
	}
	entries, err := readDir(folder)
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

func decodeOwner(name string) (key string, ok bool) {
	prefix, value, err := nip19.Decode(name)
	key, ok = value.(string)
	return key, ok && err == nil && prefix == "npub"
}

// Strange lists what lies in the root and is none of ours.
func (s *Store) Strange() (names []string, err error) {
	entries, err := os.ReadDir(s.Root)
	if err != nil {
		return nil, fmt.Errorf("list the git folder: %w", err)
	}
	ours := []string{newFolder, trashFolder, prsFolder, emptyFolder, OrphansFolder, belongsFile}
	for _, entry := range entries {
		_, owner := decodeOwner(entry.Name())
		if !owner && !slices.Contains(ours, entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Empty returns a repository without any reference, to be served where a contributor could push to
// and none has. It is one for all, and must not be written to.
func (s *Store) Empty(ctx context.Context) (*Repo, error) {
	r := &Repo{Store: s, Path: filepath.Join(s.Root, emptyFolder)}
	return r, r.ensure(ctx, func(ctx context.Context) error { return ctx.Err() })
}
