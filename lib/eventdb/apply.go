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
	c := db.newChange()
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
	if err == nil {
		err = c.hideNew()
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
	if c.rest {
		db.takeRest()
	}
	return nil
}

// takeRest begins to take away, piece by piece, what is left of authors who have vanished, unless
// that is under way. db.mu is held.
func (db *DB) takeRest() {
	if db.takes {
		return
	}
	db.takes = true
	db.taking.Go(func() {
		for {
			switch more, err := db.takePiece(); {
			case err != nil:
				db.fail(fmt.Errorf("take away what authors wrote who have vanished: %w", err), pebble.IsCorruptionError(err))
				return
			case !more:
				return
			}
		}
	})
}

// takePiece takes away a piece of that. more: there may be another.
func (db *DB) takePiece() (more bool, err error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return false, nil // the next start goes on
	}
	c := db.newChange()
	defer c.batch.Close()
	if err = c.takeRest(); err == nil {
		err = c.hideNew()
	}
	if err == nil {
		err = c.batch.Commit(pebble.NoSync)
	}
	h := *db.hidden.Load()
	db.hidden.Store(&h) // what is shown is different, see [Moment]
	db.takes = c.rest && err == nil
	return db.takes, err
}

// newChange begins a change. db.mu is held.
func (db *DB) newChange() *change {
	c := &change{db: db, batch: db.pebble.NewIndexedBatch()}
	c.reader = reader{c.batch, db.keyFilter}
	return c
}

// change is what one call of apply does. It reads the index as the change leaves it.
type change struct {
	reader
	db     *DB
	batch  *pebble.Batch
	stored []Record // events that the change brings, in the order of the log
	left   []gone   // announcements that their authors have taken away
	back   []string // addresses of announcements that have come back
	rest   bool     // not all is taken away of an author who has vanished
	key    []byte   // the room of the last key
}

// put sets what a key holds; nil: nothing any more.
func (c *change) put(key, value []byte) error {
	if value == nil {
		return c.batch.Delete(key, nil)
	}
	c.db.keyFilter.add(key)
	return c.batch.Set(key, value, nil)
}

// add stores one event and carries out what it means for others, unless it is one to be passed
// over.
func (c *change) add(r Record) error {
	if r.Removed != "" {
		return c.takeOut(r.Removed, r.Subject)
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
	if before, known, err := c.lookUp(e.ID); err != nil || known {
		if err == nil && isRequest(ev.Kind) && before.Expires != 0 && r.Request.Until == 0 {
			return c.renew(r, before, author)
		}
		return err
	}
	if until := nostr.Timestamp(r.Request.Until); until != 0 && isRequest(ev.Kind) {
		e.Expires = until // it has changed nothing
		if at := Expiration(ev); at != 0 {
			e.Expires = min(until, at)
		}
	}
	if deleted, err := c.isDeleted(ev, e, author); err != nil || deleted {
		return err
	}
	if at := coordinateOf(ev.Kind, author, ev.Tags.GetD()); at != nil {
		if won, err := c.takeCoordinate(at, e); err != nil || !won {
			return err
		}
	}
	c.stored = append(c.stored, r)
	if err := c.store(r, e, author); err != nil {
		return err
	}
	return c.carryOut(r, e, author)
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
	return true, errors.Join(c.put(at.key(tableHolder), e.appendPlace(nil)), c.comeBack(at, e.Kind))
}

// takeOut removes an event that has left the log, from its subject. Nothing of it stays: a new index
// that reads the log never sees it. One that is not here was replaced or deleted before.
func (c *change) takeOut(eventID, subject string) error {
	eid, err := parseID(eventID)
	if err == nil {
		err = c.forgetTaken(subject)
	}
	if err != nil {
		return err
	}
	e, found, err := c.lookUp(eid)
	if err != nil || !found {
		return err
	}
	return c.remove(e)
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

// store takes an event in. It is the one that lies at its subject in the log from now on.
func (c *change) store(r Record, e Entry, author id) error {
	posting := e.appendPosting(make([]byte, 0, postingLen+len(r.Raw)))
	err := errors.Join(c.put(keyID(e.ID), binary.BigEndian.AppendUint64(slices.Clip(posting), uint64(e.CreatedAt))),
		c.put(e.key(), append(posting, r.Raw...)))
	if err != nil {
		return err
	}
	if e.Expires != 0 {
		err = c.put(keyExpiring(e), []byte{})
	}
	return errors.Join(err, c.forgetTaken(proto.EventSubjectOf(r.Event).String()), c.eachPosting(r.Event, e, author, posting))
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
	if e, _, err = c.lookUp(e.ID); err != nil {
		return err
	}
	err = errors.Join(c.put(keyID(e.ID), nil), c.put(e.key(), nil))
	if e.Expires != 0 {
		err = errors.Join(err, c.put(keyExpiring(e), nil))
	}
	if isRequest(ev.Kind) {
		err = errors.Join(err, c.unset(e))
	}
	if at := coordinateOf(ev.Kind, author, ev.Tags.GetD()); at != nil {
		err = errors.Join(err, c.put(at.key(tableHolder), nil))
	}
	return errors.Join(err, c.eachPosting(ev, e, author, nil))
}

// eachPosting puts the posting, or nothing, where an event is found: by its author, kind and tags, and
// an announcement by whom it lists.
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
	if ev.Kind != nostr.KindAnnouncement {
		return err
	}
	if a, illegal := nostr.ParseAnnouncement(ev); illegal == nil {
		for _, key := range a.Listed {
			listed, _ := parseID(key)
			err = errors.Join(err, put(appendListed(c.key[:0], listed, a.Ref.Identifier)))
		}
	}
	return err
}
