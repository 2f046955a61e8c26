package eventdb

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/cockroachdb/pebble/v2"
)

// newCache is the block cache. Pebble takes the memory of what is gathered off it, which would
// leave none of it to a busy index, so that is added.
func newCache(o options) *pebble.Cache { return pebble.NewCache(o.cacheBytes + 2*int64(o.memTable)) }

// tuned is how Pebble keeps the index. Most of what applying an event costs is Pebble's flushing
// and merging of files, so all of this is about doing that less often and in larger pieces.
// Benchmarks decide (bench_test.go), what is merged later included.
func (db *DB) tuned(o options) *pebble.Options {
	po := &pebble.Options{
		FS:    o.fs,
		Cache: db.cache,
		Lock:  db.lock,
		EventListener: &pebble.EventListener{
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				db.fail(fmt.Errorf("%s: %w", info.Path, info.Details), true)
			},
			BackgroundError: func(err error) {
				// A flush that had nothing to write fails so; Pebble has no name for it.
				if err.Error() != "pebble: empty table" {
					db.fail(err, pebble.IsCorruptionError(err))
				}
			},
		},
		DisableWAL:         true,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             pebbleLog{db, o.log},
		// One is filled while the last one is written out, so twice this is the most memory that
		// they take.
		MemTableSize: o.memTable,
		// More files are merged at once, so that each entry is merged fewer times; a query
		// meanwhile looks into twice as many as by default.
		L0CompactionThreshold: 8,
		// The index is not synced write by write, and a large file need not be either.
		BytesPerSync: 8 << 20,
	}
	for i := range po.Levels {
		// What is read is mostly read in order, and each block costs a system call whenever files
		// are merged.
		po.Levels[i].BlockSize = 32 << 10
	}
	return po
}

// pebbleLog passes over Pebble's notes on flushes and compactions. What fails comes back as an
// error, or ends the process.
type pebbleLog struct {
	db  *DB
	log *slog.Logger
}

func (pebbleLog) Infof(string, ...any)  {}
func (pebbleLog) Errorf(string, ...any) {}

func (l pebbleLog) Fatalf(format string, args ...any) {
	l.log.Error(l.db.unwritable(), "error", fmt.Sprintf(format, args...))
	os.Exit(1)
}
