package query

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// Index answers from the index of this process.
type Index struct {
	DB *eventdb.DB
	js jetstream.JetStream
}

// NewIndex is for an index that follows the log of that bus.
func NewIndex(db *eventdb.DB, b *bus.Bus) *Index { return &Index{DB: db, js: b.JS} }

// Seq implements [Source].
func (x *Index) Seq() uint64 { return x.DB.Seq() }

// CatchUp implements [Source].
func (x *Index) CatchUp(ctx context.Context) error {
	last, err := bus.LastSeq(ctx, x.js, proto.StreamEvents)
	if err != nil {
		return err
	}
	return x.DB.WaitFor(ctx, last)
}

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
		ids(ctx, view, f)(func(e eventdb.Raw, err error) bool { return yield(e.ID, err) })
	}
}

// lagWait is how long a question waits for the log to be applied up to what it names, before
// another replica must be asked.
const lagWait = 250 * time.Millisecond

// Serve answers questions about accepted events until ctx ends, from when the index has read what
// the log had at the beginning.
func Serve(ctx context.Context, x *Index, conn *nats.Conn, log *slog.Logger) error {
	for err := x.CatchUp(ctx); err != nil; err = x.CatchUp(ctx) {
		log.Debug("the index is not ready to be asked", "error", err)
		if backoff.Sleep(ctx, lagWait) != nil {
			return nil
		}
	}
	return Answer(ctx, conn, log, proto.ServiceEvents, "accepted events",
		map[string]Answerer{proto.SubjectQueryEvents: Asked(x.answer)})
}

// answer answers a question once the index is where it wants it.
func (x *Index) answer(ctx context.Context, q proto.EventsQuery, send func(any) error) error {
	lag, cancel := context.WithTimeout(ctx, lagWait)
	defer cancel()
	if err := x.DB.WaitFor(lag, q.Seq); err != nil {
		return fmt.Errorf("%w: %w", errBehind, err)
	}
	a, err := x.page(ctx, q)
	if err != nil {
		return fmt.Errorf("read the index: %w", err)
	}
	return send(a)
}

// page makes one page of the answer to a question.
func (x *Index) page(ctx context.Context, q proto.EventsQuery) (a proto.EventsAnswer, err error) {
	view := x.DB.View()
	defer view.Close()
	a.Seq = view.Seq()
	f, limit := q.Filter, q.Filter.Limit
	if f.LimitZero || limit < 0 {
		return a, nil
	}
	f.Limit = 0 // it counts what comes after the place
	if q.After != nil && (f.Until == nil || *f.Until > q.After.CreatedAt) {
		f.Until = &q.After.CreatedAt
	}
	var last proto.PageCursor
	count, size := 0, 0
	matches := view.QueryRaw
	if q.IDsOnly {
		matches = func(ctx context.Context, f nostr.Filter) iter.Seq2[eventdb.Raw, error] { return ids(ctx, view, f) }
	}
	for m, err := range matches(ctx, f) {
		if err != nil {
			return a, err
		}
		at := proto.PageCursor{CreatedAt: m.CreatedAt, ID: hex.EncodeToString(m.ID[:])}
		if q.After != nil && at.CreatedAt == q.After.CreatedAt && at.ID <= q.After.ID {
			continue
		}
		if size += len(m.JSON); count > 0 && size > proto.MaxQueriedBytes || count == proto.MaxQueriedIDs {
			a.After = &last
			return a, nil
		}
		if q.IDsOnly {
			a.IDs = append(a.IDs, m.ID[:]...)
		} else {
			a.Events = append(a.Events, bytes.Clone(m.JSON))
		}
		last = at
		if count++; count == limit {
			break
		}
	}
	return a, nil
}

// ids returns what matches without its JSON. Of ids that are named it tells which are here, whether
// they are served or hidden by a ban: what is here need not be fetched.
func ids(ctx context.Context, view *eventdb.View, f nostr.Filter) iter.Seq2[eventdb.Raw, error] {
	if f.IDs != nil {
		view = view.All()
	}
	return func(yield func(eventdb.Raw, error) bool) {
		view.IDs(ctx, f)(func(e eventdb.Entry, err error) bool { return yield(eventdb.Raw{Entry: e}, err) })
	}
}
