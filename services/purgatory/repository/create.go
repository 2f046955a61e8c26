package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// staleFolder is the age of a temporary folder that no living process can own: no push or fetch
	// lasts that long.
	staleFolder = 24 * time.Hour
	// staleLock is the same for a lock file: a transaction of references takes seconds. Until then a
	// push fails that meets the lock of a git that was killed.
	staleLock = time.Minute
)

// newConfig is the configuration of a new repository. What rules git comes by its environment.
const newConfig = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"

// Exists reports whether the repository is on disk.
func (r *Repo) Exists() bool {
	info, err := os.Stat(r.path)
	return err == nil && info.IsDir()
}

// Ensure makes the bare repository if it is not there: HEAD, config and the two folders by which
// git knows it. It appears whole or not at all, many may ask at once, and asking again changes
// nothing.
func (r *Repo) Ensure(ctx context.Context) error {
	if r.Exists() {
		return nil
	}
	if err := r.make(ctx); err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	return nil
}

func (r *Repo) make(ctx context.Context) error {
	temporary, err := os.MkdirTemp(filepath.Join(r.store.root, newFolder), "init-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if err := errors.Join(r.store.writeNew(temporary), r.mayWrite(ctx)); err != nil {
		return err
	}
	for {
		if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
			return err
		}
		err := os.Rename(temporary, r.path)
		switch {
		case err == nil:
			return syncFolders(r.above()...)
		case r.Exists():
			return nil // another was first
		case errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil:
			continue // the owner's last repository was removed in between, and the owner's folder with it
		}
		return err
	}
}

// writeNew makes a repository of an empty folder, durably.
func (s *Store) writeNew(folder string) error {
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"objects", "refs"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o755); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{"HEAD": symbolicPrefix + s.branch + "\n", "config": newConfig} {
		f, err := os.OpenFile(filepath.Join(folder, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(content)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return syncPath(folder)
}

// above are the folders that the repository lies in, the nearest first.
func (r *Repo) above() []string {
	folders := []string{filepath.Dir(r.path), r.store.root}
	if r.prs {
		folders = slices.Insert(folders, 1, r.store.folder(true))
	}
	return folders
}

// Remove takes the repository away: out of sight at once, then off the disk. One that is not there
// is no error.
func (r *Repo) Remove(ctx context.Context) error {
	if err := r.mayWrite(ctx); err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	trash, err := os.MkdirTemp(filepath.Join(r.store.root, trashFolder), "repository-")
	if err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	defer os.Remove(trash)
	err = os.Rename(r.path, filepath.Join(trash, "folder"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	os.Remove(filepath.Dir(r.path)) // the owner's folder, if it was the last one in it
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	return nil
}

// Sweep removes what killed processes left in the repository: packs in quarantine, which no reader
// sees, and lock files, which would keep references from changing for ever. What is younger than
// any living process could have made it is left alone.
func (r *Repo) Sweep() error {
	now := time.Now()
	if err := r.mayWrite(context.Background()); err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	left, err := r.quarantines()
	for _, folder := range left {
		if olderThan(folder, now, staleFolder) {
			err = errors.Join(err, os.RemoveAll(r.in("objects", folder.Name())))
		}
	}
	err = errors.Join(err, r.sweepLocks(now))
	for _, folder := range []string{r.path, r.in(waitingFolder)} {
		err = errors.Join(err, sweepSmall(folder, now))
	}
	if err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	return nil
}

// SweepPushes removes what a receive-pack that was killed left in quarantine. Only who has the lock
// of the repository may call it.
func (r *Repo) SweepPushes() error {
	if err := r.mayWrite(context.Background()); err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	left, err := r.quarantines()
	for _, folder := range left {
		if strings.HasPrefix(folder.Name(), pushPrefix) {
			err = errors.Join(err, os.RemoveAll(r.in("objects", folder.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	return nil
}

// HasLeftPushes reports whether there is a push in quarantine, under way or left behind.
func (r *Repo) HasLeftPushes() (bool, error) {
	left, err := r.quarantines()
	if err != nil {
		return false, fmt.Errorf("look for pushes that were killed: %w", err)
	}
	return slices.ContainsFunc(left, func(folder fs.DirEntry) bool { return strings.HasPrefix(folder.Name(), pushPrefix) }), nil
}

// quarantines are the folders below objects/ that hold packs until these are checked.
func (r *Repo) quarantines() ([]fs.DirEntry, error) {
	folders, err := readDir(r.in("objects"))
	return slices.DeleteFunc(folders, func(folder fs.DirEntry) bool {
		return !strings.HasPrefix(folder.Name(), quarantinePrefix)
	}), err
}

func (r *Repo) sweepLocks(now time.Time) error {
	for _, name := range []string{"HEAD.lock", "packed-refs.lock", "packed-refs.new", "config.lock", "shallow.lock"} {
		if info, err := os.Lstat(r.in(name)); err == nil && now.Sub(info.ModTime()) > staleLock {
			if err := removeFile(r.in(name)); err != nil {
				return err
			}
		}
	}
	return filepath.WalkDir(r.in("refs"), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // gone while we walked
		case err != nil:
			return err
		case entry.Type().IsRegular() && strings.HasSuffix(path, ".lock") && olderThan(entry, now, staleLock):
			return removeFile(path)
		}
		return nil
	})
}

// sweepSmall removes small files of a folder that were being written when a process was killed.
func sweepSmall(folder string, now time.Time) error {
	files, err := readDir(folder)
	for _, file := range files {
		if strings.HasPrefix(file.Name(), smallPrefix) && olderThan(file, now, staleLock) {
			err = errors.Join(err, removeFile(filepath.Join(folder, file.Name())))
		}
	}
	return err
}

// sweepRoot removes temporary folders of repositories that were being made or removed when a
// process was killed.
func (s *Store) sweepRoot() {
	now := time.Now()
	for _, folder := range []string{newFolder, trashFolder} {
		entries, err := os.ReadDir(filepath.Join(s.root, folder))
		if err != nil {
			s.log.Warn("could not look for leftovers", "folder", folder, "error", err)
			continue
		}
		for _, entry := range entries {
			if folder == newFolder && !olderThan(entry, now, staleFolder) {
				continue // another process may be making it
			}
			if err := os.RemoveAll(filepath.Join(s.root, folder, entry.Name())); err != nil {
				s.log.Warn("could not remove a leftover", "folder", folder, "name", entry.Name(), "error", err)
			}
		}
	}
}

func olderThan(entry fs.DirEntry, now time.Time, age time.Duration) bool {
	info, err := entry.Info()
	return err == nil && now.Sub(info.ModTime()) > age
}

// readDir lists a folder. One that is not there is empty.
func readDir(folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// smallPrefix begins the names of small files that are being written.
const smallPrefix = ".tmp-small-"

// writeDurably replaces a small file, at once and on the disk.
func writeDurably(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), smallPrefix)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, removeFile(f.Name()))
	}
	return syncPath(filepath.Dir(path))
}

func syncFolders(paths ...string) error {
	for _, path := range paths {
		if err := syncPath(path); err != nil {
			return err
		}
	}
	return nil
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // a file system that cannot do it for folders
	}
	return errors.Join(err, f.Close())
}
