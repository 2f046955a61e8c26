package known_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/known"
)

func event(kind, n int) *nostr.Event {
	ev := &nostr.Event{PubKey: strings.Repeat("a", 64), Kind: kind, CreatedAt: nostr.Timestamp(n), Tags: nostr.Tags{{"d", fmt.Sprint(n)}}, Sig: strings.Repeat("0", 128)}
	ev.ID = ev.GetID()
	return ev
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
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing()})
	if err != nil {
		t.Fatal(err)
	}
	index, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	all := known.Known{Index: index, Held: held.NewSet(b.JS, quiet, nil), Rejected: known.NewRejected(b.JS, quiet, time.Hour, "")}
	var issues []*nostr.Event
	for n := range 4500 {
		issues = append(issues, event(1621, n))
	}
	if err := index.Apply(append(records(1, issues...), records(5000, event(30618, 1), event(7, 1))...)); err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		e, err := held.NewEntry(proto.Held{Event: event(30618, n+1), Identifier: fmt.Sprint(n + 1)})
		if err != nil {
			t.Fatal(err)
		}
		all.Held.Apply(held.Change{Seq: uint64(n + 1), Key: e.Key, Entry: e})
	}
	for n := range 3 {
		ev := event(7, n+1)
		data, err := all.Rejected.Encode(proto.RejectedEvent{ID: ev.ID, Kind: ev.Kind, PubKey: ev.PubKey, CreatedAt: ev.CreatedAt})
		if err != nil {
			t.Fatal(err)
		}
		subject := proto.RejectedSubject{Kind: ev.Kind, ShortID: proto.ShortID(ev.ID)}.String()
		all.Rejected.Apply(bus.Message{Seq: uint64(n + 1), Subject: subject, Data: data, Time: time.Now()})
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- query.Answer(ctx, b.Conn, quiet, proto.ServiceQuery, "", all.Questions()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := index.Close(); err != nil {
			t.Error(err)
		}
		b.Close()
	})
	// The service is there once it answers; until then NATS has no responder.
	for {
		_, err := b.Conn.Request(proto.SubjectQueryIDs, []byte(`{"ids":[]}`), time.Second)
		if err == nil {
			return b, index
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// query gathers an answer: the ids, and how many messages they came in.
func listIDs(t *testing.T, b *bus.Bus, filter string) (ids []string, chunks int, failure string) {
	t.Helper()
	inbox := nats.NewInbox()
	sub, err := b.Conn.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Unsubscribe()
	if err := b.Conn.PublishRequest(proto.SubjectQueryIDs, inbox, []byte(filter)); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if failure := m.Header.Get("Nats-Service-Error"); failure != "" {
			return ids, chunks, failure
		}
		var entries []proto.Place
		if err := json.Unmarshal(m.Data, &entries); err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return ids, chunks, ""
		}
		chunks++
		for _, e := range entries {
			ids = append(ids, e.ID)
		}
	}
}

func TestQuery(t *testing.T) {
	t.Parallel()
	b, _ := serve(t)
	for _, tc := range []struct {
		filter       string
		want, chunks int
	}{
		{`{}`, 4500 + 2 + 3, 3},
		{`{"kinds":[1621],"limit":10}`, 4500, 3}, // all of them: a limit would make reconciliation fetch the rest
		{`{"kinds":[1621],"since":100,"until":109}`, 10, 1},
		{`{"kinds":[30618],"#d":["2"]}`, 1, 1},
		{`{"kinds":[42]}`, 0, 0},
		{`{"ids":["` + event(30618, 2).ID + `"]}`, 1, 1},
	} {
		ids, chunks, failure := listIDs(t, b, tc.filter)
		if failure != "" || len(ids) != tc.want || chunks != tc.chunks {
			t.Errorf("%s: %d ids in %d messages, %s; want %d in %d", tc.filter, len(ids), chunks, failure, tc.want, tc.chunks)
		}
		slices.Sort(ids)
		if n := len(slices.Compact(ids)); n != tc.want {
			t.Errorf("%s: only %d different ids", tc.filter, n)
		}
	}
	for _, bad := range []string{"", "[", `{"kinds":"x"}`} {
		if _, _, failure := listIDs(t, b, bad); !strings.Contains(failure, "not a question") {
			t.Errorf("%.20q: %q", bad, failure)
		}
	}
}
