package repository

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// skeleton is a bare repository as git makes it: every new repository and pool is a copy, because a
// git process for each would be a good part of what a new repository costs.
type skeleton struct {
	folders []string // below the repository, each after the one that it is in
	files   map[string][]byte
	branch  string // that HEAD follows, by its full name
}

// skeleton lets git make a repository the first time, and returns what that was.
func (s *Store) skeleton(ctx context.Context) (*skeleton, error) {
	s.first.Lock()
	defer s.first.Unlock()
	if s.first.made != nil {
		return s.first.made, nil
	}
	temporary, err := os.MkdirTemp(filepath.Join(s.root, newFolder), "init-")
	if err != nil {
		return nil, fmt.Errorf("look at a new repository: %w", err)
	}
	defer os.RemoveAll(temporary)
	fresh := &Repo{store: s, path: temporary}
	if _, err := fresh.run(ctx, "", "init", "--quiet", "--bare", "--template="); err != nil {
		return nil, fmt.Errorf("look at a new repository: %w", err)
	}
	made, err := readSkeleton(temporary)
	if err == nil {
		made.branch, err = fresh.Head()
	}
	if err != nil {
		return nil, fmt.Errorf("look at a new repository: %w", err)
	}
	s.first.made = made
	return made, nil
}

func readSkeleton(root string) (*skeleton, error) {
	made := &skeleton{files: map[string][]byte{}}
	return made, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			made.folders = append(made.folders, name)
			return nil
		}
		made.files[name], err = os.ReadFile(path)
		return err
	})
}

// write makes a repository of an empty folder.
func (k *skeleton) write(root string) error {
	for _, name := range k.folders {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	for name, content := range k.files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}
