package eventdb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nbd-wtf/go-nostr"
)

// View is a consistent snapshot of the index: it stays at one sequence of the log however the index
// moves on. It is safe for concurrent use, and must be closed.
type View struct {
	db          *DB
	snap        *pebble.Snapshot // nil: the index is closed
	reads       getter           // snap, or what answers in its place
	seq, count  uint64
	now         nostr.Timestamp
	keepDeleted bool
	within      int // steps that a query may take; 0: no bound
	yield       func(context.Context) error
	err         error
}

// Entry is what an index entry tells of an event: where it stands in time, which is all that
// reconciliation needs (NIP-77), and its kind.
type Entry struct {
	CreatedAt nostr.Timestamp
	ID        [32]byte
	Kind      int
}

// EntryOf is the entry that an event has. An error: its id is none.
func EntryOf(ev *nostr.Event) (Entry, error) {
	eid, err := parseID(ev.ID)
	return Entry{CreatedAt: ev.CreatedAt, ID: eid, Kind: ev.Kind}, err
}

// Compare sorts newest first, and by id among equals: the order of answers, and of which event of
// an address takes the place of which (NIP-01).
func (e Entry) Compare(o Entry) int {
	return cmp.Or(cmp.Compare(o.CreatedAt, e.CreatedAt), bytes.Compare(e.ID[:], o.ID[:]))
}

// View takes a snapshot. It never fails: a view of a closed index answers everything with
// [ErrClosed].
func (db *DB) View() *View {
	if !db.enter() {
		return &View{reads: nothing{}, err: ErrClosed}
	}
	snap := db.snapshot()
	v := &View{db: db, snap: snap.Snapshot, reads: snap, now: db.now(), keepDeleted: db.keepDeleted}
	// The sequence is read from the snapshot itself, so that the two cannot differ.
	if v.seq, v.err = readUint(snap, metaSeq); v.err == nil {
		v.count, v.err = readUint(snap, metaCount)
	}
	return v
}

// nothing is what a view of a closed index reads.
type nothing struct{}

func (nothing) Get([]byte) ([]byte, io.Closer, error) { return nil, nil, ErrClosed }

// Within returns the same view with a bound on what one query may cost: after so many steps over
// index entries it ends with [ErrTooBroad]. To load an event, as an answer or to check it, counts
// as eight, and one more for every half KiB that it has; to decode it as one for every 64 bytes.
// What was given until then stands. Strangers' filters are answered so, because some match next to
// nothing and still have to be compared with everything. Only the view that this was made from is
// to be closed.
func (v *View) Within(steps int) *View {
	bounded := *v
	bounded.within = steps
	return &bounded
}

// Yielding returns the same view with a function that each query calls every few hundred steps, so
// that it can let others go first. Its error ends the query; it replaces the look at the context.
// Only the view that this was made from must be closed.
func (v *View) Yielding(yield func(context.Context) error) *View {
	yielding := *v
	yielding.yield = yield
	return &yielding
}

// Close releases the snapshot.
func (v *View) Close() error {
	if v.snap == nil {
		return nil
	}
	err := errors.Join(v.snap.Close(), v.db.leave())
	if err != nil {
		return fmt.Errorf("close view: %w", err)
	}
	return nil
}

// Seq is the log sequence that the view shows.
func (v *View) Seq() uint64 { return v.seq }

// Len is the number of events stored, expired ones that were not swept out yet included.
func (v *View) Len() (uint64, error) { return v.count, v.err }

// Event returns the event with this id (64 hex digits). [ErrNotFound]: there is none, or it has
// expired, or no event can have such an id.
func (v *View) Event(eventID string) (*nostr.Event, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return nil, ErrNotFound
	}
	p, ev, err := load(v.reads, eid)
	if err != nil {
		return nil, err
	}
	if v.expired(p) {
		return nil, ErrNotFound
	}
	return ev, nil
}

// Has reports whether an event with this id is stored and has not expired. What is no id has none.
func (v *View) Has(eventID string) (bool, error) {
	_, err := v.Kind(eventID)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Kind returns the kind of the event with this id, without loading it; [ErrNotFound] as for
// [View.Event].
func (v *View) Kind(eventID string) (int, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return 0, ErrNotFound
	}
	p, err := postingOf(v.reads, eid)
	if err != nil {
		return 0, err
	}
	if v.expired(p) {
		return 0, ErrNotFound
	}
	return int(p.kind), nil
}

