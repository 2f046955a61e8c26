//go:build !race

package gateway

import (
	"context"
	"testing"

	gonostr "github.com/nbd-wtf/go-nostr"

	"tendril.dev/lib/nostr"
)

// TestGoNostrClient is not for the race detector, because the client that it uses races with itself
// when it is closed.
func TestGoNostrClient(t *testing.T) {
	t.Parallel()
	sys := start(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := gonostr.RelayConnect(ctx, "ws://"+sys.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sub, err := r.Subscribe(ctx, nostr.Filters{{Kinds: []int{1621}}})
	if err != nil {
		t.Fatal(err)
	}
	<-sub.EndOfStoredEvents
	ev := signed(t, nostr.Event{Kind: 1621, Content: "issue", Tags: nostr.Tags{{"a", "x"}}})
	if err := r.Publish(ctx, *ev); err != nil {
		t.Fatal(err)
	}
	if got := <-sub.Events; got == nil || got.ID != ev.ID {
		t.Errorf("live: %v", got)
	}
	if stored, err := r.QuerySync(ctx, nostr.Filter{IDs: []string{ev.ID}}); err != nil || len(stored) != 1 {
		t.Errorf("stored: %v, %v", stored, err)
	}
	if n, _, err := r.Count(ctx, nostr.Filters{{Kinds: []int{1621}}}); err != nil || n != 1 {
		t.Errorf("count: %d, %v", n, err)
	}
}
