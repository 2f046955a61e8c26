package repository

import (
	"context"
	"fmt"
	"io/fs"
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
		for _, prs := range []bool{false, true} {
			if err := s.walk(ctx, prs, only, yield); err != nil {
				if err != fs.SkipAll {
					yield(Place{}, fmt.Errorf("list repositories: %w", err))
				}
				return
			}
		}
	}
}

// walk lists one folder of owners. SkipAll: yield wants no more.
func (s *Store) walk(ctx context.Context, prs bool, only nostr.RepoRef, yield func(Place, error) bool) error {
	npub, wanted := "", ""
	var err error
	if only.PubKey != "" {
		npub, err = nip19.EncodePublicKey(only.PubKey)
	}
	if only.Identifier != "" {
		wanted = nostr.EncodeIdentifier(only.Identifier) + suffix
	}
	if err != nil {
		return err
	}
	owners, err := entries(s.folder(prs), npub)
	if err != nil {
		return err
	}
	for _, owner := range owners {
		key, ok := decodeOwner(owner.Name())
		if !ok {
			continue
		}
		repositories, err := entries(filepath.Join(s.folder(prs), owner.Name()), wanted)
		if err != nil {
			return err
		}
		for _, entry := range repositories {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			identifier, ok := decodeFolder(entry)
			if ok && !yield(Place{nostr.RepoRef{PubKey: key, Identifier: identifier}, prs}, nil) {
				return fs.SkipAll
			}
		}
	}
	return nil
}

// entries lists a folder, or only one entry of it, if that is named and there.
func entries(folder, name string) ([]fs.DirEntry, error) {
	if name == "" {
		return readDir(folder)
	}
	info, err := os.Lstat(filepath.Join(folder, name))
	if err != nil {
		return nil, ignoreGone(err)
	}
	return []fs.DirEntry{fs.FileInfoToDirEntry(info)}, nil
}

// decodeFolder returns the identifier for which a folder is named.
func decodeFolder(folder fs.DirEntry) (identifier string, ok bool) {
	encoded, ok := strings.CutSuffix(folder.Name(), suffix)
	if !ok || !folder.IsDir() {
		return "", false
	}
	identifier, err := nostr.DecodeIdentifier(encoded)
	return identifier, err == nil && nostr.CheckIdentifier(identifier) == nil
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
	r := &Repo{store: s, path: filepath.Join(s.Root, emptyFolder)}
	return r, r.Ensure(ctx)
}
