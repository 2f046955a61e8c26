package draft_test

import (
	"fmt"
	"testing"
	"time"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/ingest/draft"
	"tendril.dev/services/ingest/rejections"
)

// TestWhoListsUsNamesFirst: of those who name somebody as a maintainer, those who list us come
// first, whatever crowd announced later; also when the batch at hand brings them or takes them
// away.
func TestWhoListsUsNamesFirst(t *testing.T) {
	t.Parallel()
	maintainer := fmt.Sprintf("%064x", 99)
	naming := func(author int, at nostr.Timestamp, listing bool) *nostr.Event {
		clone, relay := "https://elsewhere.test/x.git", "wss://elsewhere.test"
		if listing {
			clone, relay = "https://grasp.test/"+npubOf(t, fmt.Sprintf("%064x", author))+"/x.git", "wss://grasp.test"
		}
		return by(author, 30617, at, nostr.Tag{"d", "x"}, nostr.Tag{"clone", clone}, nostr.Tag{"relays", relay},
			nostr.Tag{"maintainers", maintainer})
	}
	now := nostr.Timestamp(10)
	index := indexOf(t, &now, naming(1, 1000, true))
	view := index.View()
	defer view.Close()
	d := draft.New(t.Context(), draft.Base{
		Log: view, Held: held.NewSet(), Rejected: rejections.NewIndex(time.Hour), Domain: "grasp.test", Now: time.Now(),
	})
	for _, step := range []struct {
		accept *nostr.Event
		first  int // author
		all    int
	}{
		{naming(2, 2000, false), 1, 2},
		{naming(3, 3000, false), 1, 3},
		{naming(1, 4000, false), 2, 3}, // moves away
		{naming(4, 5000, true), 4, 4},
		{by(4, 5, 6000, nostr.Tag{"a", "30617:" + fmt.Sprintf("%064x", 4) + ":x"}), 2, 3},
	} {
		if err := d.Accept(step.accept); err != nil {
			t.Fatal(err)
		}
		list, err := d.AcceptedNaming("x", maintainer)
		if err != nil || len(list) != step.all || list[0].Ref.PubKey != fmt.Sprintf("%064x", step.first) {
			t.Fatalf("after %s: %d, first %.4v, %v; want %d, first %d", step.accept, len(list), list, err, step.all, step.first)
		}
	}
}
