package query_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
)

// A process with an index asks that; one without asks query.Remote in the same way.
func Example() {
	db, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		panic(err)
	}
	defer db.Close()
	owner := strings.Repeat("ab", 32)
	announcement := &nostr.Event{PubKey: owner, Kind: nostr.KindAnnouncement, CreatedAt: 1, Tags: nostr.Tags{{"d", "tendril"}, {"name", "Tendril"}}}
	announcement.ID = announcement.GetID()
	if err := db.Apply([]eventdb.Record{{Seq: 1, Event: announcement}}); err != nil {
		panic(err)
	}
	accepted := &query.Index{DB: db}
	ev, err := query.Addressable(context.Background(), accepted, nostr.KindAnnouncement, owner, "tendril")
	fmt.Println(ev.Tags.Find("name")[1], err)
	_, err = query.Addressable(context.Background(), accepted, nostr.KindAnnouncement, owner, "another")
	fmt.Println(errors.Is(err, query.ErrNotFound))
	// Output:
	// Tendril <nil>
	// true
}
