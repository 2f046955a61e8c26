package writer

import (
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestWhatIsDeletedByItsIDKeepsItsPlace: after an author has deleted the version that counts,
// accepted or held, older ones do not come back from any sender: not in the same batch, not later,
// and not with an index that was made again. A newer one is welcome.
func TestWhatIsDeletedByItsIDKeepsItsPlace(t *testing.T) {
	t.Parallel()
	alice := newPerson(1)
	deletes := func(ev *nostr.Event, at int64) *nostr.Event {
		return alice.event(nostr.KindDeletion, at, "", nostr.Tag{"e", ev.ID})
	}
	b := openBus(t)
	r := start(t, b, "a")
	s := newSender(t, b)
	s.serve(alice.announcement("x", 1000))

	old, counts, newer := alice.state("x", 1001), alice.state("x", 1002), alice.state("x", 1009)
	s.ask(proto.HeldBack, proto.LaneUser, old)
	s.asks(proto.Accepted, proto.ActionRelease, old)
	s.ask(proto.HeldBack, proto.LaneUser, counts)
	s.asks(proto.Accepted, proto.ActionRelease, counts)
	told := len(s.verdicts)
	s.send(proto.LaneUser, deletes(counts, 1003), old)
	if got := s.wait(told + 2)[told:]; got[1].Outcome != proto.Rejected {
		t.Errorf("the state before the deleted one, in a batch with the deletion: %+v", got[1])
	}
	s.ask(proto.Rejected, proto.LaneUser, old)

	// One that is only held.
	waits := alice.state("x", 1005)
	s.ask(proto.HeldBack, proto.LaneUser, waits)
	s.ask(proto.Accepted, proto.LaneUser, deletes(waits, 1006))
	s.ask(proto.Rejected, proto.LaneUser, alice.state("x", 1004))

	first, second := alice.announcement("y", 1000), alice.announcement("y", 1010)
	s.ask(proto.HeldBack, proto.LaneUser, first)
	s.ask(proto.HeldBack, proto.LaneUser, second)
	s.ask(proto.Accepted, proto.LaneUser, deletes(second, 1011))
	s.ask(proto.Rejected, proto.LaneUser, first)

	s.serve(alice.announcement("z", 1000))
	moved := alice.announcement("z", 1002)
	s.ask(proto.Accepted, proto.LaneUser, moved)
	s.ask(proto.Accepted, proto.LaneUser, deletes(moved, 1003))
	s.ask(proto.Rejected, proto.LaneUser, alice.announcement("z", 1000))

	r.stop()
	start(t, b, "b") // whose index is made from the log
	for _, ev := range []*nostr.Event{old, alice.state("x", 1004), first, alice.announcement("z", 1000)} {
		s.ask(proto.Rejected, proto.LaneUser, ev)
	}
	s.ask(proto.HeldBack, proto.LaneUser, newer)
	s.asks(proto.Accepted, proto.ActionRelease, newer)
	s.ask(proto.HeldBack, proto.LaneUser, alice.announcement("z", 1012)) // it replaces nothing that counts
}
