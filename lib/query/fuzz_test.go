package query

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// FuzzQuestions: every question is refused, or answered within bounds; a page that is not the last
// gets on.
func FuzzQuestions(f *testing.F) {
	db, err := eventdb.Open("", eventdb.Options{})
	fixture.Must(f, err)
	author := fixture.Unsigned(strings.Repeat("a1", 32))
	for n := range 50 {
		ev := author.At(nostr.Timestamp(1+n/10)).Sign(1621, strings.Repeat("x", n*200), nostr.Tag{"a", fmt.Sprint(n % 3)})
		fixture.Must(f, db.Apply([]eventdb.Record{{Seq: uint64(n + 1), Event: ev}}))
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
