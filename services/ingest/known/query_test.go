package known_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy"
	"github.com/nbd-wtf/go-nostr/nip77/negentropy/storage/vector"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
	"tendril.dev/test/fixture"
)

var must = fixture.Must

func event(kind, n int) *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: kind, CreatedAt: nostr.Timestamp(n), Tags: nostr.Tags{{"d", fmt.Sprint(n)}}, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
}

func events(kind, from, count, step int) (all []*nostr.Event) {
	for n := range count {
		all = append(all, event(kind, from+n*step))
	}
	return all
}

func records(seq uint64, events ...*nostr.Event) (recs []eventdb.Record) {
	for n, ev := range events {
		recs = append(recs, eventdb.Record{Seq: seq + uint64(n), Event: ev})
	}
	return recs
}

// serve serves 4500 accepted issues, 2 held states and 3 rejected events, one of each of the latter
// accepted too.
func serve(t *testing.T) (*bus.Bus, *eventdb.DB) {
	t.Helper()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(t.Context(), bus.Options{Sizing: sizing})
	must(t, err)
	index, err := eventdb.Open("", eventdb.Options{})
	must(t, err)
	quiet := slog.New(slog.DiscardHandler)
	all := known.Known{Index: index, Held: held.NewSet(b.JS, quiet, nil), Rejected: empty("")}
	must(t, index.Apply(append(records(1, events(1621, 0, 4500, 1)...), records(5000, event(30618, 1), event(7, 1))...)))
	rejected := &log{t: t, x: all.Rejected}
	for n := range 3 {
		ev := event(7, n+1)
		rejected.add(time.Now(), proto.RejectedEvent{ID: ev.ID, Kind: ev.Kind, PubKey: ev.PubKey, CreatedAt: ev.CreatedAt})
		if n < 2 {
			e, err := held.NewEntry(proto.Held{Event: event(30618, n+1), Identifier: fmt.Sprint(n + 1)})
			must(t, err)
			all.Held.Apply(held.Change{Seq: uint64(n + 1), Key: e.Key, Entry: e})
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- query.Answer(ctx, b.Conn, quiet, proto.ServiceQuery, "", all.Questions()) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, index.Close()); err != nil {
			t.Error(err)
		}
		b.Close()
	})
	// The service is there once it answers; until then NATS has no responder.
	for err := nats.ErrNoResponders; err != nil && t.Context().Err() == nil; {
		_, err = b.Conn.Request(proto.SubjectQueryIDs, []byte(`{}`), time.Second)
	}
	return b, index
}

// TestWhatIsKnown: how many events are known for a filter.
func TestWhatIsKnown(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	for filter, want := range map[string]uint64{
		`{}`:                          4500 + 2 + 3,
		`{"kinds":[1621],"limit":10}`: 4500, // a limit would make reconciliation fetch the rest
		`{"kinds":[1621],"since":100,"until":109}`:                                        10,
		`{"ids":["` + event(30618, 2).ID + `","` + event(7, 3).ID + `"]}`:                 2,
		`{"kinds":[7],"authors":["` + strings.Repeat("a", 64) + `"],"since":2,"until":3}`: 2,
		`{"kinds":[7],"authors":["` + strings.Repeat("b", 64) + `"]}`:                     0,
		`{"kinds":[42]}`: 0,
	} {
		var session proto.ReconcileQuery
		must(t, json.Unmarshal([]byte(filter), &session.Filter))
		if _, _, count, _ := differing(t, b, session, nil); count != want {
			t.Errorf("%s: %d are known, want %d", filter, count, want)
		}
	}
}

