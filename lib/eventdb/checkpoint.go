package eventdb

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A copy of the index travels as files: one process makes a checkpoint of its own, another adopts
// the files in place of its own. Folders of both are below that of the index, so that files can be
// linked and renamed, and only who holds its lock touches them. When the index is opened, what a
// process that died left there is removed.

const (
	givenPrefix = "given-" // and a random part: a checkpoint that is being read
	takenFolder = "taken"  // files of a copy that is being gathered
)

// adopting is what the mark of damage says while files are exchanged: an index that is found so is
// neither the old one nor the copy.
const adopting = "the process died while it put a copy of the index in the place of its own"

// ErrNoFolder: the index is in memory, and has no files.
var ErrNoFolder = errors.New("the index is in memory")

// Format is the version in which the index's files are written. Files of another version are not
// adopted.
const Format = uint64(pebble.FormatNewest)

// Checkpoint makes a folder with the files of the index as it is now, and gives its path. It holds
// at least what was applied before the call. Tables are linked, not copied; as long as the folder
// is there the disk keeps them. Who asked for it removes it, with [DB.RemoveCheckpoint].
func (db *DB) Checkpoint() (dir string, err error) {
	if db.dir == "" {
		return "", ErrNoFolder
	}
	if !db.enter() {
		return "", ErrClosed
	}
	defer func() { err = errors.Join(err, db.leave()) }()
	if err := db.flush(); err != nil {
		return "", fmt.Errorf("write out the index: %w", err)
	}
	dir = db.fs.PathJoin(db.dir, givenPrefix+rand.Text())
	if err := db.pebble.Checkpoint(dir); err != nil {
		return "", fmt.Errorf("make a checkpoint of the index: %w", err)
	}
	return dir, nil
}

// RemoveCheckpoint removes a folder that [DB.Checkpoint] gave.
func (db *DB) RemoveCheckpoint(dir string) error {
	if !strings.HasPrefix(db.fs.PathBase(dir), givenPrefix) || db.fs.PathDir(dir) != db.fs.PathDir(db.fs.PathJoin(db.dir, givenPrefix)) {
		return fmt.Errorf("%q is no checkpoint of this index", dir)
	}
	if err := db.fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove a checkpoint of the index: %w", err)
	}
	return nil
}

// Gather makes an empty folder for the files of a copy, which [DB.Adopt] then takes from there.
// Each file must be synced. What was gathered before is removed.
func (db *DB) Gather() (dir string, err error) {
	if db.dir == "" {
		return "", ErrNoFolder
	}
	dir = db.fs.PathJoin(db.dir, takenFolder)
	if err := errors.Join(db.fs.RemoveAll(dir), db.fs.MkdirAll(dir, 0o700)); err != nil {
		return "", fmt.Errorf("make a folder for a copy of the index: %w", err)
	}
	return dir, nil
}

// Discard removes what was gathered and is not wanted.
func (db *DB) Discard() error {
	if db.dir == "" {
		return nil
	}
	if err := db.fs.RemoveAll(db.fs.PathJoin(db.dir, takenFolder)); err != nil {
		return fmt.Errorf("remove a copy of the index: %w", err)
	}
	return nil
}

// Free is how many bytes the index's disk has free for us.
func (db *DB) Free() (uint64, error) {
	if db.dir == "" {
		return 0, ErrNoFolder
	}
	usage, err := db.fs.GetDiskUsage(db.dir)
	if err != nil {
		return 0, fmt.Errorf("look for room for the index: %w", err)
	}
	return usage.AvailBytes, nil
}

// Log names the log that the index is bound to, and how it is laid out; empty: no log yet. Indexes
// of which it is the same may be copied from one process to the other.
func (db *DB) Log() (string, error) { return db.logIdentity() }

// ErrNotAdopted is wrapped by errors of [DB.Adopt] after which the index can be used: it is empty,
// or as it was, and is made from the log.
var ErrNotAdopted = errors.New("the copy of the index cannot be used")

