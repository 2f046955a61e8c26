package eventdb

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// newCache is the block cache. Pebble takes the memory of what is gathered off it, which would
// leave none of it to a busy index, so that is added.
func newCache(o options) *pebble.Cache { return pebble.NewCache(o.cacheBytes + 2*int64(o.memTable)) }

// tuned is how Pebble keeps the index. Most of what applying an event costs is Pebble's flushing
// and merging of files, so all of this is about doing that less often and in larger pieces.
// Benchmarks decide (bench_test.go), what is merged later included.
func tuned(o options, cache *pebble.Cache, lock *pebble.Lock, damage *damage, trouble *trouble) *pebble.Options {
	po := &pebble.Options{
		FS:    o.fs,
		Cache: cache,
		Lock:  lock,
		EventListener: &pebble.EventListener{
			DataCorruption: func(info pebble.DataCorruptionInfo) {
				damage.tell(fmt.Errorf("%s: %w", info.Path, info.Details))
			},
			FlushEnd:      func(info pebble.FlushInfo) { trouble.flushed(info.Err) },
			CompactionEnd: func(info pebble.CompactionInfo) { trouble.compacted(info.Err) },
		},
		DisableWAL:         true,
		FormatMajorVersion: pebble.FormatNewest,
		Logger:             quiet{},
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
		level := &po.Levels[i]
		// What is read is mostly read in order, and each block costs a system call whenever files
		// are merged.
		level.BlockSize = 32 << 10
		level.FilterPolicy = lookUps{bloom.FilterPolicy(10)}
	}
	return po
}

// lookUps is a filter of the keys that are looked up without being known to exist: an unknown id
// then costs no block. Postings, which are nine of ten keys, are only ever walked, and events are
// only looked up if something names them: a filter of these would be asked nothing.
type lookUps struct{ pebble.FilterPolicy }

func (l lookUps) Name() string { return "eventdb.look-ups." + l.FilterPolicy.Name() }

func (l lookUps) MayContain(t pebble.FilterType, filter, key []byte) bool {
	return !isSieved(key) || l.FilterPolicy.MayContain(t, filter, key)
}

func (l lookUps) NewWriter(t pebble.FilterType) pebble.FilterWriter {
	return lookUpsWriter{l.FilterPolicy.NewWriter(t)}
}

type lookUpsWriter struct{ pebble.FilterWriter }

func (w lookUpsWriter) AddKey(key []byte) {
	if isSieved(key) {
		w.FilterWriter.AddKey(key)
	}
}

// quiet: Pebble's notes on flushes and compactions are nobody's news. What fails comes back as an
// error.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf("pebble: "+format, args...)) }
