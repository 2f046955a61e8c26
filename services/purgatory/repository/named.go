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
)

// Named returns the ids of the objects that references of the repository name, each once, without
// those references for which skip is true; nil skips none. As a rule every reference is a file, and
// no git is started.
func (r *Repo) Named(ctx context.Context, skip func(name string) bool) ([]string, error) {
	byName, plain, err := r.readRefFiles()
	if err != nil {
		return nil, fmt.Errorf("read references: %w", err)
	}
	if !plain {
		refs, err := r.Refs(ctx)
		if err != nil {
			return nil, err
		}
		byName = refs.ByName
	}
	var ids []string
	for name, id := range byName {
		if skip == nil || !skip(name) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// readRefFiles reads the references that are files. plain: those are all that there are, and git
// would read them the same.
func (r *Repo) readRefFiles() (byName map[string]string, plain bool, err error) {
	if _, err := os.Lstat(r.in("packed-refs")); !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	byName, plain = map[string]string{}, true
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
		switch id := strings.TrimSuffix(content, "\n"); {
		case err != nil:
			return err
		case isID(id):
			byName[filepath.ToSlash(strings.TrimPrefix(path, r.path+string(filepath.Separator)))] = id
		case !strings.HasPrefix(content, symbolicPrefix): // which names a branch, which is here too
			plain = false
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return byName, plain, err
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
