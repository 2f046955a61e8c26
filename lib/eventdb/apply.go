package eventdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
)

// expiredPerApply bounds how many expired events one Apply sweeps out; they are passed over by
// queries long before.
const expiredPerApply = 64

// Apply applies records of the log in ascending sequence, all of them or, on an error, none.
// Records that were applied before (Seq ≤ [DB.Seq]) are passed over, so that a writer that feeds
// its own commits and a follower of the log may both apply.
func (db *DB) Apply(recs []Record) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.closed.Load() {
		return ErrClosed
	}
	done := db.Seq()
	for len(recs) > 0 && recs[0].Seq <= done {
		recs = recs[1:]
	}
	if len(recs) == 0 {
		return nil
	}
	if s := db.sieve.Load(); s.keys > s.room {
		wider, err := readSieve(db.pebble, s.keys)
		if err != nil {
			return err
		}
		db.sieve.Store(wider)
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
	if db.closed.Load() {
		return ErrClosed
	}
	if seq <= db.Seq() {
		return nil
	}
	return db.newChange().commit(seq)
}

// encode makes the JSON of a record that has none, and reads it back: what is indexed must be what
// is stored, or it could not be found again to be taken away (JSON has no place for bytes that are
// no UTF-8).
func (r *Record) encode() (err error) {
	if r.Raw, err = r.Event.MarshalJSON(); err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	if r.Event, err = decode(r.Raw); err != nil {
		return fmt.Errorf("read encoded event back: %w", err)
	}
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
	eid, author, err := namesOf(ev)
	if err != nil {
		return err
	}
	if _, known, err := lookUp(c, eid); err != nil || known {
		return err
	}
	if deleted, err := isDeleted(c, c.db.keepDeleted, ev, eid, author); err != nil || deleted {
		return err
	}
	if at, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		if won, err := c.takeCoordinate(at, holder{created: ev.CreatedAt, id: eid}); err != nil || !won {
			return err
		}
	}
	c.store(r, eid, author)
	if ev.Kind == nostr.KindDeletion && !c.db.keepDeleted {
		return c.carryOut(ev, author)
	}
	return nil
}

// takeCoordinate decides between the holder of a coordinate and a newcomer: the newer wins, at
// equal time the lower id (NIP-01).
func (c *change) takeCoordinate(at coordinate, newcomer holder) (won bool, err error) {
	held, found, err := holderOf(c, at)
	if err != nil {
		return false, err
	}
	if found {
		if newcomer.compare(held) >= 0 {
			return false, nil
		}
		if !held.gone {
			if err := c.removeStored(held.created, held.id); err != nil {
				return false, err
			}
		}
	}
	c.set(at.key(tableHolder), newcomer.append(nil))
	return true, nil
}

// compare sorts the better holder first.
func (h holder) compare(o holder) int {
	return Entry{CreatedAt: h.created, ID: h.id}.Compare(Entry{CreatedAt: o.created, ID: o.id})
}

func holderOf(r getter, at coordinate) (h holder, found bool, err error) {
	value, found, err := r.get(at.key(tableHolder))
	if err != nil || !found {
		return h, false, err
	}
	h, err = parseHolder(value)
	return h, err == nil, err
}

// takeOut removes an event that has left the log. Nothing of it stays: a new index that reads the
// log never sees it. One that is not here was replaced or deleted before. One that expires is left
// to its expiration: ingest removes none, because whether an index has swept it out by now would
// decide what may take its place.
func (c *change) takeOut(eventID string) error {
	eid, err := parseID(eventID)
	if err != nil {
		return err
	}
	at, ev, err := load(c, eid)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil || at.expiry != 0 {
		return err
	}
	return c.remove(at, ev)
}

// remove takes an event away and empties its coordinate, or, if the event has an expiration, leaves
// it held by what is gone.
func (c *change) remove(at located, ev *nostr.Event) error {
	eid, author, err := namesOf(ev)
	if err != nil {
		return err
	}
	if place, ok := coordinateOf(ev.Kind, author, ev.Tags.GetD()); ok {
		if at.expiry == 0 {
			c.set(place.key(tableHolder), nil)
		} else {
			c.set(place.key(tableHolder), holder{at.created, eid, true}.append(nil))
		}
	}
	return c.removeStored(at.created, eid)
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
		at, ev, err := load(c, eid)
		if errors.Is(err, ErrNotFound) {
			continue // removed by this change
		}
		if err != nil {
			return err
		}
		if err := c.remove(at, ev); err != nil {
			return err
		}
	}
	return nil
}

