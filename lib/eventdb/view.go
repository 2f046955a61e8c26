package eventdb

import (
	"context"
	"errors"
	"iter"
	"slices"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/reconcile"
)

// View is a consistent snapshot of the index: it stays at one sequence of the log however the index
// moves on. But what is banned later is hidden at once. It is safe for concurrent use, and must be
// closed.
type View struct {
	db     *DB
	reads  reader // of a snapshot, or of nothing: the index is closed
	now    nostr.Timestamp
	hidden *hidden // when it was made; never nil
	hides  func() *hidden
	within int // steps that a query may take; 0: no bound
	yield  func(context.Context) error
}

// View takes a snapshot. It never fails: a view of a closed index answers everything with
// [ErrClosed].
func (db *DB) View() *View {
	v := &View{db: db, now: db.opts.Now(), hides: db.hidden.Load}
	if db.enter() {
		v.reads = reader{db.pebble.NewSnapshot(), db.keyFilter}
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
	all.hidden = &hidden{}
	all.hides = func() *hidden { return all.hidden }
	return &all
}

// Close releases the snapshot.
func (v *View) Close() error {
	if v.reads.Reader == nil {
		return nil
	}
	return errors.Join(v.reads.Close(), v.db.leave())
}

// Seq is the log sequence that the view shows. It is read from the snapshot itself, so that the two
// cannot differ; 0 if that fails, as every query will.
func (v *View) Seq() uint64 {
	seq, _, _ := readUint(v.reads, metaSeq)
	return seq
}

// Moment names what an index shows: how far it has applied the log, and what bans hide. Where two
// are equal the same is shown, but for what has expired meanwhile.
type Moment struct {
	seq    uint64
	hidden *hidden
}

// Moment is what the index shows now.
func (db *DB) Moment() Moment { return Moment{db.Seq(), db.hidden.Load()} }

// Moment is what the view shows.
func (v *View) Moment() Moment { return Moment{v.Seq(), v.hidden} }

// Event returns the event with this id (64 hex digits). [ErrNotFound]: there is none, or it has
// expired, or no event can have such an id.
func (v *View) Event(eventID string) (*nostr.Event, error) {
	e, err := v.find(eventID)
	if err != nil {
		return nil, err
	}
	return v.reads.load(e)
}

// Kind returns the kind of the event with this id, without loading it; [ErrNotFound] as for
// [View.Event].
func (v *View) Kind(eventID string) (int, error) {
	e, err := v.find(eventID)
	return e.Kind, err
}

// find looks an event up that is served.
func (v *View) find(eventID string) (Entry, error) {
	eid, err := parseID(eventID)
	if err != nil {
		return Entry{}, ErrNotFound
	}
	e, found, err := v.reads.lookUp(eid)
	if err == nil && !(found && v.serves(e)) {
		err = ErrNotFound
	}
	return e, err
}

// serves is false for what has expired, or is hidden or was when the view was made: what was banned
// and removed since is not among what is hidden now.
func (v *View) serves(e Entry) bool {
	_, hid := (*v.hidden)[e.ID]
	_, hides := (*v.hides())[e.ID]
	return !hid && !hides && !e.expired(v.now)
}

// Replaceable returns the event that holds a coordinate: of a replaceable kind (d is ignored) or an
// addressable one. [ErrNotFound]: there is none, or the kind is neither, or there is no such key.
func (v *View) Replaceable(kind int, pubkey, d string) (*nostr.Event, error) {
	holder, held, err := v.Holder(kind, pubkey, d)
	if err != nil {
		return nil, err
	}
	if !held || !v.serves(holder) {
		return nil, ErrNotFound
	}
	ev, err := v.reads.load(holder)
	if err == nil && (Entry{Expires: Expiration(ev)}).expired(v.now) {
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
	at := coordinateOf(kind, author, d)
	if err != nil || at == nil {
		return Entry{}, false, nil
	}
	return v.reads.holder(at)
}

// Deleted reports whether a stored deletion request of the event's author covers it, by its id or
// by its address up to the request's time. The event itself need not be known.
func (v *View) Deleted(ev *nostr.Event) (bool, error) {
	e, author, err := namesOf(ev)
	if err != nil {
		return false, err
	}
	return v.reads.isDeleted(ev, e, author)
}

// Query returns the events that match, newest first and by id among equals, at most f.Limit of them
// if that is not 0 (none if f.LimitZero). They are loaded one by one as they are asked for.
// f.Search matches nothing: there is no text index.
func (v *View) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return answers(v.scanner(ctx, f), decoded)
}

func decoded(s *scanner, m *match) (*nostr.Event, error) {
	err := s.decode(m)
	return m.event, err
}

// Listing returns the announcements of an identifier that list a key as maintainer, the newest first;
// with "" those of all identifiers, one identifier after the other.
func (v *View) Listing(ctx context.Context, key, identifier string) iter.Seq2[*nostr.Event, error] {
	p := plan{empty: true}
	if listed, err := parseID(key); err == nil {
		p = plan{conditions: [][][]byte{{appendListed(nil, listed, identifier)}}}
	}
	return answers(func() *scanner { return &scanner{view: v, ctx: ctx, plan: p} }, decoded)
}

// Raw is an event as logged. Its bytes are valid until the next one is asked for.
type Raw struct {
	Entry
	JSON []byte
}

// QueryRaw is Query for those who pass the events on: nothing is decoded.
func (v *View) QueryRaw(ctx context.Context, f nostr.Filter) iter.Seq2[Raw, error] {
	return answers(v.scanner(ctx, f), func(s *scanner, m *match) (Raw, error) {
		err := s.read(m)
		return Raw{m.Entry, m.raw}, err
	})
}

// IDs is Query without the events: where an index alone answers the filter, it loads none.
func (v *View) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[Entry, error] {
	return answers(v.scanner(ctx, f), func(_ *scanner, m *match) (Entry, error) { return m.Entry, nil })
}

// answers makes an iterator of scans that are begun in this way. An error is the last answer.
func answers[T any](begin func() *scanner, read func(*scanner, *match) (T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		s, stopped := begin(), false
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

// ErrTooMany is the error of [View.Packed] when more events match than the caller takes. Nothing
// was kept; a filter of a shorter time matches fewer.
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

// HasEach reports of each id whether such an event is stored and has not expired, as the index
// stands now. It needs no snapshot.
func (db *DB) HasEach(ids [][32]byte) (has []bool, err error) {
	if !db.enter() {
		return nil, ErrClosed
	}
	defer func() { err = errors.Join(err, db.leave()) }()
	has = make([]bool, len(ids))
	r, now := reader{db.pebble, db.keyFilter}, db.opts.Now()
	for n, eid := range ids {
		e, found, err := r.lookUp(eid)
		if err != nil {
			return nil, err
		}
		has[n] = found && !e.expired(now)
	}
	return has, nil
}
