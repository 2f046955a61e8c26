package writer

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
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
	eventually(t, "nothing is held any more", func() bool { return second.writing.Load() && second.Held.Len() == 0 })
	if got := logIDs(t, b); !sameIDs(got, []*nostr.Event{owners, bobs}) {
		t.Errorf("the log has %d events, want the owner's and the maintainer's", len(got))
	}
}

// TestAFloodDoesNotClosePurgatory: many keys fill purgatory in one batch after the other; who
// comes next is held, and so is the state of a served repository, though its owner shares an
// address with those who flood.
func TestAFloodDoesNotClosePurgatory(t *testing.T) {
	t.Parallel()
	bounds := policy.Bounds{Bytes: 200_000, Reserved: 50_000, Author: policy.Load{Bytes: 20_000}, Client: policy.Load{Events: 1000, Bytes: 100_000}}
	rules, err := policy.New(testSettings(), bounds, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	b := openBus(t, t.TempDir())
	r := start(t, b, "writer", func(w *Writer) { w.Policy = rules })
	s := newSender(t, b, "flood")
	owner := newPerson(1)
	mine := owner.announcement("mine", 100)
	s.ask(proto.LaneUser, mine)
	if v := s.release(mine); v.Outcome != proto.Accepted {
		t.Fatalf("%+v", v)
	}
	const flood = 600
	for n := range flood {
		s.send(proto.LaneUser, newPerson(1000+n).announcement(fmt.Sprint("flood-", n), 100), proto.HeaderClient, fmt.Sprintf("192.0.2.%d", n%4))
	}
	refused := 0
	for _, v := range s.wait(2 + flood) {
		if v.Outcome == proto.Rejected {
			refused++
		}
	}
	evicted := testutil.ToFloat64(r.Metrics.evicted.WithLabelValues(obs.KindLabel(30617)))
	if evicted == 0 || refused == flood {
		t.Errorf("%v were evicted and %d refused: the test proves nothing", evicted, refused)
	}
	if held := r.Held.Len(); held > flood/2 {
		t.Errorf("%d events are held", held)
	}
	if v := s.ask(proto.LaneUser, newPerson(2).announcement("new", 100), proto.HeaderClient, "198.51.100.1"); v.Outcome != proto.HeldBack {
		t.Errorf("a newcomer: %+v", v)
	}
	state := owner.state("mine", 200)
	if v := s.ask(proto.LaneUser, state, proto.HeaderClient, "192.0.2.1"); v.Outcome != proto.HeldBack {
		t.Errorf("the owner's state: %+v", v)
	}
	if v := s.release(state); v.Outcome != proto.Accepted {
		t.Errorf("its release: %+v", v)
	}
}
