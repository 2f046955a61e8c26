// Package query answers which of some ids are accepted, and which accepted events match a filter. A
// process with an index of the log asks that ([Index]). Any other asks ingest on the bus ([Remote],
// answered by [Serve]), and so keeps nothing of the log (docs/architecture.md, Asking without an
// index). With [Reconciler] it also asks ingest which of a relay's events are not known. It does
// not own the index, nor which events a ban hides: that is eventdb.
package query

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/backoff"
	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

var (
	// ErrNotFound is the answer where no such event is accepted. It is certain as of the sequence of
	// the log that the source has reached.
	ErrNotFound = eventdb.ErrNotFound
	// ErrRefused is the end of a question that cannot be answered: it is none, or it does not fit on
	// the bus. The same question would be refused again.
	ErrRefused = errors.New("refused")
	// ErrTooMany is the answer to a step of a reconciliation whose filter matches too many events.
	// Nothing was reconciled; ask for a shorter time.
	ErrTooMany = eventdb.ErrTooMany

	errBehind = errors.New("this replica has not applied the log that far")
)

// Source is what both ways of asking have in common. Services declare of it what they need.
type Source interface {
	// Seq is the last sequence of the log that answers are known to be based on. It only grows.
	Seq() uint64
	// CatchUp waits until answers have everything that was accepted before the call.
	CatchUp(ctx context.Context) error
	// Reached waits until answers have the log up to a sequence.
	Reached(ctx context.Context, seq uint64) error
	// Has reports of each id whether such an event is accepted, was not deleted, and has not
	// expired.
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
	// Query returns the events that match, newest first and by id among equals.
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
	// IDs is Query without the events.
	IDs(ctx context.Context, f nostr.Filter) iter.Seq2[[32]byte, error]
}

// Subscription tells of accepted events while it runs.
type Subscription struct {
	Run func(context.Context) error
	Seq func() uint64 // of the log, up to which everything was told
}

// gatherFor is how long messages may gather when all before were read.
const gatherFor = 500 * time.Millisecond

// SubscribeAccepted tells fn of the events that are accepted from now on, of some kinds: each once,
// those of a kind in the order of the log, after answers of the source have them. Several
// goroutines may call fn. It must be quick, because an index that applies the log waits for it; it
// may ask the source.
func SubscribeAccepted(js jetstream.JetStream, s Source, kinds []int, fn func([]eventdb.Record)) Subscription {
	if x, is := s.(*Index); is {
		others := func(r eventdb.Record) bool { return !slices.Contains(kinds, r.Event.Kind) }
		x.DB.Subscribe(func(recs []eventdb.Record) {
			if recs = slices.DeleteFunc(slices.Clone(recs), others); len(recs) > 0 {
				fn(recs)
			}
		})
		return Subscription{func(ctx context.Context) error { <-ctx.Done(); return nil }, x.Seq}
	}
	read := func(messages []bus.Message) error {
		var recs []eventdb.Record
		for _, m := range messages {
			// An empty message stands where an event stood that has left the log.
			if ev, err := nostr.Parse(m.Data); err == nil {
				floors, _ := eventdb.ReadFloors(m.Header[proto.HeaderFloor]) // indexes log what is none
				recs = append(recs, eventdb.Record{Seq: m.Seq, Event: ev, Floors: floors})
			}
		}
		if len(recs) > 0 {
			fn(recs)
		}
		return nil
	}
	gather := func(ctx context.Context) { _ = backoff.Sleep(ctx, gatherFor) } // the follower looks at ctx
	var all bus.Followers
	for _, kind := range kinds {
		reading := bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(kind), After: s.Seq(), Wait: s.Reached,
			Idle: gather}
		all = append(all, bus.NewFollower(js, reading, slog.New(slog.DiscardHandler), read))
	}
	return Subscription{all.Run, all.Seq}
}

// First returns the newest event that matches; [ErrNotFound]: there is none.
func First(ctx context.Context, s Source, f nostr.Filter) (*nostr.Event, error) {
	f.Limit = 1
	for ev, err := range s.Query(ctx, f) {
		return ev, err
	}
	return nil, ErrNotFound
}
