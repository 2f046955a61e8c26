package writer

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// budgets gives a writer small ones.
func budgets(w *Writer) {
	w.Settings.DailyAuthorBytes, w.Settings.DailyAddressBytes, w.Settings.DailyRelayBytes = 1<<20, 4<<20, 4<<20
	w.bootstrap = []nostr.RelayURL{"wss://bootstrap.example"}
}

// large is an event of a fresh key about a repository.
func large(owner person, n int) *nostr.Event {
	return newPerson(10_000+n).event(1617, int64(1000+n), strings.Repeat("x", 100<<10), owner.repo("tree"))
}

// flood sends large events and returns the verdicts on those that are refused. What is stored is
// within the budget.
func (s *sender) flood(lane proto.Lane, owner person, count int, headers ...string) (refused []proto.Verdict) {
	s.t.Helper()
	n := len(s.verdicts)
	for i := range count {
		s.raw(lane, encode(s.t, large(owner, i)), headers...)
	}
	for _, v := range s.wait(n + count)[n:] {
		if v.Outcome == proto.Rejected {
			refused = append(refused, v)
		}
	}
	bytes := 0
	for _, m := range readStream(s.t, s.b, proto.StreamEvents) {
		bytes += len(m.Data)
	}
	if bytes > 4<<20+64<<10 || count-len(refused) < 30 || len(refused) < 10 {
		s.t.Errorf("%d of %d events are refused, the log has %d bytes", len(refused), count, bytes)
	}
	return refused
}

// TestOneAddressCannotFillTheLog: 240 large events with fresh keys come from one address. A part of
// them is stored; the sender is told when there is room again. Others, and the owner at the same
// address, publish meanwhile. The counts survive a restart of the writer.
func TestOneAddressCannotFillTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	first, s, owner := start(t, b, "first", budgets), newSender(t, b), newPerson(1)
	s.serve(owner.announcement("tree", 100))
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	for _, v := range s.flood(proto.LaneUser, owner, 240, proto.HeaderClient, "192.0.2.1") {
		if !strings.HasPrefix(v.Message, "rate-limited: this address") || !strings.Contains(v.Message, midnight.Format(time.RFC3339)) || v.RetryAt != midnight.Unix() {
			t.Fatalf("%+v", v)
		}
	}
	s.ask(proto.Accepted, proto.LaneUser, large(owner, 240), proto.HeaderClient, "192.0.2.2")
	s.ask(proto.HeldBack, proto.LaneUser, owner.state("tree", 500), proto.HeaderClient, "192.0.2.1")
	must(t, first.Usage.Save(t.Context()))
	first.stop()
	start(t, b, "second", budgets)
	if v := s.ask(proto.Rejected, proto.LaneUser, large(owner, 241), proto.HeaderClient, "192.0.2.1"); v.RetryAt == 0 {
		t.Errorf("after a restart: %+v", v)
	}
}

// TestOneRelayCannotFillTheLog: what is too much of one relay is refused until its day is over and
// is not remembered, so that it comes again. Another relay brings the same at once; a bootstrap
// relay has ten times as much.
func TestOneRelayCannotFillTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r, s, owner := start(t, b, "writer", budgets), newSender(t, b), newPerson(1)
	s.serve(owner.announcement("tree", 100))
	for _, v := range s.flood(proto.LaneSyncHistoric, owner, 60, proto.HeaderRelay, "wss://hostile.example") {
		if v.RetryAt == 0 || !v.Retry {
			t.Fatalf("%+v", v)
		}
	}
	if n := r.Rejected.Len(); n != 0 {
		t.Errorf("%d are remembered", n)
	}
	var astray []nostr.Tag
	for n := range 60 {
		astray = append(astray, nostr.Tag{"e", fmt.Sprintf("%064x", n)})
	}
	orphan := func(n int, relay string, remembered int) {
		t.Helper()
		s.ask(proto.Rejected, proto.LaneSyncHistoric, owner.event(1, int64(n), "", astray...), proto.HeaderRelay, relay)
		if got := r.Rejected.Len(); got > remembered {
			t.Errorf("%d rejections are remembered, want %d", got, remembered)
		}
	}
	for n := range 4 { // of what is left, no more than 100 KiB, each takes 31
		orphan(n, "wss://hostile.example", 3)
	}
	if s.verdicts[len(s.verdicts)-1].RetryAt == 0 {
		t.Error("the relay is not read later")
	}
	s.ask(proto.Accepted, proto.LaneSyncHistoric, large(owner, 59), proto.HeaderRelay, "wss://other.example")
	for i := range 60 {
		s.ask(proto.Accepted, proto.LaneSyncHistoric, large(owner, 60+i), proto.HeaderRelay, "wss://bootstrap.example")
	}
}

// TestAboveAHighWaterMark only owners and maintainers of served repositories add data, until there
// is room again.
func TestAboveAHighWaterMark(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	var full atomic.Pointer[string]
	r := start(t, b, "writer", func(w *Writer) {
		w.Marks = limit.NewMarks("test", quiet, w.Metrics, func(context.Context) (string, error) { return *full.Load(), nil })
	})
	look := func(why string) {
		full.Store(&why)
		r.Marks.Look(t.Context())
	}
	s, owner := newSender(t, b), newPerson(1)
	announcement, issue := owner.announcement("tree", 100), newPerson(2).issue(owner, "tree", 1)
	s.serve(announcement)
	look("the log is too large")
	if v := s.ask(proto.Rejected, proto.LaneUser, issue); v.Message != "error: this service is full" {
		t.Errorf("a stranger: %+v", v)
	}
	s.ask(proto.HeldBack, proto.LaneUser, owner.state("tree", 300))
	own := owner.issue(owner, "tree", 2)
	s.ask(proto.Accepted, proto.LaneUser, own)
	for _, named := range []*nostr.Event{own, announcement} {
		s.ask(proto.Accepted, proto.LaneUser, owner.event(1111, 400, "", nostr.Tag{"e", named.ID}))
	}
	look("")
	s.ask(proto.Accepted, proto.LaneUser, issue)
}
