package query

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// FuzzQuestions: whatever is asked is refused, or answered within bounds by something that the
// asker takes for an answer.
func FuzzQuestions(f *testing.F) {
	db, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		f.Fatal(err)
	}
	var recs []eventdb.Record
	for n := range 50 {
		ev := &nostr.Event{PubKey: strings.Repeat("a1", 32), Kind: 1621, CreatedAt: nostr.Timestamp(n / 10), Content: strings.Repeat("x", n*200), Sig: strings.Repeat("0", 128),
			Tags: nostr.Tags{{"a", fmt.Sprint(n % 3)}}}
		ev.ID = ev.GetID()
		recs = append(recs, eventdb.Record{Seq: uint64(n + 1), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	x := &Index{DB: db}
	for _, seed := range []string{
		`{"filters":[{"kinds":[1621]}],"ids_only":true}`, `{"filters":[{},{"#a":["1"],"limit":2}],"after":{"created_at":3,"id":"8"}}`,
		`{"filters":[{"limit":-1},{"limit":0},{"until":-9,"since":9}],"seq":7}`, `{"filters":[]}`, `[`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var q proto.EventsQuery
		if json.Unmarshal(data, &q) != nil {
			return
		}
		q.Seq = 0
		a, err := x.page(t.Context(), q)
		if err != nil || len(q.Filters) == 0 {
			return
		}
		size := 0
		for _, raw := range a.Events {
			size += len(raw)
		}
		if size > proto.MaxQueriedBytes && len(a.Events) > 1 || len(a.IDs) > 32*proto.MaxQueriedIDs {
			t.Errorf("%d bytes of events, %d of ids", size, len(a.IDs))
		}
		if err := checkPage(q, a); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// FuzzAnswers: an answer that is taken can be read to its end.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"seq":1,"counts":[1],"ids":"`+strings.Repeat("A", 43)+`=","after":{"created_at":1,"id":"x"}}`), 2, true)
	f.Add([]byte(`{"counts":[-1,1],"events":[{}]}`), 1, false)
	f.Fuzz(func(t *testing.T, data []byte, filters int, idsOnly bool) {
		q := proto.EventsQuery{Filters: make([]nostr.Filter, min(max(filters, 0), 10)), IDsOnly: idsOnly}
		var a proto.EventsAnswer
		if json.Unmarshal(data, &a) != nil || checkPage(q, a) != nil {
			return
		}
		total := 0
		for _, count := range a.Counts {
			total += count
		}
		if idsOnly && 32*total != len(a.IDs) || !idsOnly && total != len(a.Events) || len(a.Counts) > len(q.Filters) {
			t.Errorf("counts %v of %d filters, %d bytes of ids, %d events", a.Counts, len(q.Filters), len(a.IDs), len(a.Events))
		}
		if len(a.Counts) == 0 || a.After != nil && total == 0 {
			t.Error("an answer that leads nowhere")
		}
	})
}
