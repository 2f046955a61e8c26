package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// swept stands for the sequence of a holder that is gone because of its expiration: swept out, or deleted by id, which must end the same way
// whether it came before the sweep or after. It goes on holding its coordinate against older events: what the index accepts must follow from the
// log alone, and not from when it happened to sweep.
const swept = 0

// expiredPerApply bounds how many expired events one Apply sweeps out; they are passed over by queries long before.
const expiredPerApply = 64

// Apply applies records of the log in ascending sequence, all of them or, on an error, none. Records that were applied before
// (Seq ≤ [DB.Seq]) are passed over, so that a writer that applies its own commits and a follower of the log may both apply.
func (db *DB) Apply(recs []Record) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.isClosed() {
		return ErrClosed
	}
	done := db.Seq()
	for len(recs) > 0 && recs[0].Seq <= done {
		recs = recs[1:]
	}
	if len(recs) == 0 {
		return nil
	}
	if err := db.widenSieve(); err != nil {
		return err
	}
	c := newChange(db)
	defer c.close()
	var stored []Record
	for _, r := range recs {
		if r.Seq <= done {
			return fmt.Errorf("apply: sequence %d after %d", r.Seq, done)
		}
		done = r.Seq
		ok, err := c.add(r)
		if err != nil {
			return fmt.Errorf("apply %d: %w", r.Seq, err)
		}
		if ok {
			stored = append(stored, r)
		}
	}
	if err := c.sweepExpired(); err != nil {
		return fmt.Errorf("apply: sweep expired events: %w", err)
	}
	return c.commit(done, stored)
}

// Advance notes that the log has moved to seq by messages that carry no event, such as a writer's mark.
func (db *DB) Advance(seq uint64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.isClosed() {
		return ErrClosed
	}
	if seq <= db.Seq() {
		return nil
	}
	c := newChange(db)
	defer c.close()
	return c.commit(seq, nil)
}

// widenSieve makes the sieve anew when it has become too full to be of use.
func (db *DB) widenSieve() (err error) {
	if db.sieve.keys <= db.sieve.room {
		return nil
	}
	db.sieve, err = readSieve(db.pebble, db.sieve.keys)
	return err
}

// change is what one Apply writes.
type change struct {
	db *DB
	// batch is indexed: records see those before them in the same change. What no record looks at, which is most, goes to postings;
	// both are committed as one.
	batch    *pebble.Batch
	postings *pebble.Batch
	count    uint64
	// dropped are events stored earlier in this change and removed later in it; subscribers never hear of them.
	dropped map[uint64]bool
	buf     []byte
}

func newChange(db *DB) *change {
	return &change{db: db, batch: db.pebble.NewIndexedBatch(), postings: db.pebble.NewBatch(), count: db.count, dropped: map[uint64]bool{}}
}

func (c *change) close() {
	c.batch.Close()
	c.postings.Close()
}

// Get reads the index as this change leaves it; postings cannot be read.
func (c *change) Get(key []byte) ([]byte, io.Closer, error) {
	if isSieved(key) && !c.db.sieve.mayHold(key) {
		return nil, nil, pebble.ErrNotFound
	}
	return c.batch.Get(key)
}

func (c *change) set(key, value []byte) error {
	if isSieved(key) {
		c.db.sieve.add(key)
	}
	return c.batch.Set(key, value, nil)
}

func (c *change) commit(seq uint64, stored []Record) error {
	if err := c.batch.Set(metaSeq, binary.BigEndian.AppendUint64(nil, seq), nil); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if err := c.batch.Set(metaCount, binary.BigEndian.AppendUint64(nil, c.count), nil); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if err := c.postings.Apply(c.batch, nil); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if err := c.postings.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if len(c.dropped) > 0 {
		kept := stored[:0]
		for _, r := range stored {
			if !c.dropped[r.Seq] {
				kept = append(kept, r)
			}
		}
		stored = kept
	}
	c.db.publish(seq, c.count, stored)
	return nil
}

