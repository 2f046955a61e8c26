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
	// staleFolder is the age at which a temporary folder belongs to nobody: no push or fetch lasts
	// that long.
	staleFolder = 24 * time.Hour
	// staleLock is the age at which a lock file belongs to nobody: a transaction of references
	// takes seconds. Until then a push fails that meets the lock of a git that was killed.
	staleLock = time.Minute
)

// Exists reports whether the repository is on disk.
func (r *Repo) Exists() bool {
	info, err := os.Stat(r.path)
	return err == nil && info.IsDir()
}

// Ensure makes the bare repository if it is not there, and lets it borrow from the pool of its
// identifier. It appears whole or not at all, many may ask at once, and asking again changes
// nothing, but sweeps up what killed processes left in it.
func (r *Repo) Ensure(ctx context.Context) error {
	if r.Exists() {
		if err := r.borrow(ctx); err != nil {
			return err
		}
		return r.Sweep()
	}
	pool := r.Pool()
	if err := pool.ensure(ctx); err != nil {
		return err
	}
	return r.make(ctx, false, map[string]string{filepath.Join("objects", "info", alternatesFile): r.alternate()})
}

// make makes a bare repository with more files in it. It appears whole where it belongs. lean is as
// in skeleton.write.
func (r *Repo) make(ctx context.Context, lean bool, more map[string]string) error {
	temporary, err := os.MkdirTemp(filepath.Join(r.store.root, newFolder), "init-")
	if err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	defer os.RemoveAll(temporary)
	if err := os.Chmod(temporary, 0o755); err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	bones, err := r.store.skeleton(ctx)
	if err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	if err := bones.write(temporary, lean, more); err != nil {
		return fmt.Errorf("make repository: %w", err)
	}
	for {
		if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
			return fmt.Errorf("make repository: %w", err)
		}
		err := os.Rename(temporary, r.path)
		switch {
		case err == nil:
			if err := syncFolders(r.above()...); err != nil {
				return fmt.Errorf("make repository: %w", err)
			}
			return nil
		case r.Exists():
			return nil // another was first
		case errors.Is(err, fs.ErrNotExist) && ctx.Err() == nil:
			continue // the owner's last repository was removed in between, and the owner's folder with it
		}
		return fmt.Errorf("make repository: %w", err)
	}
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
// is no error. Its pool is marked before: others may be using it, or nobody any more. Of one whose
// references cannot be read, anything in the pool may have been its own.
func (r *Repo) Remove(ctx context.Context) error {
	if !r.Exists() {
		return nil
	}
	leaving, err := r.Named(ctx, nil)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("remove repository: %w", err)
	case err != nil:
		r.store.log.Warn("a repository that is removed cannot be read", "repository", r.Place(), "error", err)
		leaving = []string{everything}
	}
	if err := r.Pool().mark(append(leaving, ownObjects)); err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	if err := r.discard("repository-"); err != nil {
		return fmt.Errorf("remove repository: %w", err)
	}
	return nil
}

// discard moves the folder to the trash, and empties that. One that is not there is no error.
func (r *Repo) discard(name string) error {
	trash, err := os.MkdirTemp(filepath.Join(r.store.root, trashFolder), name)
	if err != nil {
		return err
	}
	defer os.Remove(trash)
	err = os.Rename(r.path, filepath.Join(trash, "folder"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	os.Remove(filepath.Dir(r.path)) // the owner's folder, if it was the last one in it
	return os.RemoveAll(trash)
}

// Sweep removes what killed processes left in the repository: packs in quarantine, which nobody can
// see, and lock files, which would keep references from changing for ever. What is younger than any
// living process could have made it is left alone.
func (r *Repo) Sweep() error {
	now := time.Now()
	folders, err := os.ReadDir(r.in("objects"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it has just been removed
	}
	if err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	for _, folder := range folders {
		if strings.HasPrefix(folder.Name(), quarantinePrefix) && olderThan(folder, now, staleFolder) {
			if err := os.RemoveAll(r.in("objects", folder.Name())); err != nil {
				return fmt.Errorf("sweep repository: %w", err)
			}
		}
	}
	if err := r.removeUnfinished(func(file fs.DirEntry) bool { return olderThan(file, now, staleFolder) }); err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	if err := errors.Join(r.sweepLocks(now), r.sweepSmall(now)); err != nil {
		return fmt.Errorf("sweep repository: %w", err)
	}
	return nil
}

// sweepSmall removes small files that were being written when a process was killed.
func (r *Repo) sweepSmall(now time.Time) error {
	for _, folder := range []string{r.path, r.in(waitingFolder), r.in("objects", "info")} {
		files, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, file := range files {
			if strings.HasPrefix(file.Name(), smallPrefix) && olderThan(file, now, staleLock) {
				if err := removeFile(filepath.Join(folder, file.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// removeUnfinished removes those packs that nobody will finish any more: pack-objects and
// index-pack give files that they write names that begin with "tmp_", repack with ".tmp-". One that
// is finished but has no index stays, though git does not see it: its index may be what was lost,
// and a pack can be indexed again.
func (r *Repo) removeUnfinished(abandoned func(fs.DirEntry) bool) error {
	files, err := os.ReadDir(r.in("objects", "pack"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, file := range files {
		unfinished := strings.HasPrefix(file.Name(), "tmp_") || strings.HasPrefix(file.Name(), ".tmp-")
		if unfinished && abandoned(file) {
			if err := removeFile(r.in("objects", "pack", file.Name())); err != nil {
				return err
			}
		}
	}
	return nil
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
				continue // somebody may be making it
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

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncTree brings every file and folder of a small tree to the disk.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return syncPath(path)
	})
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
