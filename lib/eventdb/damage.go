package eventdb

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// The index is a projection of the log, so files of it that are damaged are thrown away and made
// anew. That happens when it is opened: either they cannot be opened, or damage was found while it
// was last in use, and a mark says so.

const damageMark, lockFile = "DAMAGED", "LOCK"

// maxMark bounds what is read of the mark, in bytes.
const maxMark = 4 << 10

// damage is where it is told that files are damaged. Pebble's own goroutines tell it, too.
type damage struct {
	dir   string
	fs    vfs.FS
	first sync.Once
	found chan error // the first that was found
}

func newDamage(dir string, fs vfs.FS) *damage {
	return &damage{dir: dir, fs: fs, found: make(chan error, 1)}
}

// tell leaves the mark before anybody hears of the damage and ends the process.
func (d *damage) tell(err error) {
	d.first.Do(func() { d.found <- errors.Join(err, d.mark(err.Error())) })
}

func (d *damage) mark(why string) error {
	f, err := d.fs.Create(d.fs.PathJoin(d.dir, damageMark), vfs.WriteCategoryUnspecified)
	if err != nil {
		return fmt.Errorf("mark the index as damaged: %w", err)
	}
	_, err = io.WriteString(f, why)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("mark the index as damaged: %w", err)
	}
	return nil
}

// marked returns what the mark says; nil if there is none.
func (d *damage) marked() error {
	f, err := d.fs.Open(d.fs.PathJoin(d.dir, damageMark))
	if err != nil {
		return nil
	}
	defer f.Close()
	why, err := io.ReadAll(io.LimitReader(f, maxMark))
	if err != nil || len(why) == 0 {
		return errors.New("damage was found while it was in use")
	}
	return errors.New(string(why))
}

// clear removes the files. The lock stays, and the mark goes last: whoever is interrupted begins
// again.
func (d *damage) clear() error {
	if err := d.clearBut(); err != nil {
		return err
	}
	return d.unmark()
}

// clearBut removes the files but the lock, the mark, and those of these names.
func (d *damage) clearBut(keep ...string) error {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return fmt.Errorf("clear the damaged index: %w", err)
	}
	for _, name := range names {
		if name == lockFile || name == damageMark || slices.Contains(keep, name) {
			continue
		}
		if err := d.fs.RemoveAll(d.fs.PathJoin(d.dir, name)); err != nil {
			return fmt.Errorf("clear the damaged index: %w", err)
		}
	}
	return nil
}

// unmark removes the mark, if there is one.
func (d *damage) unmark() error {
	if d.marked() == nil {
		return nil
	}
	if err := d.fs.Remove(d.fs.PathJoin(d.dir, damageMark)); err != nil {
		return fmt.Errorf("clear the damaged index: %w", err)
	}
	return nil
}

// isDamage tells files that are not what they should be from a system that does not let us at them,
// which throwing them away would not mend.
func isDamage(err error) bool {
	var system syscall.Errno
	return err != nil && (pebble.IsCorruptionError(err) || !errors.As(err, &system) || system == syscall.ENOENT)
}

// Damaged returns an error when files of the index turn out to be damaged. What is answered from
// then on may be wrong or missing; closed and opened again, the index begins anew.
func (db *DB) Damaged() <-chan error { return db.damage.found }

// Remade says why the index was begun anew when it was opened; nil: it was not.
func (db *DB) Remade() error { return db.remade }
