package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"tendril.dev/lib/nostr"
)

// prsFolder is the folder of the root in which contributors' repositories lie. No npub is named so.
const prsFolder = "_prs"

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

// Place says where the repository lies.
func (r *Repo) Place() Place { return Place{RepoRef: r.ref, PRs: r.prs} }

// folder is where the folders of owners, or of contributors, lie.
func (s *Store) folder(prs bool) string {
	if prs {
		return filepath.Join(s.root, prsFolder)
	}
	return s.root
}

// All returns what lies on disk of announced repositories, in the order of the folders' names.
// Folders that are no repositories of ours are passed over. An error ends it.
func (s *Store) All(ctx context.Context) iter.Seq2[nostr.RepoRef, error] {
	return func(yield func(nostr.RepoRef, error) bool) {
		for place, err := range s.walk(ctx, false) {
			if !yield(place.RepoRef, err) {
				return
			}
		}
	}
}

// Places returns all that lies on disk: announced repositories as All does, then those of
// contributors.
func (s *Store) Places(ctx context.Context) iter.Seq2[Place, error] {
	return func(yield func(Place, error) bool) {
		for _, prs := range []bool{false, true} {
			for place, err := range s.walk(ctx, prs) {
				if !yield(place, err) {
					return
				}
			}
		}
	}
}

func (s *Store) walk(ctx context.Context, prs bool) iter.Seq2[Place, error] {
	return func(yield func(Place, error) bool) {
		owners, err := os.ReadDir(s.folder(prs))
		if err != nil && !(prs && errors.Is(err, fs.ErrNotExist)) {
			yield(Place{}, fmt.Errorf("list repositories: %w", err))
			return
		}
		for _, owner := range owners {
			key, ok := decodeOwner(owner.Name())
			if !ok {
				continue
			}
			for place, err := range s.walkOwner(ctx, key, owner.Name(), prs) {
				if !yield(place, err) || err != nil {
					return
				}
			}
		}
	}
}

// walkOwner returns the repositories in one folder.
func (s *Store) walkOwner(ctx context.Context, key, npub string, prs bool) iter.Seq2[Place, error] {
	return func(yield func(Place, error) bool) {
		folders, err := os.ReadDir(filepath.Join(s.folder(prs), npub))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			yield(Place{}, fmt.Errorf("list repositories: %w", err))
			return
		}
		for _, folder := range folders {
			if ctx.Err() != nil {
				yield(Place{}, ctx.Err())
				return
			}
			identifier, ok := decodeFolder(folder)
			if !ok {
				continue
			}
			if !yield(Place{nostr.RepoRef{PubKey: key, Identifier: identifier}, prs}, nil) {
				return
			}
		}
	}
}

// Of returns what lies on disk of announced repositories of one owner. An error ends it.
func (s *Store) Of(ctx context.Context, pubkey string) iter.Seq2[nostr.RepoRef, error] {
	return func(yield func(nostr.RepoRef, error) bool) {
		npub, err := encodeOwner(pubkey)
		if err != nil {
			yield(nostr.RepoRef{}, err)
			return
		}
		for place, err := range s.walkOwner(ctx, pubkey, npub, false) {
			if !yield(place.RepoRef, err) || err != nil {
				return
			}
		}
	}
}

// PRsOf returns the repositories of one contributor. An error ends it.
func (s *Store) PRsOf(ctx context.Context, pubkey string) iter.Seq2[Place, error] {
	npub, err := encodeOwner(pubkey)
	if err != nil {
		return func(yield func(Place, error) bool) { yield(Place{}, err) }
	}
	return s.walkOwner(ctx, pubkey, npub, true)
}

// Beside returns where repositories of one identifier lie on disk, contributors' included.
func (s *Store) Beside(identifier string) (places []Place, err error) {
	encoded := nostr.EncodeIdentifier(identifier) + suffix
	for _, prs := range []bool{false, true} {
		owners, err := readDir(s.folder(prs))
		if err != nil {
			return nil, fmt.Errorf("list repositories: %w", err)
		}
		for _, owner := range owners {
			key, ok := decodeOwner(owner.Name())
			if _, err := os.Lstat(filepath.Join(s.folder(prs), owner.Name(), encoded)); !ok || errors.Is(err, fs.ErrNotExist) {
				continue
			} else if err != nil {
				return nil, fmt.Errorf("list repositories: %w", err)
			}
			places = append(places, Place{nostr.RepoRef{PubKey: key, Identifier: identifier}, prs})
		}
	}
	return places, nil
}

// Strange lists what lies in the root and is none of ours.
func (s *Store) Strange() (names []string, err error) {
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, fmt.Errorf("list the git folder: %w", err)
	}
	ours := []string{newFolder, trashFolder, prsFolder, emptyFolder + suffix, OrphansFolder, belongsFile}
	for _, entry := range entries {
		_, owner := decodeOwner(entry.Name())
		if !owner && !slices.Contains(ours, entry.Name()) {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// OrphansFolder is the folder of the root into which `tendril check --repair` puts copies of
// repositories that no announcement is for.
const OrphansFolder = "_orphans"

// Empty returns a repository without any reference, to be served where a contributor could push to
// and nobody has. It is one for all, and must not be written to.
func (s *Store) Empty(ctx context.Context) (*Repo, error) {
	r := &Repo{store: s, path: filepath.Join(s.root, emptyFolder+suffix)}
	return r, r.Ensure(ctx)
}
