// Package query answers which of some ids are accepted, and which accepted events match a filter. A
// process with an index of the log asks that ([Index]). Any other asks ingest on the bus ([Remote],
// answered by [Serve]), and so keeps nothing of the log (docs/architecture.md, Asking without an
// index). With [Reconciler] it also asks ingest which of a relay's events are not known.
package query

import (
	"context"
	"iter"

	"github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/eventdb"
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
	// the order of the log, after answers have them. fn must not block.
	Hear(kinds []int, fn func([]eventdb.Record)) Hearing
}

// Found is the id of an event that matches a filter.
type Found struct {
	Filter int // which of those that were asked for, from 0
	ID     [32]byte
}

// Hearing is how newly accepted events are heard of.
type Hearing interface {
	// Run hears until ctx ends.
	Run(ctx context.Context) error
	// CatchUp waits until all is heard that was accepted before the call, while Run runs.
	CatchUp(ctx context.Context) error
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
