package eventdb

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/reconcile"
)

// change is what one Apply does. Nothing is written before all of it is known: an event that comes
// and goes within one change leaves no trace.
type change struct {
	db *DB
	// told is what the change says about identities, coordinates and deletion requests, which the
	// records after it must see; nil: no more.
	told    map[string][]byte
	added   []addition // in the order of the log
	removed []addition // stored by earlier changes
	count   uint64
	arena   []byte // holds packed events and their postings
	// going and coming are what is written: what goes comes first, for the same event may go and
	// come again.
	going, coming entries
	came, went    []move // what this means for the kept sums
	batch         *pebble.Batch
}

// keptBatch is how many bytes the batch may have that is kept for the next change. Those of a large
// sync have up to about that much, several times a second.
const keptBatch = 2 << 20

// addition is an event that is stored.
type addition struct {
	Record
	eid, author id
	packed      []byte
	gone        bool // removed by the same change; subscribers never hear of it
}

// newChange makes an empty change out of the last one, whose room it uses again.
func (db *DB) newChange() *change {
	c := &db.change
	if c.told == nil {
		c.db, c.told = db, map[string][]byte{}
	}
	clear(c.told)
	clear(c.added)
	clear(c.removed)
	c.added, c.removed, c.arena, c.count = c.added[:0], c.removed[:0], c.arena[:0], db.count
	c.going.reset()
	c.coming.reset()
	return c
}

// Get reads identities, coordinates, deletion requests and events as this change leaves them.
func (c *change) Get(key []byte) ([]byte, io.Closer, error) {
	if isSieved(key) {
		if !c.db.sieve.Load().mayHold(key) {
			return nil, nil, pebble.ErrNotFound
		}
		if value, ok := c.told[string(key)]; ok && value == nil {
			return nil, nil, pebble.ErrNotFound
		} else if ok {
			return value, io.NopCloser(nil), nil
		}
	}
	if key[0] == tableEvent {
		if a := c.find(binary.BigEndian.Uint64(key[1:])); a != nil {
			return a.packed, io.NopCloser(nil), nil
		}
	}
	return c.db.pebble.Get(key)
}

// find returns the event that this change has stored at seq; nil if there is none.
func (c *change) find(seq uint64) *addition {
	n, ok := slices.BinarySearchFunc(c.added, seq, func(a addition, seq uint64) int { return cmp.Compare(a.Seq, seq) })
	if !ok {
		return nil
	}
	return &c.added[n]
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
	from := len(c.arena)
	c.arena = pack(c.arena, r.Raw)
	a := addition{Record: r, eid: eid, author: author, packed: c.arena[from:len(c.arena):len(c.arena)]}
	c.added = append(c.added, a)
	key, value := keyID(eid), len(c.arena)
	c.arena = a.posting().append(c.arena)
	c.set(key[:], c.arena[value:len(c.arena):len(c.arena)])
	c.count++
}

func (a *addition) posting() posting {
	return posting{seq: a.Seq, kind: uint16(a.Event.Kind), expiry: Expiration(a.Event)}
}

// removeStored takes the event at seq and all its index entries away. The holder of its coordinate
// is the caller's business.
func (c *change) removeStored(seq uint64) error {
	a := c.find(seq)
	if a != nil {
		a.gone = true
	} else {
		ev, err := loadAt(c, seq)
		if err != nil {
			return err
		}
		eid, badID := parseID(ev.ID)
		author, badAuthor := parseID(ev.PubKey)
		if err := errors.Join(badID, badAuthor); err != nil {
			return err
		}
		c.removed = append(c.removed, addition{Record: Record{Seq: seq, Event: ev}, eid: eid, author: author})
		a = &c.removed[len(c.removed)-1]
	}
	key := keyID(a.eid)
	c.set(key[:], nil)
	c.count--
	return nil
}

// commit writes the change and makes it known.
func (c *change) commit(seq uint64) error {
	if c.batch == nil {
		c.batch = c.db.pebble.NewBatch(pebble.WithMaxRetainedSizeBytes(keptBatch))
	}
	b := c.batch
	err := c.write(b, seq)
	if err == nil {
		err = b.Commit(pebble.NoSync)
	}
	if err != nil {
		c.batch = nil // Pebble may have it still
		return fmt.Errorf("apply: %w", err)
	}
	b.Reset()
	stored := make([]Record, 0, len(c.added))
	for i := range c.added {
		if a := &c.added[i]; !a.gone {
			stored = append(stored, a.Record)
		}
	}
	c.addUp()
	c.db.publish(seq, c.count, stored)
	return nil
}

// addUp brings the kept sums up to date.
func (c *change) addUp() {
	came, went := c.came[:0], c.went[:0]
	for i := range c.added {
		if a := &c.added[i]; !a.gone {
			came = a.move(came)
		}
	}
	for i := range c.removed {
		went = c.removed[i].move(went)
	}
	c.came, c.went = came, went
	if len(came)+len(went) > 0 {
		c.db.sums.Load().apply(c.db.pebble, came, went)
	}
}

// move appends where an event stands for reconciliation, if it has a place there.
func (a *addition) move(to []move) []move {
	i := reconcile.Item{CreatedAt: a.Event.CreatedAt, ID: a.eid}
	if !reconcile.Everything.Holds(i) {
		return to
	}
	return append(to, move{uint16(a.Event.Kind), i})
}

func (c *change) write(b *pebble.Batch, seq uint64) error {
	going, coming := &c.going, &c.coming
	for i := range c.removed {
		going.event(&c.removed[i])
	}
	for i := range c.added {
		if a := &c.added[i]; !a.gone {
			coming.event(a)
		}
	}
	for key, value := range c.told {
		if value == nil {
			going.copied(key, nil)
		} else {
			coming.copied(key, value)
		}
	}
	coming.add(metaSeq, binary.BigEndian.AppendUint64(nil, seq))
	coming.add(metaCount, binary.BigEndian.AppendUint64(nil, c.count))
	return errors.Join(
		going.each(func(key, _ []byte) error { return b.Delete(key, nil) }),
		coming.each(func(key, value []byte) error { return b.Set(key, value, nil) }))
}
