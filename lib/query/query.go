// Package query answers which of some ids are accepted, and which accepted events match a filter. A
// process with an index of the log asks that ([Index]). Any other asks ingest on the bus ([Remote],
// answered by [Serve]), and so keeps nothing of the log (docs/architecture.md, Asking without an
// index). With [Reconciler] it also asks ingest which of a relay's events are not known.
package query

import (
	"context"
	"iter"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// ErrNotFound: there is no such event.
var ErrNotFound = eventdb.ErrNotFound

// Source is what both ways of asking have in common. Services declare of it what they need.
type Source interface {
	// Seq is the last sequence of the log that answers are known to be based on. It only grows.
	Seq() uint64
	// CatchUp waits until answers have everything that was accepted before the call.
	CatchUp(ctx context.Context) error
	// Reached sees to it that answers have the log up to a sequence.
	Reached(ctx context.Context, seq uint64) error
	// Has reports of each id whether such an event is accepted, was not deleted, and has not
	// expired.
	Has(ctx context.Context, ids [][32]byte) ([]bool, error)
	// Query returns the events that match, newest first and by id among equals.
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
	// IDs is Query without the events, of one filter after the other.
	IDs(ctx context.Context, filters ...nostr.Filter) iter.Seq2[Found, error]
	// Hear has fn told of the events that are accepted from now on, of some kinds: each once, in
	// the order of the log, after answers have them. It runs while Run of the follower does.
	Hear(kinds []int, fn func([]eventdb.Record)) Hearing
}

// Hearing is how newly accepted events are heard of.
type Hearing = *bus.Follower

// Found is the id of an event that matches a filter.
type Found struct {
	Filter int // which of those that were asked for, from 0
	ID     [32]byte
}

// hear follows some kinds of the log, behind a sequence.
func hear(js jetstream.JetStream, s Source, after uint64, kinds []int, fn func([]eventdb.Record)) *bus.Follower {
	reading := bus.Reading{Stream: proto.StreamEvents, After: after}
	for _, kind := range kinds {
		reading.Filters = append(reading.Filters, proto.AnyEventOf(kind))
	}
	return bus.NewFollower(js, reading, slog.New(slog.DiscardHandler), func(messages []bus.Message) error {
		var recs []eventdb.Record
		for _, m := range messages {
			ev := new(nostr.Event)
			// An empty message stands where an event stood that has left the log.
			if err := ev.UnmarshalJSON(m.Data); err == nil && m.Header.Get(proto.HeaderRemoved) == "" {
				recs = append(recs, eventdb.Record{Seq: m.Seq, Event: ev, Raw: m.Data})
			}
		}
		if err := s.Reached(context.Background(), messages[len(messages)-1].Seq); err != nil {
			return err
		}
		if len(recs) > 0 {
			fn(recs)
		}
		return nil
	})
}

// Event returns the event with an id; [ErrNotFound]: there is none.
func Event(ctx context.Context, s interface {
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
}, id string) (*nostr.Event, error) {
	return first(s.Query(ctx, nostr.Filter{IDs: []string{id}, Limit: 1}))
}

// Addressable returns the event at an address of an addressable kind; [ErrNotFound]: there is none.
func Addressable(ctx context.Context, s interface {
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
}, kind int, pubkey, d string) (*nostr.Event, error) {
	return first(s.Query(ctx, nostr.Filter{Kinds: []int{kind}, Authors: []string{pubkey}, Tags: nostr.TagMap{"d": {d}}, Limit: 1}))
}

func first(events iter.Seq2[*nostr.Event, error]) (*nostr.Event, error) {
	for ev, err := range events {
		return ev, err
	}
	return nil, ErrNotFound
}
