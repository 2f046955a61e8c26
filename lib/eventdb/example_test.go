package eventdb_test

import (
	"context"
	"fmt"
	"strings"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// The newest issue of a repository, as JSON that can be sent to a client.
func Example() {
	db, err := eventdb.Open("", eventdb.Options{}) // in memory
	if err != nil {
		panic(err)
	}
	defer db.Close()
	issue := func(seq uint64, content string) eventdb.Record {
		ev := &nostr.Event{
			PubKey: strings.Repeat("ab", 32), Kind: nostr.KindIssue, CreatedAt: nostr.Timestamp(seq), Content: content,
			Tags: nostr.Tags{{"a", "30617:" + strings.Repeat("ab", 32) + ":tendril"}},
		}
		ev.ID = ev.GetID()
		return eventdb.Record{Seq: seq, Event: ev}
	}
	if err := db.Apply([]eventdb.Record{issue(1, "it is slow"), issue(2, "it is small")}); err != nil {
		panic(err)
	}
	view := db.View()
	defer view.Close()
	newest := nostr.Filter{Tags: nostr.TagMap{"a": {"30617:" + strings.Repeat("ab", 32) + ":tendril"}}, Limit: 1}
	for answer, err := range view.QueryRaw(context.Background(), newest) {
		if err != nil {
			panic(err)
		}
		ev, _ := nostr.Parse(answer.JSON)
		fmt.Println(view.Seq(), ev.Content)
	}
	// Output: 2 it is small
}
