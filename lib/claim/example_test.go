package claim_test

import (
	"context"
	"fmt"
	"log/slog"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/claim"
	"tendril.dev/proto"
)

// A worker joins its group, works on what it claims until it is stopped, and leaves.
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
	member, err := claim.Join(ctx, b, claim.Options{Group: "readers", Worker: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	wanted := make(chan []string, 1)
	wanted <- []string{"page"}
	member.Work(ctx, wanted, func(ctx context.Context, held claim.Held) error {
		fmt.Println("one reads the", held.Key)
		stop()
		<-ctx.Done()
		return nil
	})
	member.Leave()
	// Output: one reads the page
}
