package eventdb

import "github.com/cockroachdb/pebble/v2"

// Checkpoint copies the index into a folder that must not exist, as it is now.
func (db *DB) Checkpoint(dir string) error {
	if err := db.pebble.Flush(); err != nil {
		return err
	}
	return db.pebble.Checkpoint(dir, pebble.WithFlushedWAL())
}