// differing runs a session over the bus with a relay that has these events, as a relay worker does,
// and returns what is missing here, how many events the relay does not have, and how many are
// known.
func differing(t *testing.T, b *bus.Bus, session proto.ReconcileQuery, relay []*nostr.Event) (ids []string, alone, count uint64, steps int) {
	t.Helper()
	v := vector.New()
	for _, ev := range relay {
		v.Insert(ev.CreatedAt, ev.ID)
	}
	v.Seal()
	other, service := negentropy.New(v, 60_000), query.Reconciler{Conn: b.Conn}
	begin, err := service.Begin(t.Context(), session)
	message := begin.Message
	for ; err == nil && message != nil; steps++ {
		text, err := other.Reconcile(hex.EncodeToString(message))
		must(t, err)
		answer, err := hex.DecodeString(text)
		must(t, err)
		step, err := service.Continue(t.Context(), session, answer)
		must(t, err)
		message = step.Message
		alone += step.OnlyHere
		for _, id := range step.Missing {
			ids = append(ids, hex.EncodeToString(id[:]))
		}
	}
	must(t, err)
	slices.Sort(ids)
	return slices.Compact(ids), alone, begin.Known, steps
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	issues, news := events(1621, 0, 4500, 1), events(1621, 10_000, 200, 20)
	states := events(30618, 1, 3, 1) // two are known, one of them is held
	reactions := events(7, 1, 4, 1)  // three are known, two of them were rejected
	for name, c := range map[string]struct {
		filter  nostr.Filter
		relay   []*nostr.Event
		known   uint64
		missing []*nostr.Event
		alone   uint64 // here
	}{
		"nothing new":           {nostr.Filter{Kinds: []int{1621}}, issues, 4500, nil, 0},
		"some news":             {nostr.Filter{Kinds: []int{1621}}, slices.Concat(issues[:4000], news), 4500, news, 500},
		"a relay with nothing":  {nostr.Filter{Kinds: []int{1621}}, nil, 4500, nil, 4500},
		"all is new":            {nostr.Filter{Kinds: []int{42}}, news, 0, news, 0},
		"everything":            {nostr.Filter{}, slices.Concat(issues, news, states, reactions), 4505, slices.Concat(news, states[2:], reactions[3:]), 0},
		"held, by tag":          {nostr.Filter{Kinds: []int{30618}, Tags: nostr.TagMap{"d": {"2", "3"}}}, states[1:], 1, states[2:], 0},
		"rejected, by tag":      {nostr.Filter{Tags: nostr.TagMap{"d": {"3", "4"}}, Kinds: []int{7}}, reactions[2:], 0, reactions[3:], 0},
		"of other kinds, known": {nostr.Filter{Kinds: []int{1}, Authors: []string{strings.Repeat("b", 64)}}, issues[:50], 0, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ids, alone, count, steps := differing(t, b, proto.ReconcileQuery{Filter: c.filter, Seq: 5001}, c.relay)
			var want []string
			for _, ev := range c.missing {
				want = append(want, ev.ID)
			}
			slices.Sort(want)
			if !slices.Equal(ids, want) || count != c.known || alone != c.alone || steps > 8 {
				t.Errorf("%d missing, want %d; %d known, want %d; %d alone here, want %d; %d steps", len(ids), len(want), count, c.known, alone, c.alone, steps)
			}
		})
	}
}

func TestReconcileRefusals(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	for says, message := range map[string][]byte{"": {0x61, 0xff}, "empty": nil, "bytes": make([]byte, 700<<10), "the bus takes": make([]byte, 800<<10)} {
		_, err := query.Reconciler{Conn: b.Conn}.Continue(t.Context(), proto.ReconcileQuery{}, message)
		if !errors.Is(err, query.ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("a message of %d bytes: %v", len(message), err)
		}
	}
	for _, bad := range []string{"", "[", `{"filter":7}`, `{"message":"%"}`} {
		msg, err := b.Conn.Request(proto.SubjectQueryIDs, []byte(bad), time.Minute)
		if err != nil || msg.Header.Get("Nats-Service-Error-Code") != proto.QueryBad {
			t.Errorf("%q: %v, %v", bad, msg, err)
		}
	}
}

// TestReconcileAsEventsAreAccepted: what was gathered for a filter is used again, and an event that
// has come since is not missing all the same. An answer is given on what the asker names, and not
// before.
func TestReconcileAsEventsAreAccepted(t *testing.T) {
	t.Parallel()
	b, index := serve(t)
	session := proto.ReconcileQuery{Filter: nostr.Filter{Authors: []string{strings.Repeat("a", 64)}}}
	if _, _, n, _ := differing(t, b, session, nil); n != 4505 {
		t.Fatalf("%d known", n)
	}
	late, other := event(1621, 30_000), event(1621, 30_001)
	must(t, index.Apply(records(6000, late)))
	if ids, _, _, _ := differing(t, b, session, []*nostr.Event{late, other}); !slices.Equal(ids, []string{other.ID}) {
		t.Errorf("missing %q", ids)
	}
	session.Seq = 6001
	go func() {
		// Another question is answered meanwhile, so the next one is with the service too.
		_, err := query.Reconciler{Conn: b.Conn}.Begin(t.Context(), proto.ReconcileQuery{Filter: session.Filter})
		if err = errors.Join(err, index.Apply(records(6001, event(1621, 30_002)))); err != nil {
			t.Error(err)
		}
	}()
	if _, _, n, _ := differing(t, b, session, nil); n != 4507 {
		t.Errorf("%d known at the sequence that was named", n)
	}
}
