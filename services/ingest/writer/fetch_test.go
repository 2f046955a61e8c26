package writer

import (
	"context"
	"encoding/json"
	"slices"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestHealedEventsAreAskedFor: what was rejected and is parked no more is asked for by id when what
// it missed is accepted: a state, of the relay that had it and of those of the announcements in the
// chain; a comment, of those of the repository. It is remembered until it is decided again.
func TestHealedEventsAreAskedFor(t *testing.T) {
	t.Parallel()
	b, settings := openBus(t), testSettings()
	settings.RejectedHotSeconds = 0 // the parked time is over at once
	r := startWith(t, b, "writer", settings)
	told, err := b.Conn.SubscribeSync(proto.SubjectFetch)
	must(t, err, b.Conn.Flush())
	asked := func(ev *nostr.Event, relays ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		m, err := told.NextMsgWithContext(ctx)
		must(t, err)
		var fetch proto.Fetch
		must(t, json.Unmarshal(m.Data, &fetch))
		if !slices.Equal(fetch.IDs, []string{ev.ID}) || !slices.Equal(fetch.Relays, relays) {
			t.Errorf("asked for %q of %q, want %s of %q", fetch.IDs, fetch.Relays, ev.ID, relays)
		}
	}
	s, alice, bob, carol := newSender(t, b), newPerson(1), newPerson(2), newPerson(3)
	tree := alice.announcement("tree", 100, bob)
	tree = alice.event(30617, 100, "", append(tree.Tags, nostr.Tag{"relays", "wss://alice.example/", "ws://" + domain})...)
	s.serve(tree)

	state := bob.state("tree", 200)
	s.ask(proto.Rejected, proto.LaneSyncLive, state, proto.HeaderRelay, "wss://had.example")
	s.ask(proto.Accepted, proto.LaneUser, bob.elsewhere("tree", 300, alice))
	asked(state, "wss://had.example", "wss://other.example.org", "wss://alice.example")

	issue := bob.issue(alice, "tree", 1)
	comment := carol.event(1111, 400, "", nostr.Tag{"E", issue.ID})
	s.ask(proto.Rejected, proto.LaneSyncLive, comment)
	s.ask(proto.Accepted, proto.LaneUser, issue)
	asked(comment, "wss://alice.example", "wss://other.example.org")

	s.ask(proto.HeldBack, proto.LaneSyncLive, state, proto.HeaderRelay, "wss://had.example")
	s.ask(proto.Accepted, proto.LaneSyncLive, comment)
	if n := r.Rejected.Len(); n != 0 {
		t.Errorf("%d rejections are remembered of what is here", n)
	}
}
