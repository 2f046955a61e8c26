package writer

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// elsewhere is an announcement that does not list us.
func (p person) elsewhere(identifier string, at int64, maintainers ...person) *nostr.Event {
	tags := nostr.Tags{{"d", identifier}, {"clone", "https://other.example.org/x.git"}, {"relays", "wss://other.example.org"}}
	for _, m := range maintainers {
		tags = append(tags, nostr.Tag{"maintainers", string(m)})
	}
	return p.event(30617, at, "", tags...)
}

// TestMaintainersAreReleasedWithTheirOwner: announcements that wait with another's are released
// with it, and their own maintainers' with them.
func TestMaintainersAreReleasedWithTheirOwner(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "writer", nil)
	s := newSender(t, b, "vouched")
	alice, bob, carol := newPerson(1), newPerson(2), newPerson(3)
	owners, bobs, carols := alice.announcement("tree", 100, bob), bob.elsewhere("tree", 100, carol), carol.elsewhere("tree", 100)

	// Bob's comes first, by sync, and is parked until an announcement names him.
	if v := s.ask(proto.LaneSyncLive, bobs); v.Outcome != proto.Rejected {
		t.Fatalf("named by no other: %+v", v)
	}
	if v := s.ask(proto.LaneUser, owners); v.Outcome != proto.HeldBack {
		t.Fatalf("the owner's: %+v", v)
	}
	eventually(t, "the maintainer's is held with it", func() bool { return r.Held.ByID(bobs.ID) != nil })
	if v := s.ask(proto.LaneUser, carols); v.Outcome != proto.HeldBack {
		t.Fatalf("the maintainer's maintainer's: %+v", v)
	}
	if ids := logIDs(t, b); len(ids) > 0 {
		t.Fatalf("%d are served without any git data", len(ids))
	}
	for _, ev := range []*nostr.Event{bobs, carols} {
		if v := s.release(ev); v.Outcome != proto.Done {
			t.Errorf("asked to release what is only vouched for by held ones: %+v", v)
		}
	}
	if v := s.release(owners); v.Outcome != proto.Accepted {
		t.Fatalf("the owner's release: %+v", v)
	}
	eventually(t, "all are released", func() bool { return r.Held.Len() == 0 })
	if got := logIDs(t, b); !sameIDs(got, []*nostr.Event{owners, bobs, carols}) {
		t.Errorf("the log has %d events, want all three", len(got))
	}
}

// TestANewWriterReleasesWhatACrashLeft: the owner's announcement was released, and the process
// ended before the maintainer's was.
func TestANewWriterReleasesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	alice, bob, carol := newPerson(1), newPerson(2), newPerson(3)
	first := start(t, b, "first", nil)
	s := newSender(t, b, "crash")
	owners, bobs, carols := alice.announcement("tree", 100, bob), bob.elsewhere("tree", 100), carol.elsewhere("tree", 100)
	s.ask(proto.LaneUser, owners)
	if v := s.release(owners); v.Outcome != proto.Accepted {
		t.Fatalf("%+v", v)
	}
	first.stop()
	for _, ev := range []*nostr.Event{bobs, carols} { // carol's has lost its voucher
		e, err := held.NewEntry(proto.Held{Event: ev, Identifier: "tree", Source: proto.SourceUser, Phase: proto.PhaseVouched, HeldAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.JS.PublishMsg(t.Context(), &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, e.Key), Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, b, "second", nil)
	eventually(t, "nothing is held any more", func() bool { return second.isWriting() && second.Held.Len() == 0 })
	if got := logIDs(t, b); !sameIDs(got, []*nostr.Event{owners, bobs}) {
		t.Errorf("the log has %d events, want the owner's and the maintainer's", len(got))
	}
}
