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
)

// named returns the ids of the objects that references of the repository name, each once. As a rule every reference is a file, and
// no git is started: whoever prunes a pool asks every repository.
func (r *Repo) named(ctx context.Context) ([]string, error) {
	if _, err := os.Lstat(r.in("packed-refs")); !errors.Is(err, fs.ErrNotExist) {
		return r.namedByGit(ctx)
	}
	ids, plain := map[string]bool{}, true
	err := filepath.WalkDir(r.in("refs"), func(path string, entry fs.DirEntry, err error) error {
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
			ids[id] = true
		case !strings.HasPrefix(content, symbolicPrefix): // which names a branch, which is here too
			plain = false
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read references: %w", err)
	}
	if !plain {
		return r.namedByGit(ctx)
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

func (r *Repo) namedByGit(ctx context.Context) ([]string, error) {
	refs, err := r.Refs(ctx)
	if err != nil {
		return nil, err
	}
	ids := slices.Sorted(maps.Values(refs.ByName))
	return slices.Compact(ids), nil
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
