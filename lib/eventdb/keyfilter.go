package eventdb

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// keyFilter is a Bloom filter over the keys that Apply looks up for every record, and ingest for
// every candidate: known ids, coordinates and deletion requests. Nearly all of these look-ups find
// nothing, and the filter says so in tens of nanoseconds, where the many files of an index that is
// being written take many microseconds. It is made from the index when that is opened. Only Apply
// adds keys; all may ask meanwhile.
type keyFilter struct {
	lines [keyFilterLines]line
	seed  maphash.Seed
}

const (
	// keyFilterProbes makes at most two look-ups in a hundred vain while there are ten bits for each
	// key. Later more of them are, and nothing else changes.
	keyFilterProbes = 5
	// keyFilterLines are eight MiB: room for the keys of six million events.
	keyFilterLines = 1 << 17
)

// line is what a processor fetches at once. All bits of a key are in one: to fetch it is most of
// what a look-up costs.
type line [8]atomic.Uint64

// keyFilterTables are the tables whose keys are in the filter.
var keyFilterTables = []byte{tableID, tableHolder, tableDeletedID, tableDeletedTo, tableFloor, tableVanished,
	tableTaken, tableGone}

// readKeyFilter makes a filter of what the index holds.
func readKeyFilter(p *pebble.DB) (*keyFilter, error) {
	f := &keyFilter{seed: maphash.MakeSeed()}
	for _, table := range keyFilterTables {
		it, err := p.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
		if err == nil {
			for valid := it.First(); valid; valid = it.Next() {
				f.add(it.Key())
			}
			err = it.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read keys of the index: %w", err)
		}
	}
	return f, nil
}

func (f *keyFilter) add(key []byte) {
	if slices.Contains(keyFilterTables, key[0]) {
		f.probe(key, func(word *atomic.Uint64, bit uint64) bool { word.Or(bit); return true })
	}
}

// mayHold is false only for a key of the filter's tables that was never added.
func (f *keyFilter) mayHold(key []byte) bool {
	return !slices.Contains(keyFilterTables, key[0]) || f.probe(key,
		func(word *atomic.Uint64, bit uint64) bool { return word.Load()&bit != 0 })
}

func (f *keyFilter) probe(key []byte, look func(word *atomic.Uint64, bit uint64) bool) bool {
	h := maphash.Bytes(f.seed, key)
	l := &f.lines[h%keyFilterLines]
	h /= keyFilterLines
	for range keyFilterProbes { // each takes nine of the bits that are left
		if !look(&l[h>>6%8], 1<<(h%64)) {
			return false
		}
		h >>= 9
	}
	return true
}

// reader looks up single keys in the index as it is now, in a snapshot of it, or in a batch that is
// being made. Without a filter every look-up is made. Without anything to read the index is closed.
type reader struct {
	pebble.Reader
	keyFilter *keyFilter
}

// get returns a copy of what a key holds.
func (r reader) get(key []byte) (value []byte, found bool, err error) {
	if r.Reader == nil {
		return nil, false, ErrClosed
	}
	if r.keyFilter != nil && !r.keyFilter.mayHold(key) {
		return nil, false, nil
	}
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read the index: %w", err)
	}
	return slices.Clone(value), true, closer.Close()
}
