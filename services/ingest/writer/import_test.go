package writer

import (
	"testing"

	"tendril.dev/lib/nostr"
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
	bad := guest.event(30617, 100, "") // no d: wrong for good
	for _, step := range []struct {
		what    string
		ev      *nostr.Event
		headers []string
		want    proto.Outcome
		retry   bool
	}{
		{"an orphan from a relay", issue, nil, proto.Rejected, true},
		{"a state without an announcement", state, imported, proto.Rejected, true},
		{"an announcement that is none", bad, imported, proto.Rejected, false},
		{"the announcement", announcement, imported, proto.HeldBack, false},
		{"still an orphan: held announcements speak for nothing", issue, imported, proto.Rejected, true},
		{"the release", announcement, nil, proto.Accepted, false},
		{"no orphan now", issue, imported, proto.Accepted, false},
		{"the state", state, imported, proto.HeldBack, false},
	} {
		if step.want == proto.Accepted && step.ev == announcement {
			if v := s.release(announcement); v.Outcome != step.want {
				t.Fatalf("%s: %+v", step.what, v)
			}
			continue
		}
		if v := s.ask(proto.LaneSyncHistoric, step.ev, step.headers...); v.Retry != step.retry || v.Outcome != step.want && v.Outcome != proto.Duplicate {
			t.Fatalf("%s: %+v", step.what, v)
		}
		if got := readStream(t, b, proto.StreamRejected); step.ev == bad && (len(got) != 1 || len(r.park.byID) != 1) {
			t.Errorf("%d are remembered and %d parked, want the relay's orphan alone", len(got), len(r.park.byID))
		}
	}
}
