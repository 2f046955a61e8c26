package eventdb

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// View is a consistent snapshot of the index: it stays at one sequence of the log however the index moves on. It is safe for concurrent use,
// and must be closed.
type View struct {
	snap        *pebble.Snapshot
	seq, count  uint64
	now         nostr.Timestamp
	keepDeleted bool
	within      int // steps that a query may take; 0: no bound
	err         error
}

// Entry is where an event stands in time: all that reconciliation needs (NIP-77).
type Entry struct {
	CreatedAt nostr.Timestamp
	ID        [32]byte
}

// View takes a snapshot.
func (db *DB) View() *View {
	v := &View{snap: db.pebble.NewSnapshot(), now: db.now(), keepDeleted: db.keepDeleted}
	// The sequence is read from the snapshot itself, so that the two cannot differ.
	if v.seq, v.err = readUint(v.snap, metaSeq); v.err == nil {
		v.count, v.err = readUint(v.snap, metaCount)
	}
	return v
}

// Within gives the same view with a bound on what one query may cost: after so many steps over index entries it ends with [ErrTooBroad]; an
// event that must be loaded to be checked counts as eight. What was found before is given. Strangers' filters are answered so, because some match
// next to nothing and still have to be compared with everything. Only the view that this was made from is to be closed.
func (v *View) Within(steps int) *View {
	bounded := *v
	bounded.within = steps
	return &bounded
}

// Close releases the snapshot.
func (v *View) Close() error { return v.snap.Close() }

// Seq is the log sequence that the view shows.
func (v *View) Seq() uint64 { return v.seq }

// Len is the number of events stored, expired ones that were not swept out yet included.
func (v *View) Len() (uint64, error) { return v.count, v.err }

// Event gives the event with this id (64 hex digits). [ErrNotFound]: there is none, or it has expired.
func (v *View) Event(eventID string) (*nostr.Event, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return nil, err
	}
	p, ev, err := load(v.snap, eid)
	if err != nil {
		return nil, err
	}
	if v.expired(p) {
		return nil, ErrNotFound
	}
	return ev, nil
}

// Has reports whether an event with this id is stored and has not expired.
func (v *View) Has(eventID string) (bool, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return false, err
	}
	p, ok, err := v.posting(eid)
	return ok && !v.expired(p), err
}

// Replaceable gives the event that holds a coordinate: of a replaceable kind (d is ignored) or an addressable one.
// [ErrNotFound]: nobody does, or the kind is neither.
func (v *View) Replaceable(kind int, pubkey, d string) (*nostr.Event, error) {
	author, err := parseID(pubkey)
	if err != nil {
		return nil, err
	}
	at, ok := coordinateOf(kind, author, d)
	if !ok {
		return nil, ErrNotFound
	}
	holder, closer, err := v.snap.Get(at.key(tableHolder))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("look up coordinate: %w", err)
	}
	eid := id(placeOf(holder[:placeLen]).ID)
	if err := closer.Close(); err != nil {
		return nil, fmt.Errorf("look up coordinate: %w", err)
	}
	p, ev, err := load(v.snap, eid)
	if err == nil && v.expired(p) {
		return nil, ErrNotFound
	}
	return ev, err
}

// Deleted reports whether a stored deletion request of the event's author covers it, by its id or by its address up to the request's
// time. The event itself need not be known.
func (v *View) Deleted(ev *nostr.Event) (bool, error) {
	eid, err := parseID(ev.ID)
	if err != nil {
		return false, err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return false, err
	}
	return isDeleted(v.snap, v.keepDeleted, ev, eid, author)
}

// Query gives the events that match, newest first and by id among equals, at most f.Limit of them if that is not 0 (none if f.LimitZero).
// They are loaded one by one as they are asked for. f.Search matches nothing: there is no text index.
func (v *View) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		err := v.scan(ctx, f, func(m match) (bool, error) {
			ev := m.event
			if ev == nil {
				var err error
				if ev, err = loadAt(v.snap, m.posting.seq); err != nil {
					return false, err
				}
			}
			return yield(ev, nil), nil
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// QueryRaw is Query with the JSON as logged, for those who pass it on. The bytes are valid until the next step.
func (v *View) QueryRaw(ctx context.Context, f nostr.Filter) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		err := v.scan(ctx, f, func(m match) (bool, error) {
			raw, closer, err := v.snap.Get(keyEvent(m.posting.seq))
			if err != nil {
				return false, fmt.Errorf("load event at %d: %w", m.posting.seq, err)
			}
			more := yield(raw, nil)
			return more, closer.Close()
		})
		if err != nil {
			yield(nil, err)
		}
	}
}

// IDs is Query without the events: where an index alone answers the filter, it loads none.
func (v *View) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := v.scan(ctx, f, func(m match) (bool, error) { return yield(m.entry, nil), nil }); err != nil {
			yield(Entry{}, err)
		}
	}
}

// Count is how many events match, at most f.Limit if that is not 0.
func (v *View) Count(ctx context.Context, f nostr.Filter) (int, error) {
	n := 0
	err := v.scan(ctx, f, func(match) (bool, error) { n++; return true, nil })
	return n, err
}

func (v *View) posting(eid id) (posting, bool, error) {
	value, closer, err := v.snap.Get(keyID(eid))
	if errors.Is(err, pebble.ErrNotFound) {
		return posting{}, false, nil
	}
	if err != nil {
		return posting{}, false, fmt.Errorf("look up event %x: %w", eid, err)
	}
	p, err := parsePosting(value)
	return p, err == nil, errors.Join(err, closer.Close())
}

// expired: NIP-40 counts the second of the expiration as still alive.
func (v *View) expired(p posting) bool { return p.expiry != 0 && p.expiry < v.now }
