package eventdb

import (
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// WithMemTable sets how many bytes are gathered in memory before they are written out.
func WithMemTable(bytes uint64) Option { return func(o *options) { o.memTable = bytes } }

// Checkpoint copies the index into a folder that must not exist, as it is now.
func (db *DB) Checkpoint(dir string) error {
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
