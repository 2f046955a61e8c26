package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// Named returns the ids of the objects that references of the repository name, each once, without
// those references for which skip is true; nil skips none.
func (r *Repo) Named(ctx context.Context, skip func(name string) bool) ([]string, error) {
	refs, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for name, id := range refs.ByName {
		if skip == nil || !skip(name) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// readRefFiles reads the references that are files. plain: these are all, and git would read them
// the same. A packed-refs, also one that appears meanwhile, may have taken references away from
// their files: then only git knows them all.
func (r *Repo) readRefFiles() (refs Refs, plain bool, err error) {
	refs, plain = Refs{ByName: map[string]string{}, Symbolic: map[string]string{}}, true
	err = filepath.WalkDir(r.in("refs"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if entry.IsDir() || strings.HasSuffix(path, ".lock") {
			return nil
		}
		content, err := readShort(path)
		if err != nil {
			return ignoreGone(err)
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, r.path+string(filepath.Separator)))
		content = strings.TrimSuffix(content, "\n")
		branch, symbolic := strings.CutPrefix(content, symbolicPrefix)
		switch {
		case nostr.CheckRefName(name) != nil:
			plain = false
		case isID(content):
			refs.ByName[name] = content
		case symbolic:
			refs.Symbolic[name] = branch
		default:
			plain = false
		}
		return nil
	})
	maps.DeleteFunc(refs.Symbolic, func(_, branch string) bool { return refs.ByName[branch] == "" })
	if _, packed := os.Lstat(r.in("packed-refs")); !errors.Is(packed, fs.ErrNotExist) {
		return refs, false, errors.Join(err, packed)
	}
	return refs, plain, err
}

// IsNamed reports whether a reference that is a file, as nearly all are, names an object. It
// starts no git.
func (r *Repo) IsNamed(name, id string) bool {
	if checkRef(name, id, "refs/") != nil {
		return false
	}
	content, err := readShort(r.in(filepath.FromSlash(name)))
	return err == nil && strings.TrimSuffix(content, "\n") == id
}

// readShort reads a file of a few bytes.
func readShort(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, 4<<10))
	return string(content), err
}

// hasReferences reports whether there is any reference. It starts no git.
func (r *Repo) hasReferences() (bool, error) {
	if info, err := os.Lstat(r.in("packed-refs")); err == nil && info.Size() > 0 {
		return true, nil
	}
	found := false
	err := filepath.WalkDir(r.in("refs"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return ignoreGone(err)
		case !entry.IsDir() && !strings.HasSuffix(path, ".lock"):
			found = true
			return fs.SkipAll
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for references: %w", err)
	}
	return found, nil
}
