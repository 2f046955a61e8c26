package eventdb_test

import (
	"context"
	"fmt"
	"strings"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
)

// An index applies the log's events in order, and answers filters from a view of one sequence.
func Example() {
	db, err := eventdb.Open("", eventdb.Options{}) // in memory
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	for n, text := range []string{"it does not build", "it builds"} {
		issue := &nostr.Event{Kind: 1621, CreatedAt: nostr.Timestamp(1000 + n), Content: text, PubKey: strings.Repeat("a", 64), Sig: strings.Repeat("0", 128)}
		issue.ID = issue.GetID()
		if err := db.Apply([]eventdb.Record{{Seq: uint64(n + 1), Event: issue}}); err != nil {
			fmt.Println(err)
		}
	}
	view := db.View()
	defer view.Close()
	for issue, err := range view.Query(context.Background(), nostr.Filter{Kinds: []int{1621}}) {
		fmt.Println(issue.Content, err)
	}
	// Output:
	// it builds <nil>
	// it does not build <nil>
}
