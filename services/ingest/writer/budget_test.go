package writer

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// budgets gives a writer small ones.
func budgets(w *Writer) {
	w.Settings.DailyAuthorBytes, w.Settings.DailyAddressBytes, w.Settings.DailyRelayBytes = 1<<20, 4<<20, 4<<20
	w.bootstrap = []nostr.RelayURL{"wss://bootstrap.example"}
}

// stored is how many bytes of events the log has.
func stored(t *testing.T, b *bus.Bus) (bytes int) {
	t.Helper()
	for _, m := range readStream(t, b, proto.StreamEvents) {
		bytes += len(m.Data)
	}
	return bytes
}

// served makes a repository of an owner served.
func (s *sender) serve(owner person, identifier string) {
	s.t.Helper()
	a := owner.announcement(identifier, 100)
	s.ask(proto.LaneUser, a)
	if v := s.release(a); v.Outcome != proto.Accepted {
		s.t.Fatalf("%+v", v)
	}
}

// large is an event of a fresh key about a repository.
func large(owner person, n int) *nostr.Event {
	return newPerson(10_000+n).event(1617, int64(1000+n), strings.Repeat("x", 100<<10), nostr.Tag{"a", "30617:" + string(owner) + ":tree"})
}

// TestOneAddressCannotFillTheLog: 240 large events with fresh keys come from one address. A part of
// them is stored; the sender is told when there is room again. Others, and the owner at the same
// address, publish meanwhile. The counts survive a restart of the writer.
func TestOneAddressCannotFillTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	first := start(t, b, "first", budgets)
	s, owner := newSender(t, b, "fill"), newPerson(1)
	s.serve(owner, "tree")
	const flood = 240
	n := len(s.verdicts)
	for i := range flood {
		s.send(proto.LaneUser, large(owner, i), proto.HeaderClient, "192.0.2.1")
	}
	accepted := 0
	midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
	for _, v := range s.wait(n + flood)[n:] {
		if v.Outcome == proto.Accepted {
			accepted++
		} else if !strings.HasPrefix(v.Message, "rate-limited: this address") || !strings.Contains(v.Message, midnight.Format(time.RFC3339)) || v.RetryAt != midnight.Unix() {
			t.Fatalf("%+v", v)
		}
	}
	if bytes := stored(t, b); bytes > 4<<20+64<<10 || accepted < 30 {
		t.Errorf("%d events are accepted, the log has %d bytes", accepted, bytes)
	}
	if v := s.ask(proto.LaneUser, large(owner, flood), proto.HeaderClient, "192.0.2.2"); v.Outcome != proto.Accepted {
		t.Errorf("from another address: %+v", v)
	}
	if v := s.ask(proto.LaneUser, owner.state("tree", 500), proto.HeaderClient, "192.0.2.1"); v.Outcome != proto.HeldBack {
		t.Errorf("the owner's state: %+v", v)
	}
	if err := first.Usage.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.stop()
	start(t, b, "second", budgets)
	if v := s.ask(proto.LaneUser, large(owner, flood+1), proto.HeaderClient, "192.0.2.1"); v.Outcome != proto.Rejected || v.RetryAt == 0 {
		t.Errorf("after a restart: %+v", v)
	}
}

// TestOneRelayCannotFillTheLog: what is too much of one relay is refused until its day is over and
// is not remembered, so that it comes again. Another relay brings the same at once; a bootstrap
// relay has ten times as much.
func TestOneRelayCannotFillTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "writer", budgets)
	s, owner := newSender(t, b, "fill"), newPerson(1)
	s.serve(owner, "tree")
	var last *nostr.Event
	const flood = 60
	n := len(s.verdicts)
	for i := range flood {
		last = large(owner, i)
		s.send(proto.LaneSyncHistoric, last, proto.HeaderRelay, "wss://hostile.example")
	}
	refused := 0
	for _, v := range s.wait(n + flood)[n:] {
		if v.Outcome == proto.Rejected {
			refused++
			if v.RetryAt == 0 || !v.Retry {
				t.Fatalf("%+v", v)
			}
		}
	}
	if refused < 10 || stored(t, b) > 4<<20+64<<10 || r.Rejected.Len() != 0 {
		t.Errorf("%d are refused, the log has %d bytes, %d are remembered", refused, stored(t, b), r.Rejected.Len())
	}
	for i := range flood {
		relay := "wss://bootstrap.example"
		if i == 0 {
			relay = "wss://other.example"
		}
		ev := last
		if i > 0 {
			ev = large(owner, flood+i)
		}
		if v := s.ask(proto.LaneSyncHistoric, ev, proto.HeaderRelay, relay); v.Outcome != proto.Accepted {
			t.Fatalf("%d, from %s: %+v", i, relay, v)
		}
	}
}

// TestAboveAHighWaterMark only owners and maintainers of served repositories add data, until there
// is room again.
func TestAboveAHighWaterMark(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var full atomic.Bool
	r := start(t, b, "writer", func(w *Writer) {
		var err error
		w.Marks, err = limit.NewMarks("test", w.Log, w.Metrics, func(context.Context) (string, error) {
			if full.Load() {
				return "the log is too large", nil
			}
			return "", nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	s, owner := newSender(t, b, "full"), newPerson(1)
	s.serve(owner, "tree")
	full.Store(true)
	r.Marks.Look(t.Context())
	issue := newPerson(2).issue(owner, "tree", 1)
	if v := s.ask(proto.LaneUser, issue); v.Outcome != proto.Rejected || v.Message != "error: this service is full" {
		t.Errorf("a stranger: %+v", v)
	}
	if v := s.ask(proto.LaneUser, owner.state("tree", 300)); v.Outcome != proto.HeldBack {
		t.Errorf("the owner's state: %+v", v)
	}
	if v := s.ask(proto.LaneUser, owner.issue(owner, "tree", 2)); v.Outcome != proto.Accepted {
		t.Errorf("the owner's issue: %+v", v)
	}
	full.Store(false)
	r.Marks.Look(t.Context())
	if v := s.ask(proto.LaneUser, issue); v.Outcome != proto.Accepted {
		t.Errorf("a stranger, later: %+v", v)
	}
}
