package eventdb

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/reconcile"
)

// WithMemTable sets how many bytes are gathered in memory before they are written out.
func WithMemTable(bytes uint64) Option { return func(o *options) { o.memTable = bytes } }

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

// CheckSums compares the kept sums with those that are made anew from the index.
func (db *DB) CheckSums() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	kept := db.sums.Load()
	anew, err := readSums(db.pebble)
	if err != nil {
		return err
	}
	if len(kept.kinds) != len(anew.kinds) {
		return fmt.Errorf("sums of %d kinds, want %d", len(kept.kinds), len(anew.kinds))
	}
	err = sameBlocks(kept.all, anew.all)
	for kind, b := range anew.kinds {
		if kept.kinds[kind] == nil {
			return fmt.Errorf("no sums of kind %d", kind)
		}
		err = errors.Join(err, sameBlocks(kept.kinds[kind], b))
	}
	return err
}

func sameBlocks(kept, anew *blocks) error {
	count := func(b *blocks) (total reconcile.Sum, err error) {
		for n, block := range b.list {
			total.Plus(block.sum)
			if block.sum.Count > blockLen || n > 0 && block.from.Compare(b.list[n-1].from) <= 0 {
				err = fmt.Errorf("block %d of %d begins at %v and has %d events", n, len(b.list), block.from, block.sum.Count)
			}
		}
		return total, err
	}
	a, bad := count(kept)
	b, worse := count(anew)
	if a != b || 8*len(anew.list) < len(kept.list) {
		return fmt.Errorf("%d events in %d blocks, want %d in about %d", a.Count, len(kept.list), b.Count, len(anew.list))
	}
	return errors.Join(bad, worse)
}

// SumsBytes is what the kept sums take up.
func (db *DB) SumsBytes() (n int) {
	s := db.sums.Load()
	n = cap(s.all.list)
	for _, b := range s.kinds {
		n += cap(b.list)
	}
	return n * int(unsafe.Sizeof(block{}))
}

// ReadSums makes the sums anew and forgets them.
func (db *DB) ReadSums() error {
	_, err := readSums(db.pebble)
	return err
}

// Crowd has the next change make the sieve anew.
func Crowd(db *DB) { db.sieve.Load().room = -1 }

// Spoil replaces the value of the first entry of a table, or removes the entry, behind the index's
// back. It gives the entry's key, as Compare tells it, and puts it back.
func (db *DB) Spoil(table byte, value []byte) (key string, restore func()) {
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
	return fmt.Sprintf("%x", full[1:]), func() { set(append([]byte{}, was...)) }
}
