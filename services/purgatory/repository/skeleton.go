package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// skeleton is a bare repository as git makes it: every new repository and pool is a copy, because a
// git process for each would be a good part of what a new repository costs.
type skeleton struct {
	folders []string // below the repository, each after the one that it is in
	files   map[string]string
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
	made := &skeleton{files: map[string]string{}}
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
		content, err := os.ReadFile(path)
		made.files[name] = string(content)
		return err
	})
}

// write makes a repository of an empty folder, with more files in it, and brings it to the disk.
// lean: without the folders that git makes where it needs them.
func (k *skeleton) write(root string, lean bool, more map[string]string) error {
	folders := map[string]bool{} // that have something in them
	for _, name := range k.folders {
		if lean && filepath.Dir(name) != "." {
			continue
		}
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
		folders[filepath.Dir(name)] = true
	}
	for _, files := range []map[string]string{k.files, more} {
		for name, content := range files {
			if err := writeFile(filepath.Join(root, name), content); err != nil {
				return err
			}
			folders[filepath.Dir(name)] = true
		}
	}
	for name := range folders {
		if err := syncPath(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return nil
}

// writeFile makes a file that is not there, and brings what is in it to the disk; its folder is the
// caller's to bring there.
func writeFile(path string, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Sync(), f.Close())
}