// encode makes the JSON of a record that has none, and reads it back: what is indexed must be what is stored, or it could not be found
// again to be taken away (JSON has no place for bytes that are no UTF-8).
func (r *Record) encode() (err error) {
	if r.Raw, err = r.Event.MarshalJSON(); err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(r.Raw); err != nil {
		return fmt.Errorf("read encoded event back: %w", err)
	}
	r.Event = ev
	return nil
}

// add stores one event and carries out what it means for others. It reports false for an event that is passed over.
func (c *change) add(r Record) (bool, error) {
	if r.Event == nil {
		return false, errors.New("record without event")
	}
	if r.Raw == nil {
		if err := r.encode(); err != nil {
			return false, err
		}
	}
	ev := r.Event
	if nostr.IsEphemeralKind(ev.Kind) || ev.Kind < 0 || ev.Kind > 0xffff {
		return false, nil
	}
	eid, err := parseID(ev.ID)
	if err != nil {
		return false, err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return false, err
	}
	if known, err := c.has(keyID(eid)); err != nil || known {
		return false, err
	}
	if deleted, err := isDeleted(c, c.db.keepDeleted, ev, eid, author); err != nil || deleted {
		return false, err
	}
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		won, err := c.takeCoordinate(at, ev.CreatedAt, eid, r.Seq)
		if err != nil || !won {
			return false, err
		}
	}
	if err := c.store(r, eid, author); err != nil {
		return false, err
	}
	if ev.Kind == nostr.KindDeletion && !c.db.keepDeleted {
		if err := c.carryOut(ev, author); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (c *change) has(key []byte) (bool, error) {
	_, closer, err := c.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, closer.Close()
}

// takeCoordinate decides between the holder of a coordinate and a newcomer: the newer wins, at equal time the lower id (NIP-01).
func (c *change) takeCoordinate(at coordinate, created nostr.Timestamp, eid id, seq uint64) (won bool, err error) {
	place := appendPlace(make([]byte, 0, placeLen+8), created, eid)
	holder, closer, err := c.Get(at.key(tableHolder))
	switch {
	case errors.Is(err, pebble.ErrNotFound):
	case err != nil:
		return false, err
	default:
		// A smaller place is a better one: places sort newest first, then by id.
		better := string(place) < string(holder[:placeLen])
		held := binary.BigEndian.Uint64(holder[placeLen:])
		if err := closer.Close(); err != nil {
			return false, err
		}
		if !better {
			return false, nil
		}
		if held != swept {
			if err := c.removeStored(held); err != nil {
				return false, err
			}
		}
	}
	return true, c.set(at.key(tableHolder), binary.BigEndian.AppendUint64(place, seq))
}

// store writes the event and its index entries.
func (c *change) store(r Record, eid, author id) error {
	if err := c.set(keyEvent(r.Seq), r.Raw); err != nil {
		return err
	}
	p := posting{seq: r.Seq, kind: uint16(r.Event.Kind), expiry: expiryOf(r.Event)}
	c.buf = p.append(c.buf[:0])
	if p.expiry != 0 {
		if err := c.set(keyExpiry(p.expiry, eid), nil); err != nil {
			return err
		}
	}
	c.count++
	return indexKeys(r.Event, eid, author, func(key []byte) error {
		if key[0] == tableID {
			return c.set(key, c.buf)
		}
		return c.postings.Set(key, c.buf, nil)
	})
}

// removeStored takes the event at seq and all its index entries away. The holder of its coordinate is the caller's business.
func (c *change) removeStored(seq uint64) error {
	raw, closer, err := c.Get(keyEvent(seq))
	if err != nil {
		return fmt.Errorf("load event at %d: %w", seq, err)
	}
	var ev nostr.Event
	err = ev.UnmarshalJSON(raw)
	if err := errors.Join(err, closer.Close()); err != nil {
		return fmt.Errorf("load event at %d: %w", seq, err)
	}
	eid, err := parseID(ev.ID)
	if err != nil {
		return err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return err
	}
	if at := expiryOf(&ev); at != 0 {
		if err := c.batch.Delete(keyExpiry(at, eid), nil); err != nil {
			return err
		}
	}
	if err := c.batch.Delete(keyEvent(seq), nil); err != nil {
		return err
	}
	c.count--
	c.dropped[seq] = true
	return indexKeys(&ev, eid, author, func(key []byte) error {
		if key[0] == tableID {
			return c.batch.Delete(key, nil)
		}
		return c.postings.Delete(key, nil)
	})
}

// remove is removeStored for an event that leaves its coordinate: empty, or, if it has an expiration, held by what was swept.
func (c *change) remove(p posting, ev *nostr.Event, eid, author id) error {
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		var err error
		if p.expiry == 0 {
			err = c.batch.Delete(at.key(tableHolder), nil)
		} else {
			place := appendPlace(make([]byte, 0, placeLen+8), ev.CreatedAt, eid)
			err = c.set(at.key(tableHolder), binary.BigEndian.AppendUint64(place, swept))
		}
		if err != nil {
			return err
		}
	}
	return c.removeStored(p.seq)
}

