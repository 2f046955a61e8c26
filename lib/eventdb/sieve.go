package eventdb

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// sieve is a Bloom filter over the keys that Apply looks up for every record, and ingest for every
// candidate: known ids, coordinates and deletion requests. Nearly all of these look-ups find
// nothing, and the sieve says so in tens of nanoseconds, where the many files of an index that is
// being written take many microseconds. It is made from the index when that is opened. Only Apply
// adds keys; all may ask meanwhile.
type sieve struct {
	bits [sieveBits / 64]atomic.Uint64
	seed maphash.Seed
}

const (
	// sieveProbes makes at most two look-ups in a hundred vain while there are ten bits for each key.
	// Later more of them are, and nothing else changes.
	sieveProbes = 5
	// sieveBits are eight MiB: room for the keys of six million events.
	sieveBits = 1 << 26
)

// sieveTables are the tables whose keys are in the sieve.
var sieveTables = []byte{tableID, tableHolder, tableDeletedID, tableDeletedTo, tableFloor}

// readSieve makes a sieve of what the index holds.
func readSieve(p *pebble.DB) (*sieve, error) {
	s := &sieve{seed: maphash.MakeSeed()}
	for _, table := range sieveTables {
		it, err := p.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
		if err == nil {
			for valid := it.First(); valid; valid = it.Next() {
				s.add(it.Key())
			}
			err = it.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("read keys of the index: %w", err)
		}
	}
	return s, nil
}

func (s *sieve) add(key []byte) {
	if slices.Contains(sieveTables, key[0]) {
		s.probe(key, func(word *atomic.Uint64, bit uint64) bool { word.Or(bit); return true })
	}
}

// mayHold is false only for a key of the sieve's tables that was never added.
func (s *sieve) mayHold(key []byte) bool {
	return !slices.Contains(sieveTables, key[0]) || s.probe(key,
		func(word *atomic.Uint64, bit uint64) bool { return word.Load()&bit != 0 })
}

func (s *sieve) probe(key []byte, look func(word *atomic.Uint64, bit uint64) bool) bool {
	h := maphash.Bytes(s.seed, key)
	for step, i := h>>32|1, 0; i < sieveProbes; h, i = h+step, i+1 {
		at := h % sieveBits
		if !look(&s.bits[at/64], 1<<(at%64)) {
			return false
		}
	}
	return true
}

// reader looks up single keys in the index as it is now, in a snapshot of it, or in a batch that is
// being made. Without a sieve every look-up is made. Without anything to read the index is closed.
type reader struct {
	pebble.Reader
	sieve *sieve
}

// get returns a copy of what a key holds.
func (r reader) get(key []byte) (value []byte, found bool, err error) {
	if r.Reader == nil {
		return nil, false, ErrClosed
	}
	if r.sieve != nil && !r.sieve.mayHold(key) {
		return nil, false, nil
	}
	value, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return slices.Clone(value), true, closer.Close()
}