// Replaceable returns the event that holds a coordinate: of a replaceable kind (d is ignored) or an
// addressable one. [ErrNotFound]: nobody does, or the kind is neither, or nobody can have such a
// key.
func (v *View) Replaceable(kind int, pubkey, d string) (*nostr.Event, error) {
	holder, held, err := v.Holder(kind, pubkey, d)
	if err != nil {
		return nil, err
	}
	if !held {
		return nil, ErrNotFound
	}
	p, ev, err := load(v.reads, holder.ID)
	if err == nil && v.expired(p) {
		return nil, ErrNotFound
	}
	return ev, err
}

// Holder returns what older events of a coordinate give way to, whether or not it can still be
// read: an event whose time is over holds its coordinate until a newer one takes it. So what
// follows from it follows from the log alone, and not from the clock. held is false where
// Replaceable finds nobody for any other reason.
func (v *View) Holder(kind int, pubkey, d string) (holder Entry, held bool, err error) {
	author, err := parseID(pubkey)
	if err != nil {
		return Entry{}, false, nil
	}
	at, ok := coordinateOf(kind, author, d)
	if !ok {
		return Entry{}, false, nil
	}
	value, closer, err := v.reads.Get(at.key(tableHolder))
	if errors.Is(err, pebble.ErrNotFound) {
		return Entry{}, false, nil
	}
	if err != nil {
		return Entry{}, false, fmt.Errorf("look up coordinate: %w", err)
	}
	holder = placeOf(value[:placeLen])
	holder.Kind = kind
	if err := closer.Close(); err != nil {
		return Entry{}, false, fmt.Errorf("look up coordinate: %w", err)
	}
	return holder, true, nil
}

// Deleted reports whether a stored deletion request of the event's author covers it, by its id or
// by its address up to the request's time. The event itself need not be known.
func (v *View) Deleted(ev *nostr.Event) (bool, error) {
	eid, err := parseID(ev.ID)
	if err != nil {
		return false, err
	}
	author, err := parseID(ev.PubKey)
	if err != nil {
		return false, err
	}
	return isDeleted(v.reads, v.keepDeleted, ev, eid, author)
}

// Query returns the events that match, newest first and by id among equals, at most f.Limit of them
// if that is not 0 (none if f.LimitZero). They are loaded one by one as they are asked for.
// f.Search matches nothing: there is no text index.
func (v *View) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return answers(func(give func(*nostr.Event) bool) error {
		s := v.scanner(ctx, f)
		return s.scan(func(m match) (bool, error) {
			err := s.load(&m)
			return err == nil && give(m.event), err
		})
	})
}

// QueryRaw is Query with the JSON as logged, for those who pass it on. The bytes are valid until
// the next step.
func (v *View) QueryRaw(ctx context.Context, f nostr.Filter) iter.Seq2[[]byte, error] {
	return answers(func(give func([]byte) bool) error {
		s, raw := v.scanner(ctx, f), []byte(nil)
		return s.scan(func(m match) (more bool, err error) {
			raw, err = s.read(m, raw[:0])
			return err == nil && give(raw), err
		})
	})
}

// IDs is Query without the events: where an index alone answers the filter, it loads none.
func (v *View) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[Entry, error] {
	return answers(func(give func(Entry) bool) error {
		return v.scanner(ctx, f).scan(func(m match) (bool, error) { return give(m.entry), nil })
	})
}

// answers makes an iterator of a scan that gives its answers one by one. An error is the last
// answer, unless nobody listens any more.
func answers[T any](scan func(give func(T) bool) error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		stopped := false
		err := scan(func(answer T) bool {
			stopped = !yield(answer, nil)
			return !stopped
		})
		if err != nil && !stopped {
			var none T
			yield(none, err)
		}
	}
}

// Count is how many events match, at most f.Limit if that is not 0.
func (v *View) Count(ctx context.Context, f nostr.Filter) (int, error) {
	n := 0
	err := v.scanner(ctx, f).scan(func(match) (bool, error) { n++; return true, nil })
	return n, err
}

// expired: NIP-40 counts the second of the expiration as still alive.
func (v *View) expired(p posting) bool { return p.expiry != 0 && p.expiry < v.now }