// indexKeys gives every index key of an event to fn, which must not keep it.
func indexKeys(ev *nostr.Event, eid, author id, fn func(key []byte) error) error {
	kind := uint16(ev.Kind)
	key := make([]byte, 0, 1+idLen+2+placeLen)
	one := func(prefix ...byte) error {
		key = appendPlace(append(key[:0], prefix...), ev.CreatedAt, eid)
		return fn(key)
	}
	if err := fn(append(append(key[:0], tableID), eid[:]...)); err != nil {
		return err
	}
	if err := one(tableTime); err != nil {
		return err
	}
	if err := one(prefixAuthor(author)...); err != nil {
		return err
	}
	if err := one(prefixKind(kind)...); err != nil {
		return err
	}
	if err := one(prefixAuthorKind(author, kind)...); err != nil {
		return err
	}
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && isIndexedTag(tag[0]) {
			if err := one(prefixTag(tag[0][0], tag[1])...); err != nil {
				return err
			}
		}
	}
	return nil
}

// sweepExpired removes some of the events whose time is over.
func (c *change) sweepExpired() error {
	it, err := c.batch.NewIter(&pebble.IterOptions{
		LowerBound: []byte{tableExpiry},
		UpperBound: binary.BigEndian.AppendUint64([]byte{tableExpiry}, uint64(c.db.now())),
	})
	if err != nil {
		return err
	}
	var over []id
	for valid := it.First(); valid && len(over) < expiredPerApply; valid = it.Next() {
		over = append(over, id(it.Key()[1+timeLen:]))
	}
	if err := it.Close(); err != nil {
		return err
	}
	for _, eid := range over {
		p, ev, err := load(c, eid)
		if err != nil {
			return err
		}
		author, err := parseID(ev.PubKey)
		if err != nil {
			return err
		}
		if err := c.remove(p, ev, eid, author); err != nil {
			return err
		}
	}
	return nil
}

// getter is what look-ups need: a snapshot of the index, or a change that is being made.
type getter interface {
	Get(key []byte) ([]byte, io.Closer, error)
}

// load finds an event by id.
func load(r getter, eid id) (posting, *nostr.Event, error) {
	v, closer, err := r.Get(keyID(eid))
	if errors.Is(err, pebble.ErrNotFound) {
		return posting{}, nil, ErrNotFound
	}
	if err != nil {
		return posting{}, nil, fmt.Errorf("look up event %x: %w", eid, err)
	}
	p, err := parsePosting(v)
	if err := errors.Join(err, closer.Close()); err != nil {
		return posting{}, nil, fmt.Errorf("look up event %x: %w", eid, err)
	}
	ev, err := loadAt(r, p.seq)
	return p, ev, err
}

// loadAt reads the event that the log has at seq.
func loadAt(r getter, seq uint64) (*nostr.Event, error) {
	raw, closer, err := r.Get(keyEvent(seq))
	if err != nil {
		return nil, fmt.Errorf("load event at %d: %w", seq, err)
	}
	defer closer.Close()
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("decode event at %d: %w", seq, err)
	}
	return ev, nil
}
