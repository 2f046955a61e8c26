package eventdb

import (
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// On sets the file system, and how many bytes are gathered in memory before they are written out.
func (o Options) On(files vfs.FS, memTable uint64) Options {
	o.files, o.memTable = files, memTable
	return o
}

// CheckpointTo copies the index into a folder that must not exist, as it is now.
func (db *DB) CheckpointTo(dir string) error {
	if err := db.pebble.Flush(); err != nil {
		return err
	}
	return db.pebble.Checkpoint(dir, pebble.WithFlushedWAL())
}

// Settle writes out what is in memory and waits until no compaction is running.
func (db *DB) Settle() error {
	if err := db.pebble.Flush(); err != nil {
		return err
	}
	// One may begin a moment after another ended.
	for idle := 0; idle < 3; idle++ {
		if m := db.pebble.Metrics(); m.Compact.NumInProgress+m.Flush.NumInProgress > 0 {
			idle = -1
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// Spoil replaces the value of the first entry of a table, or removes the entry, behind the index's
// back, until restore is called.
func (db *DB) Spoil(table byte, value []byte) (restore func()) {
	it, err := db.pebble.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		panic(err)
	}
	if !it.First() {
		panic(fmt.Sprintf("table %c is empty", table))
	}
	full, was := slices.Clone(it.Key()), slices.Clone(it.Value())
	if err := it.Close(); err != nil {
		panic(err)
	}
	set := func(value []byte) {
		if value == nil {
			err = db.pebble.Delete(full, pebble.NoSync)
		} else {
			err = db.pebble.Set(full, value, pebble.NoSync)
		}
		if err != nil {
			panic(err)
		}
	}
	set(value)
	return func() { set(append([]byte{}, was...)) }
}
