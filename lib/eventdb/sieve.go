package eventdb

import (
	"fmt"
	"hash/maphash"
	"io"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
)

// sieve is a Bloom filter over the keys that Apply looks up for every record, and ingest for every
// candidate: known ids, coordinates and deletion requests. Nearly all of these look-ups find
// nothing, and the sieve says so in tens of nanoseconds, where the many files of an index that is
// being written take many microseconds. It is made from the index when that is opened. Only Apply
// adds keys; anybody may ask meanwhile.
type sieve struct {
	bits []atomic.Uint64
	mask uint64
	keys int // added
	room int // how many may be added before the answers get worse
	seed maphash.Seed
}

// sieveTables are the tables whose keys are in the sieve.
var sieveTables = []byte{tableID, tableHolder, tableDeletedID, tableDeletedTo}

func isSieved(key []byte) bool {
	switch key[0] {
	case tableID, tableHolder, tableDeletedID, tableDeletedTo:
		return true
	}
	return false
}

const (
	// sieveProbes and sieveBits make at most two look-ups in a hundred vain.
	sieveProbes = 5
	sieveBits   = 10
	// sieveLeast, in bits, is half a MiB: room for the keys of 400,000 events before it is made
	// anew.
	sieveLeast = 1 << 22
)

// newSieve makes an empty sieve with room for so many keys or more.
func newSieve(keys int) *sieve {
	bits := sieveLeast
	for bits < keys*sieveBits {
		bits *= 2
	}
	return &sieve{bits: make([]atomic.Uint64, bits/64), mask: uint64(bits - 1), room: bits / sieveBits, seed: maphash.MakeSeed()}
}

// readSieve makes a sieve of what the index holds, with room for as many again.
func readSieve(r pebble.Reader, keys int) (*sieve, error) {
	s := newSieve(2 * keys)
	for _, table := range sieveTables {
		if err := s.read(r, table); err != nil {
			return nil, fmt.Errorf("read keys of the index: %w", err)
		}
	}
	return s, nil
}

func (s *sieve) read(r pebble.Reader, table byte) error {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
	if err != nil {
		return err
	}
	for valid := it.First(); valid; valid = it.Next() {
		s.add(it.Key())
	}
	return it.Close()
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

// lacks says that r has no such key, which is of a sieved table, if that can be known without
// looking. It keeps nothing of the key, and so spares nearly all look-ups a copy of it.
func lacks(r getter, key []byte) bool {
	switch r := r.(type) {
	case *change:
		return !r.db.sieve.Load().mayHold(key)
	case sieved:
		return !r.sieve.mayHold(key)
	case latest:
		return !r.sieve.mayHold(key)
	}
	return false
}

// sieved is a snapshot of the index with a sieve of all keys that are in it.
type sieved struct {
	*pebble.Snapshot
	sieve *sieve
}

// Get asks the sieve first, if it can know.
func (s sieved) Get(key []byte) ([]byte, io.Closer, error) {
	if isSieved(key) && !s.sieve.mayHold(key) {
		return nil, nil, pebble.ErrNotFound
	}
	return s.Snapshot.Get(key)
}

// snapshot takes a snapshot, with the sieve that was in use all the while: one that was made
// earlier may lack what has come since, one that was made later what has gone since.
func (db *DB) snapshot() sieved {
	for {
		s := sieved{sieve: db.sieve.Load()}
		s.Snapshot = db.pebble.NewSnapshot()
		if db.sieve.Load() == s.sieve {
			return s
		}
		_ = s.Close() // nothing was read from it
	}
}