// namesOf are an event's id and author.
func namesOf(ev *nostr.Event) (eid, author id, err error) {
	eid, badID := parseID(ev.ID)
	author, badAuthor := parseID(ev.PubKey)
	return eid, author, errors.Join(badID, badAuthor)
}

// lookUp finds an event by id.
func lookUp(r getter, eid id) (a located, found bool, err error) {
	value, found, err := r.get(keyID(eid))
	if err == nil && found {
		a, err = parseAt(value)
	}
	if err != nil {
		return a, false, fmt.Errorf("look up event %x: %w", eid, err)
	}
	return a, found, nil
}

// load finds an event by id, and reads it; [ErrNotFound]: it is not there.
func load(r getter, eid id) (located, *nostr.Event, error) {
	a, found, err := lookUp(r, eid)
	if err != nil {
		return a, nil, err
	}
	if !found {
		return a, nil, ErrNotFound
	}
	ev, err := loadAt(r, a.created, eid)
	return a, ev, err
}

// loadAt reads an event that an index entry names.
func loadAt(r getter, created nostr.Timestamp, eid id) (*nostr.Event, error) {
	value, found, err := r.get(keyEvent(created, eid))
	var raw []byte
	switch {
	case err != nil:
	case !found:
		err = errLost
	default:
		_, raw, err = parsePosting(value)
	}
	if err != nil {
		return nil, fmt.Errorf("load event %x: %w", eid, err)
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

// change is what one Apply does. Nothing is written before all of it is known: an event that comes
// and goes within one change leaves no trace.
type change struct {
	db *DB
	// told is the change's news on sieved tables, which the records after it must see; nil: the key
	// is gone.
	told    map[string][]byte
	added   []addition // in the order of the log
	byID    map[id]int // which of added has an id, of those that are not gone
	removed []addition // stored by earlier changes
	count   uint64
	arena   []byte // holds keys and values that are written
	entries []entry
	batch   *pebble.Batch
}

// addition is an event that is stored.
type addition struct {
	Record
	id, author id
	gone       bool // removed by the same change; subscribers never hear of it
}

// entry is a key that is written, or, without a value, deleted.
type entry struct{ key, value []byte }

// keptBatch is how many bytes the batch may have that is kept for the next change. Those of a large
// sync have up to about that much, several times a second.
const keptBatch = 2 << 20

// newChange makes an empty change out of the last one, whose room it uses again.
func (db *DB) newChange() *change {
	c := &db.change
	if c.db == nil {
		*c = change{db: db, told: map[string][]byte{}, byID: map[id]int{}, batch: db.pebble.NewBatch(pebble.WithMaxRetainedSizeBytes(keptBatch))}
	}
	clear(c.told)
	clear(c.byID)
	clear(c.added)
	clear(c.removed)
	clear(c.entries)
	c.added, c.removed, c.entries, c.arena, c.count = c.added[:0], c.removed[:0], c.entries[:0], c.arena[:0], db.count
	return c
}

// get reads what the index holds as this change leaves it. Events are added to it by commit, and so
// are read from added.
func (c *change) get(key []byte) (value []byte, found bool, err error) {
	if isSieved(key) {
		if value, told := c.told[string(key)]; told {
			return value, value != nil, nil
		}
	}
	if key[0] == tableEvent {
		if n, ok := c.byID[placeOf(key).ID]; ok {
			a := &c.added[n]
			return append(a.posting().append(nil), a.Raw...), true, nil
		}
	}
	return c.db.latest().get(key)
}

// set tells what the key of a sieved table holds from now on; nil: nothing.
func (c *change) set(key, value []byte) {
	if value != nil {
		c.db.sieve.Load().add(key)
	}
	c.told[string(key)] = value
}

// store takes an event in.
func (c *change) store(r Record, eid, author id) {
	c.byID[eid] = len(c.added)
	c.added = append(c.added, addition{Record: r, id: eid, author: author})
	a := &c.added[len(c.added)-1]
	c.set(keyID(eid), located{r.Event.CreatedAt, a.posting()}.append(nil))
	c.count++
}

func (a *addition) posting() posting {
	return posting{kind: uint16(a.Event.Kind), expiry: Expiration(a.Event)}
}

// removeStored takes an event and all its index entries away. The holder of its coordinate is the
// caller's business.
func (c *change) removeStored(created nostr.Timestamp, eid id) error {
	if n, ok := c.byID[eid]; ok {
		c.added[n].gone = true
		delete(c.byID, eid)
	} else {
		ev, err := loadAt(c, created, eid)
		if err != nil {
			return err
		}
		_, author, err := namesOf(ev)
		if err != nil {
			return err
		}
		c.removed = append(c.removed, addition{Record: Record{Event: ev}, id: eid, author: author})
	}
	c.set(keyID(eid), nil)
	c.count--
	return nil
}

// commit writes the change and tells of it.
func (c *change) commit(seq uint64) error {
	// What goes comes first: the same event may go and come again.
	for i := range c.removed {
		c.postings(&c.removed[i], false)
	}
	for key, value := range c.told {
		if value == nil {
			c.entries = append(c.entries, entry{key: []byte(key)})
		}
	}
	err := c.write()
	var stored []Record
	for i := range c.added {
		if a := &c.added[i]; !a.gone {
			stored = append(stored, a.Record)
			c.postings(a, true)
		}
	}
	for key, value := range c.told {
		if value != nil {
			c.entries = append(c.entries, entry{[]byte(key), value})
		}
	}
	c.entries = append(c.entries, entry{metaSeq, binary.BigEndian.AppendUint64(nil, seq)}, entry{metaCount, binary.BigEndian.AppendUint64(nil, c.count)})
	if err = errors.Join(err, c.write()); err == nil {
		err = c.batch.Commit(pebble.NoSync)
	}
	if err != nil {
		c.db.change = change{} // Pebble may still have the batch
		return fmt.Errorf("apply: %w", err)
	}
	c.batch.Reset()
	c.db.publish(seq, c.count, stored)
	return nil
}

// write moves the entries to the batch, in the order of their keys: Pebble then finds the place of
// each a few steps from that of the one before.
func (c *change) write() error {
	slices.SortFunc(c.entries, func(a, b entry) int { return bytes.Compare(a.key, b.key) })
	for _, e := range c.entries {
		var err error
		if e.value == nil {
			err = c.batch.Delete(e.key, nil)
		} else {
			err = c.batch.Set(e.key, e.value, nil)
		}
		if err != nil {
			return err
		}
	}
	c.entries = c.entries[:0]
	return nil
}

// postings writes or deletes all that an event has in the index except for its identity and
// coordinate.
func (c *change) postings(a *addition, stays bool) {
	p := a.posting()
	posting, nothing := c.keep(func(b []byte) []byte { return p.append(b) }), []byte{}
	put := func(value []byte, key func([]byte) []byte) {
		if !stays {
			value = nil
		}
		c.entries = append(c.entries, entry{c.keep(key), value})
	}
	posted := func(prefix func([]byte) []byte) {
		put(posting, func(b []byte) []byte { return appendPlace(prefix(b), a.Event.CreatedAt, a.id) })
	}
	event := c.keep(func(b []byte) []byte { return append(p.append(b), a.Raw...) })
	put(event, func(b []byte) []byte { return appendPlace(append(b, tableEvent), a.Event.CreatedAt, a.id) })
	if p.expiry != 0 {
		put(nothing, func(b []byte) []byte { return append(b, keyExpiry(p.expiry, a.id)...) })
	}
	posted(func(b []byte) []byte { return appendAuthor(b, a.author) })
	posted(func(b []byte) []byte { return appendKind(b, p.kind) })
	for _, tag := range a.Event.Tags {
		if len(tag) >= 2 && isIndexedTag(tag[0]) {
			posted(func(b []byte) []byte { return appendTag(b, tag[0][0], tag[1]) })
		}
	}
}

// keep appends to the arena, and returns what was appended.
func (c *change) keep(build func([]byte) []byte) []byte {
	from := len(c.arena)
	c.arena = build(c.arena)
	return c.arena[from:len(c.arena):len(c.arena)]
}
