package writer

import (
	"testing"

	"tendril.dev/proto"
)

// TestAnImportLeavesNothingBehind: what an import brings is decided as everything else, but what is
// rejected is neither remembered nor parked, and a rejection that was remembered of a relay's copy
// is no answer to it.
func TestAnImportLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "a", nil)
	s := newSender(t, b, "import")
	owner, guest := newPerson(1), newPerson(2)
	announcement, issue := owner.announcement("tree", 100), guest.issue(owner, "tree", 1)
	state := owner.state("tree", 200)

	imported := []string{proto.HeaderSource, string(proto.SourceImport)}
	if v := s.ask(proto.LaneSyncHistoric, issue); v.Outcome != proto.Rejected || !v.Retry {
		t.Fatalf("an orphan from a relay: %+v", v)
	}
	if v := s.ask(proto.LaneSyncHistoric, state, imported...); v.Outcome != proto.Rejected || !v.Retry {
		t.Fatalf("a state without an announcement: %+v", v)
	}
	bad := guest.event(30617, 100, "") // no d: wrong for good
	if v := s.ask(proto.LaneSyncHistoric, bad, imported...); v.Outcome != proto.Rejected || v.Retry {
		t.Fatalf("an announcement that is none: %+v", v)
	}
	if n := r.Park.Len(); n != 1 {
		t.Errorf("%d events are parked, want the relay's orphan alone", n)
	}
	if got := readStream(t, b, proto.StreamRejected); len(got) != 1 {
		t.Errorf("%d rejections are remembered, want the relay's orphan alone", len(got))
	}

	if v := s.ask(proto.LaneSyncHistoric, announcement, imported...); v.Outcome != proto.HeldBack {
		t.Fatalf("the announcement: %+v", v)
	}
	// Still an orphan, because held announcements speak for nothing. Asked again it is decided
	// again.
	if v := s.ask(proto.LaneSyncHistoric, issue, imported...); v.Outcome != proto.Rejected || !v.Retry {
		t.Fatalf("an orphan: %+v", v)
	}
	if v := s.release(announcement); v.Outcome != proto.Accepted {
		t.Fatalf("the release: %+v", v)
	}
	if v := s.ask(proto.LaneSyncHistoric, issue, imported...); v.Outcome == proto.Rejected {
		t.Fatalf("it is no orphan any more: %+v", v)
	}
	if v := s.ask(proto.LaneSyncHistoric, state, imported...); v.Outcome != proto.HeldBack {
		t.Fatalf("the state: %+v", v)
	}
}
