package writer

import (
	"strings"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestForgedEventsDecideNothing: a login that may publish synced events cannot make up events of
// others. Each of these would change what is served of the owner's repository.
func TestForgedEventsDecideNothing(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	start(t, b, "writer", nil)
	s := newSender(t, b, "forger")
	owner := newPerson(1)
	served := owner.announcement("tree", 100)
	s.ask(proto.LaneUser, served)
	if v := s.release(served); v.Outcome != proto.Accepted {
		t.Fatalf("%+v", v)
	}
	elsewhere := owner.event(30617, 200, "", nostr.Tag{"d", "tree"}, nostr.Tag{"clone", "https://else.example/x.git"})
	forged := []*nostr.Event{
		owner.event(5, 300, "", nostr.Tag{"a", "30617:" + string(owner) + ":tree"}), elsewhere, owner.state("tree", 300),
		owner.event(1618, 300, "", nostr.Tag{"a", "30617:" + string(owner) + ":tree"}, nostr.Tag{"c", strings.Repeat("b", 40)}),
	}
	for _, ev := range forged {
		for _, lane := range []proto.Lane{proto.LaneUser, proto.LaneSyncLive, proto.LaneSyncHistoric, proto.LaneSyncDaily} {
			ev.Sig = strings.Repeat("0", 128)
			n := len(s.verdicts)
			s.send(lane, ev)
			if v := s.wait(n + 1)[n]; v.Outcome != proto.Rejected || !strings.Contains(v.Message, "signature") {
				t.Errorf("kind %d on lane %s: %+v", ev.Kind, lane, v)
			}
		}
	}
	if got := logIDs(t, b); !sameIDs(got, []*nostr.Event{served}) {
		t.Errorf("the log has %v", got)
	}
}
