package writer

import (
	"context"
	"strings"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// TestEphemeralEvents: one about what is accepted is told on the bus, and leaves no trace in a
// stream; so does one that is refused. Its bytes count in the budget of its author.
func TestEphemeralEvents(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r := start(t, b, "writer", func(w *Writer) { w.Settings.DailyAuthorBytes, w.Settings.DailyAddressBytes = 2<<10, 1<<20 })
	told, err := b.Conn.SubscribeSync(proto.AnyEphemeral)
	must(t, err, b.Conn.Flush())
	s, alice, bob := newSender(t, b), newPerson(1), newPerson(2)
	about := func(n int64, tags ...nostr.Tag) *nostr.Event {
		return bob.event(29846, n, strings.Repeat("x", 300), tags...)
	}
	s.serve(alice.announcement("tree", 100))
	rejected, err := bus.LastSeq(t.Context(), b.JS, proto.StreamRejected)
	must(t, err)
	log := r.Index.Seq()

	first := about(1, alice.repo("tree"))
	s.ask(proto.PassedOn, proto.LaneUser, first, proto.HeaderTraceParent, "00-abc")
	s.ask(proto.Rejected, proto.LaneUser, about(2, alice.repo("bush")))
	for _, lane := range []proto.Lane{proto.LaneSyncLive, proto.LaneSyncHistoric, proto.LaneSyncDaily, proto.LaneImport} {
		s.ask(proto.Rejected, lane, about(3, alice.repo("tree")), proto.HeaderRelay, "wss://relay.example")
	}
	for n := int64(4); ; n++ {
		s.raw(proto.LaneUser, encode(t, about(n, alice.repo("tree"))), proto.HeaderClient, "192.0.2.1")
		all := s.wait(len(s.verdicts) + 1)
		if v := all[len(all)-1]; v.Outcome == proto.Rejected {
			if !strings.HasPrefix(v.Message, "rate-limited: this author") || n < 5 {
				t.Errorf("%d: %+v", n, v)
			}
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	m, err := told.NextMsgWithContext(ctx)
	must(t, err)
	if string(m.Data) != text(first) || m.Subject != proto.EphemeralSubject(first) || m.Header.Get(proto.HeaderTraceParent) != "00-abc" {
		t.Errorf("told of %s on %s with %v", m.Data, m.Subject, m.Header)
	}
	wantLog(t, b, alice.announcement("tree", 100))
	last, err := bus.LastSeq(t.Context(), b.JS, proto.StreamRejected)
	if err != nil || last != rejected || r.Index.Seq() != log || r.Held.Len() != 0 || len(r.park.byID) != 0 {
		t.Errorf("%d rejections, the log at %d, %d held, %d parked; %v", last-rejected, r.Index.Seq(), r.Held.Len(), len(r.park.byID), err)
	}
}
