package eventdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// swept stands for the sequence of a holder that is gone because of its expiration: swept out, or
// deleted by id, which must end the same way whether it came before the sweep or after. It goes on
// holding its coordinate against older events: what the index accepts must follow from the log
// alone, and not from when it happened to sweep.
const swept = 0

// expiredPerApply bounds how many expired events one Apply sweeps out; they are passed over by
// queries long before.
const expiredPerApply = 64

// Apply applies records of the log in ascending sequence, all of them or, on an error, none.
// Records that were applied before (Seq ≤ [DB.Seq]) are passed over, so that a writer that applies
// its own commits and a follower of the log may both apply. [Follow] does not read what is applied
// so: a writer applies all that it commits, and only what it has committed on the very head of the
// log that the index has reached.
func (db *DB) Apply(recs []Record) error {
	if len(recs) > 0 {
		db.fed.Store(recs[len(recs)-1].Seq)
	}
	return db.apply(recs)
}

// apply is Apply for those who read the log.
func (db *DB) apply(recs []Record) error {
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
	c := db.newChange()
	for _, r := range recs {
		if r.Seq <= done {
			return fmt.Errorf("apply: sequence %d after %d", r.Seq, done)
		}
		done = r.Seq
		if err := c.add(r); err != nil {
			return fmt.Errorf("apply %d: %w", r.Seq, err)
		}
	}
	if err := c.sweepExpired(); err != nil {
		return fmt.Errorf("apply: sweep expired events: %w", err)
	}
	return c.commit(done)
}

// Advance notes that the log has moved to seq by messages that carry no event, such as a writer's
// mark.
func (db *DB) Advance(seq uint64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.isClosed() {
		return ErrClosed
	}
	if seq <= db.Seq() {
		return nil
	}
	return db.newChange().commit(seq)
}

// widenSieve makes the sieve anew when it has become too full to be of use.
func (db *DB) widenSieve() (err error) {
	s := db.sieve.Load()
	if s.keys <= s.room {
		return nil
	}
	if s, err = readSieve(db.pebble, s.keys); err == nil {
		db.sieve.Store(s)
	}
	return err
}

// encode makes the JSON of a record that has none, and reads it back: what is indexed must be what
// is stored, or it could not be found again to be taken away (JSON has no place for bytes that are
// no UTF-8).
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

// add stores one event and carries out what it means for others, unless it is one to be passed
// over.
func (c *change) add(r Record) error {
	if r.Removed != "" {
		return c.takeOut(r.Removed)
	}
	if r.Event == nil {
		return errors.New("record without event")
	}
	if r.Raw == nil {
		if err := r.encode(); err != nil {
			return err
		}
	}
	ev := r.Event
	if nostr.IsEphemeralKind(ev.Kind) || ev.Kind < 0 || ev.Kind > 0xffff {
		return nil
	}
	eid, err := parseID(ev.ID)
	if err != nil {
		return err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return err
	}
	if known, err := has(c, eid); err != nil || known {
		return err
	}
	if deleted, err := isDeleted(c, c.db.keepDeleted, ev, eid, author); err != nil || deleted {
		return err
	}
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		if won, err := c.takeCoordinate(at, ev.CreatedAt, eid, r.Seq); err != nil || !won {
			return err
		}
	}
	c.store(r, eid, author)
	if ev.Kind == nostr.KindDeletion && !c.db.keepDeleted {
		return c.carryOut(ev, author)
	}
	return nil
}

func has(r getter, eid id) (bool, error) {
	_, err := postingOf(r, eid)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// takeCoordinate decides between the holder of a coordinate and a newcomer: the newer wins, at
// equal time the lower id (NIP-01).
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
	c.set(at.key(tableHolder), binary.BigEndian.AppendUint64(place, seq))
	return true, nil
}

// takeOut removes an event that has left the log. Nothing of it stays: whoever reads the log from
// its start never sees it. One that is not here was replaced or deleted before. One that expires is
// left to its expiration: ingest removes none, because whether an index has swept it out by now
// would decide what may take its place.
func (c *change) takeOut(eventID string) error {
	eid, err := parseID(eventID)
	if err != nil {
		return err
	}
	p, ev, err := load(c, eid)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || p.expiry != 0 {
		return err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return err
	}
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		c.set(at.key(tableHolder), nil)
	}
	return c.removeStored(p.seq)
}

// remove takes an event away and empties its coordinate, or, if the event has an expiration, leaves
// it held by what was swept.
func (c *change) remove(p posting, ev *nostr.Event, eid, author id) error {
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		if p.expiry == 0 {
			c.set(at.key(tableHolder), nil)
		} else {
			place := appendPlace(make([]byte, 0, placeLen+8), ev.CreatedAt, eid)
			c.set(at.key(tableHolder), binary.BigEndian.AppendUint64(place, swept))
		}
	}
	return c.removeStored(p.seq)
}

// sweepExpired removes some of the events whose time is over, of those that were there before this
// change.
func (c *change) sweepExpired() error {
	it, err := c.db.pebble.NewIter(&pebble.IterOptions{
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
		if errors.Is(err, ErrNotFound) {
			continue // removed by this change
		}
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

// postingOf looks up an event by id; [ErrNotFound]: it is not there.
func postingOf(r getter, eid id) (posting, error) {
	key := keyID(eid)
	if lacks(r, key[:]) {
		return posting{}, ErrNotFound
	}
	v, closer, err := r.Get(bytes.Clone(key[:]))
	if errors.Is(err, pebble.ErrNotFound) {
		return posting{}, ErrNotFound
	}
	if err != nil {
		return posting{}, fmt.Errorf("look up event %x: %w", eid, err)
	}
	p, err := parsePosting(v)
	if err := errors.Join(err, closer.Close()); err != nil {
		return posting{}, fmt.Errorf("look up event %x: %w", eid, err)
	}
	return p, nil
}

// load finds an event by id.
func load(r getter, eid id) (posting, *nostr.Event, error) {
	p, err := postingOf(r, eid)
	if err != nil {
		return posting{}, nil, err
	}
	ev, err := loadAt(r, p.seq)
	return p, ev, err
}

// loadAt reads the event that the log has at seq.
func loadAt(r getter, seq uint64) (*nostr.Event, error) {
	raw, err := loadRaw(r, seq, nil)
	if err != nil {
		return nil, err
	}
	return decodeAt(raw, seq)
}

func decodeAt(raw []byte, seq uint64) (*nostr.Event, error) {
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("decode event at %d: %w", seq, err)
	}
	return ev, nil
}

// loadRaw appends the JSON that the log has at seq to buf.
func loadRaw(r getter, seq uint64, buf []byte) ([]byte, error) {
	packed, closer, err := r.Get(keyEvent(seq))
	if err != nil {
		return nil, fmt.Errorf("load event at %d: %w", seq, err)
	}
	raw, err := unpack(buf, packed)
	if err := errors.Join(err, closer.Close()); err != nil {
		return nil, fmt.Errorf("load event at %d: %w", seq, err)
	}
	return raw, nil
}
