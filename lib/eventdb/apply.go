package eventdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Apply applies records of the log in ascending sequence, all of them or, on an error, none.
// Records that were applied before (Seq ≤ [DB.Seq]) are passed over, so that a writer that feeds
// its own commits and a follower of the log may both apply.
func (db *DB) Apply(recs []Record) error {
	if len(recs) == 0 {
		return nil
	}
	return db.apply(recs, recs[len(recs)-1].Seq)
}

// apply applies what the log has up to a sequence, and tells the subscribers.
func (db *DB) apply(recs []Record, upTo uint64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	done := db.Seq()
	if upTo <= done {
		return nil
	}
	c := &change{db: db, batch: db.pebble.NewIndexedBatch()}
	c.reader = reader{c.batch, db.sieve}
	defer c.batch.Close()
	for _, r := range recs {
		switch {
		case r.Seq <= db.Seq():
			continue
		case r.Seq <= done:
			return fmt.Errorf("apply: sequence %d after %d", r.Seq, done)
		}
		done = r.Seq
		if err := c.add(r); err != nil {
			return fmt.Errorf("apply %d: %w", r.Seq, err)
		}
	}
	err := c.put(metaSeq, binary.BigEndian.AppendUint64(nil, upTo))
	if n := len(recs); err == nil && n > 0 && recs[n-1].Seq > db.Seq() {
		err = c.put(metaLast, positionOf(recs[n-1]).encode())
	}
	if err == nil && db.bans != nil {
		err = c.hideBanned()
	}
	if err == nil {
		err = c.batch.Commit(pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	if len(c.stored) > 0 {
		for _, tell := range db.subscribers {
			tell(c.stored)
		}
	}
	db.setSeq(upTo)
	return nil
}

// change is what one call of apply does. It reads the index as the change leaves it.
type change struct {
	reader
	db     *DB
	batch  *pebble.Batch
	stored []Record // events that the change brings, in the order of the log
	key    []byte   // the room of the last key
}

// put sets what a key holds; nil: nothing any more.
func (c *change) put(key, value []byte) error {
	if value == nil {
		return c.batch.Delete(key, nil)
	}
	c.db.sieve.add(key)
	return c.batch.Set(key, value, nil)
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
		// What is indexed must be what is stored, or it could not be found again to be taken away:
		// JSON has no place for bytes that are no UTF-8.
		var err error
		r.Raw = nostr.Encode(r.Event)
		if r.Event, err = decode(r.Raw); err != nil {
			return err
		}
	}
	ev := r.Event
	if nostr.IsEphemeralKind(ev.Kind) || ev.Kind < 0 || ev.Kind > 0xffff {
		return nil
	}
	e, author, err := namesOf(ev)
	if err != nil {
		return err
	}
	if _, known, err := c.lookUp(e.ID); err != nil || known {
		return err
	}
	if deleted, err := c.isDeleted(ev, e, author); err != nil || deleted {
		return err
	}
	if at := coordinateOf(ev.Kind, author, ev.Tags.GetD()); at != nil {
		if won, err := c.takeCoordinate(at, e); err != nil || !won {
			return err
		}
	}
	if err := c.store(r, e, author); err != nil {
		return err
	}
	if ev.Kind == nostr.KindDeletion && !c.db.opts.KeepDeleted {
		return errors.Join(c.carryOut(ev, author), c.setFloors(r.Floors, author))
	}
	return nil
}

// setFloors notes where versions stood that their author has deleted by their ids.
func (c *change) setFloors(floors []proto.Floor, author id) error {
	for _, f := range floors {
		at := coordinateOf(f.Kind, author, f.Identifier)
		eid, err := parseID(f.ID)
		if at == nil || err != nil {
			continue // a header that names nothing
		}
		e := Entry{CreatedAt: nostr.Timestamp(f.CreatedAt), ID: eid}
		below, err := c.belowFloor(at, e)
		if err == nil && !below {
			err = c.put(at.key(tableFloor), e.appendPlace(nil))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// belowFloor reports whether an event is a version that was deleted by its id, or is older.
func (r reader) belowFloor(at coordinate, e Entry) (bool, error) {
	value, found, err := r.get(at.key(tableFloor))
	if err != nil || !found {
		return false, err
	}
	if len(value) != placeLen {
		return false, fmt.Errorf("floor of %d bytes", len(value))
	}
	return e.Compare(placeOf(value)) >= 0, nil
}

// takeCoordinate decides between the holder of a coordinate and a newcomer: the newer wins, at
// equal time the lower id (NIP-01). An event whose time is over holds its coordinate like any
// other: what the index accepts follows from the log alone, and not from the clock.
func (c *change) takeCoordinate(at coordinate, e Entry) (won bool, err error) {
	held, found, err := c.holder(at)
	if err != nil {
		return false, err
	}
	if found {
		if e.Compare(held) >= 0 {
			return false, nil
		}
		if err := c.remove(held); err != nil {
			return false, err
		}
	}
	return true, c.put(at.key(tableHolder), e.appendPlace(nil))
}

// takeOut removes an event that has left the log. Nothing of it stays: a new index that reads the
// log never sees it. One that is not here was replaced or deleted before.
func (c *change) takeOut(eventID string) error {
	eid, err := parseID(eventID)
	if err != nil {
		return err
	}
	e, found, err := c.lookUp(eid)
	if err != nil || !found {
		return err
	}
	return c.remove(e)
}

// carryOut does what a deletion request asks, now and for events that come later (NIP-09): only
// events of its own author, and no deletion requests.
func (c *change) carryOut(request *nostr.Event, author id) error {
	for _, tag := range request.Tags {
		if len(tag) < 2 {
			continue
		}
		var err error
		switch tag[0] {
		case "e":
			err = c.deleteByID(tag[1], author)
		case "a":
			err = c.deleteByAddress(tag[1], author, request.CreatedAt)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *change) deleteByID(target string, author id) error {
	eid, err := parseID(target)
	if err != nil {
		return nil // a tag that names nothing
	}
	if err := c.put(keyDeletedID(author, eid), []byte{}); err != nil {
		return err
	}
	e, found, err := c.lookUp(eid)
	if err != nil || !found || e.Kind == nostr.KindDeletion {
		return err
	}
	ev, err := c.load(e)
	if err != nil {
		return err
	}
	if owner, err := parseID(ev.PubKey); err != nil || owner != author {
		return err
	}
	return c.remove(e)
}

func (c *change) deleteByAddress(address string, author id, until nostr.Timestamp) error {
	at := coordinateAt(address, author)
	if at == nil {
		return nil // a tag that names nothing, or what is another's
	}
	earlier, known, err := c.deletedTo(at)
	if err != nil {
		return err
	}
	if !known || until > earlier {
		if err := c.put(at.key(tableDeletedTo), binary.BigEndian.AppendUint64(nil, uint64(until))); err != nil {
			return err
		}
	}
	held, found, err := c.holder(at)
	if err != nil || !found || held.CreatedAt > until {
		return err
	}
	return c.remove(held)
}

// coordinateAt reads an address if it is one of author's. What is an address is for package nostr
// to say: ingest asks it too when it decides what may follow a deletion request, and the two must
// agree.
func coordinateAt(s string, author id) coordinate {
	address, err := nostr.ParseAddress(s)
	if err != nil {
		return nil
	}
	if owner, err := parseID(address.PubKey); err != nil || owner != author {
		return nil
	}
	return coordinateOf(address.Kind, author, address.Identifier)
}

// isDeleted reports whether a stored deletion request covers the event, or a newer version by its
// id: what its author has deleted keeps its place against older versions.
func (r reader) isDeleted(ev *nostr.Event, e Entry, author id) (bool, error) {
	if ev.Kind == nostr.KindDeletion {
		return false, nil
	}
	if _, deleted, err := r.get(keyDeletedID(author, e.ID)); err != nil || deleted {
		return deleted, err
	}
	at := coordinateOf(ev.Kind, author, ev.Tags.GetD())
	if at == nil {
		return false, nil
	}
	until, known, err := r.deletedTo(at)
	if err != nil || known && ev.CreatedAt <= until {
		return err == nil, err
	}
	return r.belowFloor(at, e)
}

// deletedTo is the latest time up to which a deletion request covers a coordinate, if one does.
func (r reader) deletedTo(at coordinate) (until nostr.Timestamp, known bool, err error) {
	created, known, err := readUint(r, at.key(tableDeletedTo))
	return nostr.Timestamp(created), known, err
}

// holder returns where the event stands that holds a coordinate.
func (r reader) holder(at coordinate) (e Entry, found bool, err error) {
	value, found, err := r.get(at.key(tableHolder))
	if err != nil || !found {
		return e, false, err
	}
	if len(value) != placeLen {
		return e, false, fmt.Errorf("holder of %d bytes", len(value))
	}
	e = placeOf(value)
	e.Kind = int(binary.BigEndian.Uint16(at))
	return e, true, nil
}

// namesOf are an event's entry and author.
func namesOf(ev *nostr.Event) (e Entry, author id, err error) {
	e, badID := EntryOf(ev)
	author, badAuthor := parseID(ev.PubKey)
	return e, author, errors.Join(badID, badAuthor)
}

// lookUp finds an event by id.
func (r reader) lookUp(eid id) (e Entry, found bool, err error) {
	value, found, err := r.get(keyID(eid))
	if err != nil || !found {
		return e, false, err
	}
	e.ID = eid
	created, err := e.readPosting(value)
	if err != nil || len(created) != timeLen {
		return e, false, fmt.Errorf("look up event %x: an entry of %d bytes", eid, len(value))
	}
	e.CreatedAt = nostr.Timestamp(binary.BigEndian.Uint64(created))
	return e, true, nil
}

// load reads an event that an index entry names.
func (r reader) load(e Entry) (*nostr.Event, error) {
	value, found, err := r.get(e.key())
	if err == nil && !found {
		err = errLost
	}
	var raw []byte
	if err == nil {
		raw, err = e.readPosting(value)
	}
	if err != nil {
		return nil, fmt.Errorf("load event %x: %w", e.ID, err)
	}
	return decode(raw)
}

// errLost: the index does not have what one of its entries names.
var errLost = errors.New("the index has no such event, though an entry of it says so")

// decode reads an event that Apply takes.
func decode(raw []byte) (*nostr.Event, error) {
	ev := new(nostr.Event)
	if err := ev.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("decode event: %w", err)
	}
	_, _, err := namesOf(ev)
	return ev, err
}

// store takes an event in.
func (c *change) store(r Record, e Entry, author id) error {
	posting := e.appendPosting(make([]byte, 0, postingLen+len(r.Raw)))
	err := errors.Join(c.put(keyID(e.ID), binary.BigEndian.AppendUint64(slices.Clip(posting), uint64(e.CreatedAt))),
		c.put(e.key(), append(posting, r.Raw...)))
	if err != nil {
		return err
	}
	c.stored = append(c.stored, r)
	return c.eachPosting(r.Event, e, author, posting)
}

// remove takes an event and all its index entries away, and empties its coordinate.
func (c *change) remove(e Entry) error {
	ev, err := c.load(e)
	if err != nil {
		return err
	}
	_, author, err := namesOf(ev)
	if err != nil {
		return err
	}
	// Subscribers never hear of what the same change brings and removes.
	c.stored = slices.DeleteFunc(c.stored, func(r Record) bool { return r.Event.ID == ev.ID })
	err = errors.Join(c.put(keyID(e.ID), nil), c.put(e.key(), nil))
	if at := coordinateOf(ev.Kind, author, ev.Tags.GetD()); at != nil {
		err = errors.Join(err, c.put(at.key(tableHolder), nil))
	}
	return errors.Join(err, c.eachPosting(ev, e, author, nil))
}

// eachPosting puts the posting, or nothing, where an event is found: by its author, kind and tags.
func (c *change) eachPosting(ev *nostr.Event, e Entry, author id, posting []byte) error {
	put := func(prefix []byte) error {
		c.key = e.appendPlace(prefix)
		return c.put(c.key, posting)
	}
	err := errors.Join(put(appendAuthor(c.key[:0], author)), put(appendKind(c.key[:0], uint16(ev.Kind))))
	for _, tag := range ev.Tags {
		if len(tag) >= 2 && isIndexedTag(tag[0]) {
			err = errors.Join(err, put(appendTag(c.key[:0], tag[0][0], tag[1])))
		}
	}
	return err
}
