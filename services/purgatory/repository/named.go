package repository

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tendril.dev/lib/nostr"
)

// Named returns the ids of the objects that references of the repository name, each once, without
// those references for which skip is true; nil skips none. As a rule every reference is a file, and
// no git is started.
func (r *Repo) Named(ctx context.Context, skip func(name string) bool) ([]string, error) {
	found, err := r.readRefFiles()
	if err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	if !found.plain {
		refs, err := r.listRefs(ctx)
		if err != nil {
			return nil, fmt.Errorf("read references: %w", err)
		}
		found.byName = refs.ByName
	}
	var ids []string
	for name, id := range found.byName {
		if skip == nil || !skip(name) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// refFiles are the references that are files.
type refFiles struct {
	byName   map[string]string
	plain    bool // these are all that there are, but for symbolic ones, and git would read them the same
	symbolic bool // there are symbolic ones, each of which names a branch that is here too
}

// readRefFiles reads them. A packed-refs, also one that appears meanwhile, may have taken
// references away from their files: then only git knows them all.
func (r *Repo) readRefFiles() (found refFiles, err error) {
	defer func() {
		if _, packed := os.Lstat(r.in("packed-refs")); !errors.Is(packed, fs.ErrNotExist) {
			found.plain = false
			err = errors.Join(err, packed)
		}
	}()
	found = refFiles{byName: map[string]string{}, plain: true}
	err = filepath.WalkDir(r.in("refs"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone while we walked
		case err != nil:
			return err
		case entry.IsDir() || strings.HasSuffix(path, ".lock"):
			return nil
		}
		content, err := readShort(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, r.path+string(filepath.Separator)))
		switch id := strings.TrimSuffix(content, "\n"); {
		case err != nil:
			return err
		case nostr.CheckRefName(name) != nil:
			found.plain = false
		case isID(id):
			found.byName[name] = id
		case strings.HasPrefix(content, symbolicPrefix):
			found.symbolic = true
		default:
			found.plain = false
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return found, err
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
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
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
