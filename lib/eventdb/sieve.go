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
	seed maphash.Seed
}

const (
	// sieveProbes makes at most two look-ups in a hundred vain while there are ten bits for each key.
	// Later more of them are, and nothing else changes.
	sieveProbes = 5
	// sieveLeast, in bits, is two MiB: room for the keys of 1.5 million events.
	sieveLeast = 1 << 24
	// sievePerByte is how many bytes of the index one bit is for: those of an event are about 800,
	// so that there is room for as many events again.
	sievePerByte = 32
)

// sieveTables are the tables whose keys are in the sieve.
var sieveTables = []byte{tableID, tableHolder, tableDeletedID, tableDeletedTo}

// readSieve makes a sieve of what the index holds.
func readSieve(p *pebble.DB) (*sieve, error) {
	bits := sieveLeast
	for bits < int(p.Metrics().DiskSpaceUsage()/sievePerByte) {
		bits *= 2
	}
	s := &sieve{bits: make([]atomic.Uint64, bits/64), mask: uint64(bits - 1), seed: maphash.MakeSeed()}
	for _, table := range sieveTables {
		it, err := p.NewIter(&pebble.IterOptions{LowerBound: []byte{table}, UpperBound: []byte{table + 1}})
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
}

// mayHold is false only for a key of the sieve's tables that was never added.
func (s *sieve) mayHold(key []byte) bool {
	if !slices.Contains(sieveTables, key[0]) {
		return true
	}
	h := maphash.Bytes(s.seed, key)
	for step, i := h>>32|1, 0; i < sieveProbes; h, i = h+step, i+1 {
		at := h & s.mask
		if s.bits[at/64].Load()&(1<<(at%64)) == 0 {
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
