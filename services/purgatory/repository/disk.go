package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// staleFolder is the age of a temporary folder or pack that no living process can own: no push or
	// fetch lasts that long.
	staleFolder = 24 * time.Hour
	// staleFile is the same for a small file, and for a lock of git where the file system cannot tell
	// whether that lives: a transaction of references takes seconds.
	staleFile = time.Minute

	// newConfig is the configuration of a new repository. What rules git comes by its environment.
	newConfig = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"

	// smallPrefix begins the names of small files that are being written.
	smallPrefix = ".tmp-small-"
)

// Exists reports whether the repository is on disk.
func (r *Repo) Exists() bool {
	info, err := os.Stat(r.Path)
	return err == nil && info.IsDir()
}

// Ensure makes the bare repository if it is not there: HEAD, config and the two folders by which
// git knows it, and the mark of one that is not proven. It appears whole or not at all, many may ask
// at once, and asking again changes nothing.
func (l *Locked) Ensure(ctx context.Context) error {
	if err := l.ensure(ctx, l.MayWrite); err != nil {
		return err
	}
	return l.own()
}

func (r *Repo) ensure(ctx context.Context, mayWrite func(context.Context) error) (err error) {
	if r.Exists() {
		return nil
	}
	defer doing("make the repository", &err)
	temporary, err := os.MkdirTemp(filepath.Join(r.Store.Root, newFolder), "init-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	for _, folder := range []string{"objects", "refs"} {
		err = errors.Join(err, os.Mkdir(filepath.Join(temporary, folder), 0o755))
	}
	err = errors.Join(err, os.Chmod(temporary, 0o755),
		writeDurably(filepath.Join(temporary, "config"), newConfig),
		writeDurably(filepath.Join(temporary, "HEAD"), symbolicPrefix+r.Store.branch+"\n"),
		writeDurably(filepath.Join(temporary, unprovenFile), "true\n"),
		mayWrite(ctx))
	if err != nil {
		return err
	}
	owner := filepath.Dir(r.Path)
	for range 10 { // the owner's last repository may be removed meanwhile, and the owner's folder with it
		if err = os.MkdirAll(owner, 0o755); err == nil {
			err = os.Rename(temporary, r.Path)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil && r.Exists() {
		return nil // another was first
	}
	return cmp.Or(err, syncPaths(owner, filepath.Dir(owner), r.Store.Root))
}

// Remove takes the repository away: out of sight at once, then off the disk. One that is not there
// is no error.
func (l *Locked) Remove(ctx context.Context) (err error) {
	defer doing("remove the repository", &err)
	if err := l.MayWrite(ctx); err != nil {
		return err
	}
	trash, err := os.MkdirTemp(filepath.Join(l.Store.Root, trashFolder), "repository-")
	if err != nil {
		return err
	}
	if err := os.Rename(l.Path, filepath.Join(trash, "folder")); err != nil {
		return errors.Join(ignoreGone(err), os.Remove(trash))
	}
	l.close()
	os.Remove(filepath.Dir(l.Path)) // the owner's folder, if it was the last one in it
	return os.RemoveAll(trash)
}

// Sweep removes what killed processes left in the repository: packs in quarantine or unfinished,
// which no reader sees, and lock files, which would keep references from changing for ever. A push
// in quarantine and a lock are left over at any age: the caller is the only writer. What a fetch
// could have made that runs beside it is left alone.
func (l *Locked) Sweep() (err error) {
	defer doing("remove what killed processes left", &err)
	err = l.MayWrite(context.Background())
	for _, folder := range []string{".", "objects", "objects/pack"} {
		if err == nil {
			err = l.sweepFolder(folder, staleFolder)
		}
	}
	if err != nil {
		return err
	}
	return filepath.WalkDir(l.in("refs"), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".lock") && olderThan(entry, l.lockAge()) {
			err = os.Remove(path)
		}
		return ignoreGone(err)
	})
}

// lockAge is the age from which a lock of references was left by a git that was killed.
func (l *Locked) lockAge() time.Duration {
	if l.alone {
		return 0
	}
	return staleFile
}

// sweepFolder does that for one folder. What git did not finish must be of this age.
func (l *Locked) sweepFolder(folder string, unfinished time.Duration) error {
	entries, err := readDir(l.in(folder))
	for _, entry := range entries {
		name, age := entry.Name(), staleFile
		switch {
		case strings.HasPrefix(name, pushPrefix):
			age = 0
		case strings.HasPrefix(name, smallPrefix):
		case strings.HasSuffix(name, ".lock"):
			age = l.lockAge()
		case strings.HasPrefix(name, "tmp_"), strings.HasPrefix(name, ".tmp-"):
			age = unfinished
		default:
			continue
		}
		if olderThan(entry, age) {
			err = errors.Join(err, os.RemoveAll(l.in(folder, name)))
		}
	}
	return err
}

// sweep removes temporary folders of repositories that were being made or removed when a process
// was killed.
func (s *Store) sweep() {
	for folder, age := range map[string]time.Duration{newFolder: staleFolder, trashFolder: 0} {
		entries, err := os.ReadDir(filepath.Join(s.Root, folder))
		for _, entry := range entries {
			if olderThan(entry, age) {
				err = errors.Join(err, os.RemoveAll(filepath.Join(s.Root, folder, entry.Name())))
			}
		}
		if err != nil {
			s.Log.Warn("what killed processes left could not be removed", "folder", folder, "error", err)
		}
	}
}

func olderThan(entry fs.DirEntry, age time.Duration) bool {
	info, err := entry.Info()
	return err == nil && time.Since(info.ModTime()) > age
}

// readDir lists a folder. One that is not there is empty.
func readDir(folder string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(folder)
	return entries, ignoreGone(err)
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// doing says of an error what was being done.
func doing(what string, err *error) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", what, *err)
	}
}

// writeDurably replaces a small file, at once and on the disk.
func writeDurably(path, content string) error {
	f, err := os.CreateTemp(filepath.Dir(path), smallPrefix)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	err = errors.Join(err, f.Chmod(0o644), fsync(f), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncPaths(filepath.Dir(path))
}

// fsync puts a file, or the names in a folder, to the disk. The tests of this package watch it.
var fsync = (*os.File).Sync

// syncPaths puts files, or the names in folders, to the disk.
func syncPaths(paths ...string) error {
	for _, path := range paths {
		f, err := os.Open(path)
		if err == nil {
			err = fsync(f)
			if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
				err = nil // a file system that cannot do it for folders
			}
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("put %s to the disk: %w", filepath.Base(path), err)
		}
	}
	return nil
}
