// Package query answers which of some ids are accepted, and which accepted events match a filter. A
// process with an index of the log asks that ([Index]). Any other asks ingest on the bus ([Remote],
// answered by [Serve]), and so keeps nothing of the log (docs/architecture.md, Asking without an
// index). With [Reconciler] it also asks ingest which of a relay's events are not known.
package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

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

// hearEvery is how long what is heard may gather while much is accepted.
const hearEvery = 500 * time.Millisecond

// Hear makes followers that tell fn of the events that are accepted from now on, of some kinds: each
// once, those of a kind in the order of the log, after answers of the source have them.
func Hear(js jetstream.JetStream, s Source, kinds []int, fn func([]eventdb.Record)) (all bus.Followers) {
	var telling sync.Mutex
	read := func(messages []bus.Message) error {
		var recs []eventdb.Record
		for _, m := range messages {
			// An empty message stands where an event stood that has left the log.
			if ev, err := nostr.Parse(m.Data); err == nil {
				recs = append(recs, eventdb.Record{Seq: m.Seq, Event: ev, Raw: m.Data})
			}
		}
		if len(recs) > 0 {
			telling.Lock()
			defer telling.Unlock()
			fn(recs)
		}
		return nil
	}
	after := s.Seq()
	for _, kind := range kinds {
		reading := bus.Reading{Stream: proto.StreamEvents, Filter: proto.AnyEventOf(kind), After: after, Every: hearEvery, Wait: s.Reached}
		all = append(all, bus.NewFollower(js, reading, slog.New(slog.DiscardHandler), read))
	}
	return all
}

// Querier is the part of a [Source] that gives events.
type Querier interface {
	Query(ctx context.Context, f nostr.Filter) iter.Seq2[*nostr.Event, error]
}

// Event returns the event with an id; [ErrNotFound]: there is none.
func Event(ctx context.Context, s Querier, id string) (*nostr.Event, error) {
	return first(s.Query(ctx, nostr.Filter{IDs: []string{id}, Limit: 1}))
}

// Addressable returns the event at an address of an addressable kind; [ErrNotFound]: there is none.
func Addressable(ctx context.Context, s Querier, kind int, pubkey, d string) (*nostr.Event, error) {
	return first(s.Query(ctx, nostr.Filter{Kinds: []int{kind}, Authors: []string{pubkey}, Tags: nostr.TagMap{"d": {d}}, Limit: 1}))
}

func first(events iter.Seq2[*nostr.Event, error]) (*nostr.Event, error) {
	for ev, err := range events {
		return ev, err
	}
	return nil, ErrNotFound
}

// request asks a micro service once.
func request(ctx context.Context, conn *nats.Conn, subject string, question, answer any) error {
	data, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	msg, err := conn.RequestWithContext(ctx, subject, data)
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: the question has %d bytes, and the bus takes %d", ErrRefused, len(data), conn.MaxPayload())
	}
	if err != nil {
		return err
	}
	why := errors.New(msg.Header.Get(micro.ErrorHeader))
	switch msg.Header.Get(micro.ErrorCodeHeader) {
	case "":
		return json.Unmarshal(msg.Data, answer)
	case proto.QueryBad:
		return fmt.Errorf("%w: %w", ErrRefused, why)
	case proto.QueryBehind:
		return fmt.Errorf("%w: %w", errBehind, why)
	case proto.QueryTooMany:
		return fmt.Errorf("%w: %w", ErrTooMany, why)
	}
	return why
}
