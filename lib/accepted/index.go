package accepted

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/proto"
)

// Index answers from the index of this process.
type Index struct {
	DB   *eventdb.DB
	head *bus.Head
}

// NewIndex is for an index that follows the log of that bus.
func NewIndex(db *eventdb.DB, b *bus.Bus) *Index {
	return &Index{DB: db, head: b.Head(proto.StreamEvents, db.WaitFor)}
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
func (x *Index) IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error] {
	return func(yield func([32]byte, error) bool) {
		view := x.DB.View()
		defer view.Close()
		for e, err := range view.IDs(ctx, f) {
			if !yield(e.ID, err) {
				return
			}
		}
	}
}

// Hear implements [Source].
func (x *Index) Hear(kinds []int, fn func([]eventdb.Record)) Hearing {
	stop := x.DB.Subscribe(func(recs []eventdb.Record) {
		recs = slices.DeleteFunc(slices.Clone(recs), func(r eventdb.Record) bool { return !slices.Contains(kinds, r.Event.Kind) })
		if len(recs) > 0 {
			fn(recs)
		}
	})
	return &indexHearing{x, stop}
}

type indexHearing struct {
	*Index
	stop func()
}

func (h *indexHearing) Run(ctx context.Context) error {
	<-ctx.Done()
	h.stop()
	return nil
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
	f := q.Filter
	limit, none := f.Limit, f.LimitZero
	f.Limit, f.LimitZero = 0, false // it counts what comes after the place
	if none || limit < 0 {
		a.Seq = x.DB.Seq()
		return a, nil
	}
	if after := q.After; after != nil {
		until := after.CreatedAt
		if f.Until == nil || *f.Until > until {
			f.Until = &until
		}
	}
	view := x.DB.View()
	defer view.Close()
	a.Seq = view.Seq()
	p := &page{answer: &a, limit: limit, idsOnly: q.IDsOnly}
	if q.IDsOnly {
		for e, err := range view.IDs(ctx, f) {
			if err != nil {
				return a, fmt.Errorf("read the index: %w", err)
			}
			if !isBehind(q.After, e.CreatedAt, fmt.Sprintf("%x", e.ID[:])) {
				continue
			}
			if !p.addID(e) {
				break
			}
		}
		return a, nil
	}
	for ev, err := range view.Query(ctx, f) {
		if err != nil {
			return a, fmt.Errorf("read the index: %w", err)
		}
		if !isBehind(q.After, ev.CreatedAt, ev.ID) {
			continue
		}
		raw, err := ev.MarshalJSON()
		if err != nil {
			return a, fmt.Errorf("write event %s: %w", ev.ID, err)
		}
		if !p.add(ev, raw) {
			break
		}
	}
	return a, nil
}

// isBehind reports whether an event is behind a place in the order of answers.
func isBehind(after *proto.Place, at nostr.Timestamp, id string) bool {
	return after == nil || at < after.CreatedAt || at == after.CreatedAt && id > after.ID
}

// page is an answer that is being filled.
type page struct {
	answer  *proto.EventsAnswer
	last    proto.Place
	limit   int // 0: none
	count   int
	bytes   int
	idsOnly bool
}

// full notes whether more is to come behind what the page has, and reports whether it has room.
func (p *page) full(next int) bool {
	if p.limit > 0 && p.count == p.limit {
		return true
	}
	most := proto.MaxQueriedBytes
	if p.idsOnly {
		most = 32 * proto.MaxQueriedIDs
	}
	if p.count > 0 && p.bytes+next > most {
		after := p.last
		p.answer.After = &after
		return true
	}
	p.count, p.bytes = p.count+1, p.bytes+next
	return false
}

func (p *page) add(ev *nostr.Event, raw []byte) (more bool) {
	if p.full(len(raw)) {
		return false
	}
	p.answer.Events = append(p.answer.Events, raw)
	p.last = proto.Place{CreatedAt: ev.CreatedAt, ID: ev.ID}
	return true
}

func (p *page) addID(e eventdb.Entry) (more bool) {
	if p.full(len(e.ID)) {
		return false
	}
	p.answer.IDs = append(p.answer.IDs, e.ID[:]...)
	p.last = proto.Place{CreatedAt: e.CreatedAt, ID: fmt.Sprintf("%x", e.ID[:])}
	return true
}
