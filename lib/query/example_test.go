package query_test

import (
	"context"
	"fmt"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/query"
	"tendril.dev/proto"
)

// A process that has an index answers on the bus, and one that has none asks there.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(ctx, bus.Options{Sizing: sizing})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	index, err := eventdb.Open("", eventdb.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	issue := event(1621, 1000, "it does not build")
	if err := index.Apply([]eventdb.Record{{Seq: 1, Event: issue}}); err != nil {
		fmt.Println(err)
	}
	go query.Serve(ctx, query.NewIndex(index, b), b.Conn, quiet)

	remote, err := query.NewRemote(ctx, b, quiet)
	if err != nil {
		fmt.Println(err)
		return
	}
	for issue, err := range remote.Query(ctx, nostr.Filter{Kinds: []int{1621}}) {
		fmt.Println(issue.Content, err)
	}
	_, err = query.First(ctx, remote, nostr.Filter{IDs: []string{event(1, 1, "").ID}})
	fmt.Println(err)
	// Output:
	// it does not build <nil>
	// no such event
}
