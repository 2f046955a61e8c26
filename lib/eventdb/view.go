package eventdb

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

// View is a consistent snapshot of the index: it stays at one sequence of the log however the index
// moves on. It is safe for concurrent use, and must be closed.
type View struct {
	db     *DB
	snap   *pebble.Snapshot // nil: the index is closed
	reads  reader
	now    nostr.Timestamp
	hidden *hidden // nil: nothing is
	within int     // steps that a query may take; 0: no bound
	yield  func(context.Context) error
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
	v := &View{db: db, now: db.opts.Now()}
	if db.enter() {
		v.snap = db.pebble.NewSnapshot()
		v.reads = reader{v.snap, db.sieve}
	}
	v.hidden = db.hidden.Load() // after the snapshot: what is in it and banned is among them
	return v
}

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

// All returns the same view with the events that bans hide. Only the view that this was made from
// must be closed.
func (v *View) All() *View {
	all := *v
	all.hidden = nil
	return &all
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

// Seq is the log sequence that the view shows. It is read from the snapshot itself, so that the two
// cannot differ; 0 if that fails, as every query will.
func (v *View) Seq() uint64 {
	seq, _ := readUint(v.reads, metaSeq)
	return seq
}

// Event returns the event with this id (64 hex digits). [ErrNotFound]: there is none, or it has
// expired, or no event can have such an id.
func (v *View) Event(eventID string) (*nostr.Event, error) {
	eid, at, err := v.find(eventID)
	if err != nil {
		return nil, err
	}
	return loadAt(v.reads, at.created, eid)
}

// Kind returns the kind of the event with this id, without loading it; [ErrNotFound] as for
// [View.Event].
func (v *View) Kind(eventID string) (int, error) {
	_, at, err := v.find(eventID)
	return int(at.kind), err
}

// find looks an event up that has not expired.
func (v *View) find(eventID string) (eid id, at located, err error) {
	if eid, err = parseID(eventID); err != nil {
		return eid, at, ErrNotFound
	}
	at, found, err := lookUp(v.reads, eid)
	if _, hidden := v.hidden.find(eid); err == nil && (!found || hidden || at.expired(v.now)) {
		err = ErrNotFound
	}
	return eid, at, err
}

// Replaceable returns the event that holds a coordinate: of a replaceable kind (d is ignored) or an
// addressable one. [ErrNotFound]: there is none, or the kind is neither, or there is no such key.
func (v *View) Replaceable(kind int, pubkey, d string) (*nostr.Event, error) {
	holder, held, err := v.Holder(kind, pubkey, d)
	if err != nil {
		return nil, err
	}
	if _, hidden := v.hidden.find(holder.ID); hidden || !held {
		return nil, ErrNotFound
	}
	ev, err := loadAt(v.reads, holder.CreatedAt, holder.ID)
	if err == nil && postingOf(ev).expired(v.now) {
		return nil, ErrNotFound
	}
	return ev, err
}

// Holder returns what keeps older events from a coordinate, whether or not it can still be read: an
// event whose time is over holds its coordinate until a newer one takes it. So what follows from it
// follows from the log alone, and not from the clock. held is false where Replaceable finds nothing
// for any other reason.
func (v *View) Holder(kind int, pubkey, d string) (e Entry, held bool, err error) {
	author, err := parseID(pubkey)
	if err != nil {
		return Entry{}, false, nil
	}
	at, ok := coordinateOf(kind, author, d)
	if !ok {
		return Entry{}, false, nil
	}
	e, held, err = holderOf(v.reads, at)
	e.Kind = kind
	return e, held, err
}

// Deleted reports whether a stored deletion request of the event's author covers it, by its id or
// by its address up to the request's time. The event itself need not be known.
func (v *View) Deleted(ev *nostr.Event) (bool, error) {
	eid, author, err := namesOf(ev)
	if err != nil {
		return false, err
	}
	return isDeleted(v.reads, v.db.opts.KeepDeleted, ev, eid, author)
}

// Query returns the events that match, newest first and by id among equals, at most f.Limit of them
// if that is not 0 (none if f.LimitZero). They are loaded one by one as they are asked for.
// f.Search matches nothing: there is no text index.
func (v *View) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return answers(v, ctx, f, func(s *scanner, m *match) (*nostr.Event, error) {
		err := s.decode(m)
		return m.event, err
	})
}

// Raw is an event as logged. Its bytes are valid until the next one is asked for.
type Raw struct {
	Entry
	JSON []byte
}

// QueryRaw is Query for those who pass the events on: nothing is decoded.
func (v *View) QueryRaw(ctx context.Context, f nostr.Filter) iter.Seq2[Raw, error] {
	return answers(v, ctx, f, func(s *scanner, m *match) (Raw, error) {
		err := s.read(m)
		return Raw{m.Entry, m.raw}, err
	})
}

// IDs is Query without the events: where an index alone answers the filter, it loads none.
func (v *View) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[Entry, error] {
	return answers(v, ctx, f, func(_ *scanner, m *match) (Entry, error) { return m.Entry, nil })
}

// answers makes an iterator of a scan. An error is the last answer.
func answers[T any](v *View, ctx context.Context, f nostr.Filter, read func(*scanner, *match) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		s, stopped := v.scanner(ctx, f), false
		err := s.scan(func(m *match) (more bool, err error) {
			answer, err := read(s, m)
			if err != nil {
				return false, err
			}
			stopped = !yield(answer, nil)
			return !stopped, nil
		})
		if err = errors.Join(err, s.close()); err != nil && !stopped {
			var none T
			yield(none, err)
		}
	}
}

// ErrTooMany is the error of [View.Packed] when more events match than the caller takes. Nothing was
// kept; a filter of a shorter time matches fewer.
var ErrTooMany = errors.New("too many events match the filter")

// Packed gathers what matches a filter, for reconciliation. [ErrTooMany]: more than most do.
func (v *View) Packed(ctx context.Context, f nostr.Filter, most int) (reconcile.Packed, error) {
	var items []reconcile.Item
	if f.Limit == 0 || f.Limit > most {
		f.Limit = most + 1
	}
	for e, err := range v.IDs(ctx, f) {
		if err != nil {
			return nil, err
		}
		items = append(items, reconcile.Item{CreatedAt: e.CreatedAt, ID: e.ID})
	}
	if len(items) > most {
		return nil, ErrTooMany
	}
	return slices.Clip(reconcile.Pack(items)), nil
}

// HasEach reports of each id whether such an event is stored and has not expired, as the index stands
// now. It needs no snapshot.
func (db *DB) HasEach(ids [][32]byte) (has []bool, err error) {
	if !db.enter() {
		return nil, ErrClosed
	}
	defer func() { err = errors.Join(err, db.leave()) }()
	has = make([]bool, len(ids))
	r, now := reader{db.pebble, db.sieve}, db.opts.Now()
	for n, eid := range ids {
		at, found, err := lookUp(r, eid)
		if err != nil {
			return nil, err
		}
		has[n] = found && !at.expired(now)
	}
	return has, nil
}
