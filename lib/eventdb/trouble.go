package eventdb

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// When files cannot be written, most often because the disk is full, Pebble tries again without end
// and tells nobody. What is in memory is answered from meanwhile, but once that is full the index
// takes no more records: [DB.Apply] blocks until there is room.

// trouble remembers why files cannot be written. Pebble's own goroutines tell it.
type trouble struct {
	log               *slog.Logger
	mu                sync.Mutex // guards what follows
	flush, compaction error      // the last try of each failed so; nil: it did not
	told              string     // what the log was told last about the trouble that there is
	begun             chan struct{}
}

func newTrouble(log *slog.Logger) *trouble { return &trouble{log: log, begun: make(chan struct{})} }

// nothingToFlush is what Pebble says of a flush that had nothing to write. It has no name for it
// that others could use.
const nothingToFlush = "pebble: empty table"

// flushed and compacted are told how a try ended.

func (t *trouble) flushed(err error) {
	if err != nil && err.Error() == nothingToFlush {
		return
	}
	t.note(&t.flush, "write out what is in memory", err)
}

func (t *trouble) compacted(err error) {
	if errors.Is(err, pebble.ErrCancelledCompaction) {
		return
	}
	t.note(&t.compaction, "merge files", err)
}

// note keeps the outcome of a try. The log hears of each kind of failure once, because Pebble tries
// again at once, and of the end of all.
func (t *trouble) note(last *error, doing string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.now()
	if *last = nil; err != nil {
		*last = fmt.Errorf("%s: %w", doing, err)
	}
	switch after := t.now(); {
	case before == nil && after != nil:
		close(t.begun)
	case before != nil && after == nil:
		t.begun, t.told = make(chan struct{}), ""
		t.log.Info("files of the event index can be written again")
	}
	if err == nil {
		return
	}
	if kind := doing + ": " + cause(err).Error(); kind != t.told {
		t.told = kind
		t.log.Warn("files of the event index cannot be written; it will be tried again", "error", *last)
	}
}

// now is the trouble that there is. That of a flush is the worse one.
func (t *trouble) now() error {
	if t.flush != nil {
		return t.flush
	}
	return t.compaction
}

// raised is closed as soon as there is trouble.
func (t *trouble) raised() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.begun
}

// trialBytes is more than Pebble writes before it is open.
const trialBytes = 64 << 10

// tryWriting finds out whether files can be written at all. A full disk that Pebble runs into while
// it is being opened would end the process.
func tryWriting(fs vfs.FS, dir string) (err error) {
	name := fs.PathJoin(dir, "TRIAL")
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, trialBytes))
	if err = errors.Join(err, f.Sync(), f.Close(), fs.Remove(name)); err != nil {
		return fmt.Errorf("try to write: %w", err)
	}
	return nil
}

// cause is what an error comes down to: without the names of files, which differ from try to try.
func cause(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// Troubled says why files of the index cannot be written now; nil: they can be, as far as is known.
// It is tried again without end. Meanwhile queries are answered, but [DB.Apply] may block.
func (db *DB) Troubled() error {
	db.trouble.mu.Lock()
	defer db.trouble.mu.Unlock()
	return db.trouble.now()
}
