package query

import (
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Index answers from the index of this process.
type Index struct {
	DB   *eventdb.DB
	js   jetstream.JetStream
	head *bus.Head
}

// NewIndex is for an index that follows the log of that bus.
func NewIndex(db *eventdb.DB, b *bus.Bus) *Index {
	return &Index{DB: db, js: b.JS, head: b.Head(proto.StreamEvents, db.WaitFor)}
}

// Seq implements [Source].
func (x *Index) Seq() uint64 { return x.DB.Seq() }

// CatchUp implements [Source].
func (x *Index) CatchUp(ctx context.Context) error { return x.head.Read(ctx) }

// Reached implements [Source].
func (x *Index) Reached(ctx context.Context, seq uint64) error { return x.DB.WaitFor(ctx, seq) }

// Has implements [Source].
func (x *Index) Has(_ context.Context, ids [][32]byte) ([]bool, error) { return x.DB.HasEach(ids) }

// Query implements [Source].
func (x *Index) Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error] {
	return func(yield func(*nostr.Event, error) bool) {
		view := x.DB.View()
		defer view.Close()
		view.Query(ctx, f)(yield)
	}
}

// IDs implements [Source].
func (x *Index) IDs(ctx context.Context, filters ...nostr.Filter) iter.Seq2[Found, error] {
	return func(yield func(Found, error) bool) {
		view := x.DB.View()
		defer view.Close()
		for n, f := range filters {
			for e, err := range view.IDs(ctx, f) {
				if !yield(Found{n, e.ID}, err) {
					return
				}
			}
		}
	}
}

// Hear implements [Source].
func (x *Index) Hear(kinds []int, fn func([]eventdb.Record)) Hearing {
	return hear(x.js, x, x.DB.Seq(), kinds, fn)
}

// known answers a question of the bus about ids.
func (x *Index) known(q proto.KnownQuery) (a proto.KnownAnswer, err error) {
	if len(q.IDs)%32 != 0 || len(q.IDs) > 32*proto.MaxKnownIDs {
		return a, fmt.Errorf("%w: %d bytes of ids; want 32 for each of at most %d", errQuestion, len(q.IDs), proto.MaxKnownIDs)
	}
	a.Seq = x.DB.Seq()
	ids := make([][32]byte, 0, len(q.IDs)/32)
	for id := range slices.Chunk(q.IDs, 32) {
		ids = append(ids, [32]byte(id))
	}
	has, err := x.DB.HasEach(ids)
	if err != nil {
		return a, fmt.Errorf("read the index: %w", err)
	}
	a.Known = make([]byte, (len(has)+7)/8)
	for n, known := range has {
		if known {
			a.Known[n/8] |= 1 << (n % 8)
		}
	}
	return a, nil
}

// page answers a question of the bus for events, or for their ids.
func (x *Index) page(ctx context.Context, q proto.EventsQuery) (a proto.EventsAnswer, err error) {
	if len(q.Filters) > proto.MaxQueriedFilters {
		return a, fmt.Errorf("%w: %d filters; want at most %d", errQuestion, len(q.Filters), proto.MaxQueriedFilters)
	}
	view := x.DB.View()
	defer view.Close()
	a.Seq = view.Seq()
	p := &page{answer: &a, view: view, idsOnly: q.IDsOnly}
	after := q.After
	for _, f := range q.Filters {
		a.Counts = append(a.Counts, 0)
		whole, err := p.of(ctx, f, after)
		if err != nil {
			return a, fmt.Errorf("read the index: %w", err)
		}
		if !whole {
			break
		}
		after = nil
	}
	return a, nil
}

// page is an answer that is being filled.
type page struct {
	answer  *proto.EventsAnswer
	view    *eventdb.View
	idsOnly bool
	count   int // of all filters
	bytes   int
}

// of adds the answers to a filter behind a place, and reports whether the page took all of them.
func (p *page) of(ctx context.Context, f nostr.Filter, after *proto.Place) (whole bool, err error) {
	limit := f.Limit
	if f.LimitZero || limit < 0 {
		return true, nil
	}
	f.Limit = 0 // it counts what comes after the place
	if after != nil && (f.Until == nil || *f.Until > after.CreatedAt) {
		f.Until = &after.CreatedAt
	}
	last, n := proto.Place{}, &p.answer.Counts[len(p.answer.Counts)-1]
	take := func(place proto.Place, size int, add func()) (more bool) {
		switch {
		case !isBehind(after, place):
			return true
		case limit > 0 && *n == limit:
			whole = true
			return false
		case !p.fits(size):
			if p.answer.After = after; *n > 0 {
				p.answer.After = &last
			}
			if p.answer.After == nil {
				p.answer.Counts = p.answer.Counts[:len(p.answer.Counts)-1] // the next page begins with it
			}
			return false
		}
		add()
		last, *n, p.count, p.bytes = place, *n+1, p.count+1, p.bytes+size
		return true
	}
	if p.idsOnly {
		return p.ids(ctx, f, take, &whole)
	}
	for ev, err := range p.view.Query(ctx, f) {
		if err != nil {
			return false, err
		}
		raw := nostr.Encode(ev) // no longer than what is stored, so that it fits on the bus too
		if !take(proto.Place{CreatedAt: ev.CreatedAt, ID: ev.ID}, len(raw), func() { p.answer.Events = append(p.answer.Events, raw) }) {
			return whole, nil
		}
	}
	return true, nil
}

func (p *page) ids(ctx context.Context, f nostr.Filter, take func(proto.Place, int, func()) bool, whole *bool) (bool, error) {
	for e, err := range p.view.IDs(ctx, f) {
		if err != nil {
			return false, err
		}
		place := proto.Place{CreatedAt: e.CreatedAt, ID: hex.EncodeToString(e.ID[:])}
		if !take(place, len(e.ID), func() { p.answer.IDs = append(p.answer.IDs, e.ID[:]...) }) {
			return *whole, nil
		}
	}
	return true, nil
}

// fits reports whether the page has room; for a single event it always has.
func (p *page) fits(size int) bool {
	most := proto.MaxQueriedBytes
	if p.idsOnly {
		most = 32 * proto.MaxQueriedIDs
	}
	return p.count == 0 || p.bytes+size <= most
}

// isBehind reports whether an event is behind a place in the order of answers.
func isBehind(after *proto.Place, at proto.Place) bool {
	return after == nil || at.CreatedAt < after.CreatedAt || at.CreatedAt == after.CreatedAt && at.ID > after.ID
}
