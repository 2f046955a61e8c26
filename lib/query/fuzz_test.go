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

// FuzzQuestions: every question is refused, or answered within bounds; a page that is not the last
// gets on.
func FuzzQuestions(f *testing.F) {
	db, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		f.Fatal(err)
	}
	var recs []eventdb.Record
	for n := range 50 {
		ev := &nostr.Event{ID: fmt.Sprintf("%064x", n), PubKey: strings.Repeat("a1", 32), Kind: 1621, CreatedAt: nostr.Timestamp(n / 10), Content: strings.Repeat("x", n*200),
			Sig: strings.Repeat("0", 128), Tags: nostr.Tags{{"a", fmt.Sprint(n % 3)}}}
		recs = append(recs, eventdb.Record{Seq: uint64(n + 1), Event: ev})
	}
	if err := db.Apply(recs); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { db.Close() })
	x := &Index{DB: db}
	for _, seed := range []string{
		`{"filter":{"kinds":[1621]},"ids_only":true}`, `{"filter":{"#a":["1"],"limit":2},"after":{"created_at":3,"id":"8"}}`,
		`{"filter":{"limit":-1}}`, `{"filter":{"until":-9,"since":9},"seq":7}`, `{"filter":[]}`, `[`,
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
		if err != nil {
			return
		}
		size := 0
		for _, raw := range a.Events {
			size += len(raw)
		}
		if size > proto.MaxQueriedBytes && len(a.Events) > 1 || len(a.IDs) > 32*proto.MaxQueriedIDs {
			t.Errorf("%d bytes of events, %d of ids", size, len(a.IDs))
		}
		if count := len(a.Events) + len(a.IDs)/32; q.Filter.Limit > 0 && count > q.Filter.Limit || a.After != nil && count == 0 {
			t.Errorf("%d answers of %d, and then %v", count, q.Filter.Limit, a.After)
		}
	})
}
