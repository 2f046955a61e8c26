package writer

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
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

// crowded is a policy that puts an event off while it says so.
type crowded struct {
	Policy
	id  string
	now atomic.Bool
}

func (c *crowded) Decide(k policy.Knowledge, x *policy.Candidate) policy.Decision {
	if x.Event.ID == c.id && c.now.Load() {
		return policy.Decision{Outcome: proto.Rejected, Reason: "crowded", RetryAt: time.Now().Add(time.Hour).Unix()}
	}
	return c.Policy.Decide(k, x)
}

// TestPutOffAfterItHealed: an event that is asked for by id, comes, and is put off, is asked for again.
// The relay may be one that nobody holds a connection to.
func TestPutOffAfterItHealed(t *testing.T) {
	t.Parallel()
	b, settings, rules := openBus(t), testSettings(), &crowded{}
	settings.RejectedHotSeconds = 0
	alice := newPerson(1)
	issue := alice.issue(alice, "tree", 1)
	comment := newPerson(2).event(1111, 400, "", nostr.Tag{"E", issue.ID})
	rules.id = comment.ID
	r := startWith(t, b, "writer", settings, func(w *Writer) { rules.Policy, w.policy = w.policy, rules })
	s := newSender(t, b)
	s.serve(alice.announcement("tree", 100))
	s.ask(proto.Rejected, proto.LaneSyncLive, comment, proto.HeaderRelay, "wss://had.example")
	s.ask(proto.Accepted, proto.LaneUser, issue)
	for _, putOff := range []bool{true, false} {
		rules.now.Store(putOff)
		s.ask(map[bool]proto.Outcome{true: proto.Rejected, false: proto.Accepted}[putOff], proto.LaneSyncLive, comment)
		if _, waits := r.Rejected.Healed(comment.ID); waits != putOff {
			t.Errorf("put off: %v, to be asked for: %v", putOff, waits)
		}
	}
}
