package eventdb

import (
	"errors"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// Has reports whether an event with this id (64 hex digits) is stored and has not expired, as the
// index stands now. It is the one look-up that needs no snapshot, and so costs about half of asking
// a [View]: whoever hears of events by the thousand asks here first. What is no id is not stored.
// The error is [ErrClosed], or one of reading.
func (db *DB) Has(eventID string) (bool, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return false, nil
	}
	if !db.enter() {
		return false, ErrClosed
	}
	p, err := postingOf(db.latest(), eid)
	if left := db.leave(); left != nil {
		return false, left
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return p.expiry == 0 || p.expiry >= db.now(), nil
}

// HasEach is [DB.Has] of each of some ids.
func (db *DB) HasEach(ids [][32]byte) ([]bool, error) {
	if !db.enter() {
		return nil, ErrClosed
	}
	has, err := hasEach(db.latest(), ids, db.now())
	if left := db.leave(); left != nil {
		return nil, left
	}
	return has, err
}

func hasEach(r getter, ids [][32]byte, now nostr.Timestamp) ([]bool, error) {
	has := make([]bool, len(ids))
	for n, eid := range ids {
		p, err := postingOf(r, eid)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return nil, err
		default:
			has[n] = p.expiry == 0 || p.expiry >= now
		}
	}
	return has, nil
}

// latest is what the index holds now, with the sieve of all keys that were in it before the look-up
// began.
type latest struct {
	*pebble.DB
	sieve *sieve
}

func (db *DB) latest() latest { return latest{db.pebble, db.sieve.Load()} }

// Get asks the sieve first, if it can know.
func (l latest) Get(key []byte) ([]byte, io.Closer, error) {
	if isSieved(key) && !l.sieve.mayHold(key) {
		return nil, nil, pebble.ErrNotFound
	}
	return l.DB.Get(key)
}