// Adopt puts the files of [DB.Gather]'s folder in the place of the index's own. They must be of the
// log that the index is bound to now, and hold it up to a sequence from atLeast to atMost. If they
// are not, or cannot be opened, the index is empty afterwards, and the error wraps [ErrNotAdopted];
// after any other error it is closed. Call it before the index is used: subscribers are not told,
// and it is refused while a view is open.
func (db *DB) Adopt(atLeast, atMost uint64) error {
	bound, err := db.logIdentity()
	if err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if err := db.pause(); err != nil {
		return err
	}
	err = db.exchange(bound, atLeast, atMost)
	if err != nil {
		// Whatever it was, the log has everything.
		if cleared := db.beginAnew(bound); cleared != nil {
			db.cache.Unref()
			return errors.Join(err, cleared, db.lock.Close())
		}
		err = fmt.Errorf("%w: %w", ErrNotAdopted, err)
	}
	db.fed.Store(0)
	db.stateMu.Lock()
	defer db.stateMu.Unlock()
	db.closed = false
	close(db.moved)
	db.moved = make(chan struct{})
	return err
}

// pause makes the index refuse everything, and closes its files, if nobody reads in it.
func (db *DB) pause() error {
	db.stateMu.Lock()
	var err error
	switch {
	case db.closed:
		err = ErrClosed
	case db.dir == "":
		err = ErrNoFolder
	case db.views > 0:
		err = fmt.Errorf("%w: somebody reads in the one that is there", ErrNotAdopted)
	}
	db.closed = db.closed || err == nil
	db.stateMu.Unlock()
	if err == nil {
		_ = db.pebble.Close() // what it says of files that go now is no news
	}
	return err
}

// exchange opens the gathered files as the index's own. The mark is there from before the first of
// the old files goes until the new ones are known to be right.
func (db *DB) exchange(bound string, atLeast, atMost uint64) error {
	if err := db.damage.mark(adopting); err != nil {
		return err
	}
	taken := db.fs.PathJoin(db.dir, takenFolder)
	if err := errors.Join(syncFolder(db.fs, taken), syncFolder(db.fs, db.dir)); err != nil {
		return err
	}
	if err := db.damage.clearBut(takenFolder); err != nil {
		return err
	}
	names, err := db.fs.List(taken)
	if err != nil {
		return fmt.Errorf("look at the copy of the index: %w", err)
	}
	slices.Sort(names)
	for _, name := range names {
		if name == lockFile || name == damageMark {
			return fmt.Errorf("the copy of the index has a file named %s", name)
		}
		if err := db.fs.Rename(db.fs.PathJoin(taken, name), db.fs.PathJoin(db.dir, name)); err != nil {
			return fmt.Errorf("take a file of the copy of the index: %w", err)
		}
	}
	if err := errors.Join(db.fs.RemoveAll(taken), syncFolder(db.fs, db.dir)); err != nil {
		return err
	}
	if err := db.openFiles(db.dir, db.options, db.lock); err != nil {
		return err
	}
	if err := db.isOf(bound, atLeast, atMost); err != nil {
		_ = db.pebble.Close()
		return err
	}
	if err := errors.Join(db.damage.unmark(), syncFolder(db.fs, db.dir)); err != nil {
		_ = db.pebble.Close()
		return err
	}
	return nil
}

// isOf checks whose copy the open files are.
func (db *DB) isOf(bound string, atLeast, atMost uint64) error {
	is, err := readLogIdentity(db.pebble)
	switch {
	case err != nil:
		return err
	case is != bound:
		return fmt.Errorf("it is of another log: %q, want %q", is, bound)
	case db.seq < atLeast || db.seq > atMost:
		return fmt.Errorf("it holds the log up to %d, want %d to %d", db.seq, atLeast, atMost)
	}
	return nil
}

// beginAnew makes an empty index, bound to a log, in the place of files that are closed.
func (db *DB) beginAnew(bound string) error {
	db.damage = newDamage(db.dir, db.fs) // what was told about the copy's files is past
	if err := db.damage.clear(); err != nil {
		return err
	}
	if err := db.openFiles(db.dir, db.options, db.lock); err != nil {
		return fmt.Errorf("begin the index anew: %w", err)
	}
	if bound == "" {
		return nil
	}
	if err := db.pebble.Set(metaLog, []byte(bound), pebble.NoSync); err != nil {
		return errors.Join(fmt.Errorf("begin the index anew: %w", err), db.pebble.Close())
	}
	return nil
}

// sweepCopies removes what a process that died left of copies.
func sweepCopies(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != takenFolder && !strings.HasPrefix(name, givenPrefix) {
			continue
		}
		if err := fs.RemoveAll(fs.PathJoin(dir, name)); err != nil {
			return fmt.Errorf("remove what is left of a copy: %w", err)
		}
	}
	return nil
}

// syncFolder makes it last which files a folder has.
func syncFolder(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
