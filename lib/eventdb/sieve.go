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
	bits []atomic.Uint64
	mask uint64
	keys int // added
	room int // how many may be added before the answers get worse
	seed maphash.Seed
}

const (
	// sieveProbes and sieveBits make at most two look-ups in a hundred vain.
	sieveProbes = 5
	sieveBits   = 10
	// sieveLeast, in bits, is half a MiB: room for the keys of 400,000 events.
	sieveLeast = 1 << 22
)

// sieveTables are the tables whose keys are in the sieve.
var sieveTables = []byte{tableID, tableHolder, tableDeletedID, tableDeletedTo}

func isSieved(key []byte) bool { return slices.Contains(sieveTables, key[0]) }

// newSieve makes an empty sieve with room for so many keys or more.
func newSieve(keys int) *sieve {
	bits := sieveLeast
	for bits < keys*sieveBits {
		bits *= 2
	}
	return &sieve{bits: make([]atomic.Uint64, bits/64), mask: uint64(bits - 1), room: bits / sieveBits, seed: maphash.MakeSeed()}
}

// readSieve makes a sieve of what the index holds, with room for as many keys again.
func readSieve(r pebble.Reader, keys int) (*sieve, error) {
	s := newSieve(2 * keys)
	for _, table := range sieveTables {
		it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
		if err != nil {
			return nil, fmt.Errorf("read keys of the index: %w", err)
		}
		for valid := it.First(); valid; valid = it.Next() {
			s.add(it.Key())
		}
		if err := it.Close(); err != nil {
			return nil, fmt.Errorf("read keys of the index: %w", err)
		}
	}
	return s, nil
}

func (s *sieve) add(key []byte) {
	h := maphash.Bytes(s.seed, key)
	for step, i := h>>32|1, 0; i < sieveProbes; h, i = h+step, i+1 {
		at := h & s.mask
		s.bits[at/64].Or(1 << (at % 64))
	}
	s.keys++
}

// mayHold is false only for a key that was never added.
func (s *sieve) mayHold(key []byte) bool {
	h := maphash.Bytes(s.seed, key)
	for step, i := h>>32|1, 0; i < sieveProbes; h, i = h+step, i+1 {
		at := h & s.mask
		if s.bits[at/64].Load()&(1<<(at%64)) == 0 {
			return false
		}
	}
	return true
}

// getter looks up one key: a reader, or a change that is being made. The value is the caller's.
type getter interface {
	get(key []byte) (value []byte, found bool, err error)
}

// reader is the index as it is now, or a snapshot of it, with a sieve of all keys that are in it.
// Without a sieve every look-up is made.
type reader struct {
	pebble.Reader
	sieve *sieve
}

func (r reader) get(key []byte) (value []byte, found bool, err error) {
	if r.sieve != nil && isSieved(key) && !r.sieve.mayHold(key) {
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

// latest is the index as it is now.
func (db *DB) latest() reader { return reader{db.pebble, db.sieve.Load()} }

// snapshot takes a snapshot, with the sieve that was in use all the while: one that was made
// earlier may lack what has come since, one that was made later what has gone since.
func (db *DB) snapshot() (reader, *pebble.Snapshot) {
	for {
		sieve := db.sieve.Load()
		snap := db.pebble.NewSnapshot()
		if db.sieve.Load() == sieve {
			return reader{snap, sieve}, snap
		}
		_ = snap.Close() // nothing was read from it
	}
}
