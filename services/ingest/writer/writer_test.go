package writer

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

func TestStoryOfARepository(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "one", nil)
	s := newSender(t, b, "story")
	alice, bob := newPerson(1), newPerson(2)

	announcement, state, issue := alice.announcement("tree", 100), alice.state("tree", 200), bob.issue(alice, "tree", 1)
	if v := s.ask(proto.LaneUser, announcement); v.Outcome != proto.HeldBack || v.Message != proto.MessagePurgatory {
		t.Fatalf("a new announcement: %+v", v)
	}
	if v := s.ask(proto.LaneUser, state); v.Outcome != proto.HeldBack {
		t.Fatalf("its state: %+v", v)
	}
	if v := s.ask(proto.LaneUser, issue); v.Outcome != proto.Rejected {
		t.Fatalf("an issue for a held announcement: %+v", v)
	}
	if r.Held.Len() != 2 {
		t.Fatalf("%d held, want 2", r.Held.Len())
	}
	// Purgatory releases both; they come together and in order.
	s.act(proto.ActionRelease, announcement)
	s.act(proto.ActionRelease, state)
	vs := s.wait(5)[3:]
	if vs[0].Outcome != proto.Accepted || vs[1].Outcome != proto.Accepted || vs[1].Seq != vs[0].Seq+1 {
		t.Fatalf("releases: %+v", vs)
	}
	if v := s.ask(proto.LaneUser, issue, proto.HeaderRef, "r1", proto.HeaderTraceParent, "00-abc"); v.Outcome != proto.Accepted {
		t.Fatalf("the issue, submitted again: %+v", v)
	}
	if v := s.release(state); v.Outcome != proto.Duplicate {
		t.Fatalf("a release that was carried out already: %+v", v)
	}
	if r.Held.Len() != 0 {
		t.Fatalf("%d still held", r.Held.Len())
	}
	if v := s.remove(issue); v.Outcome != proto.Done || v.Seq != 0 {
		t.Fatalf("the removal of what is needed: %+v", v)
	}
	if got, want := logIDs(t, b), []string{announcement.ID, state.ID, issue.ID}; !slices.Equal(got, want) {
		t.Fatalf("the log is %v, want %v", got, want)
	}
	msgs := readStream(t, b, proto.StreamEvents)
	last := msgs[len(msgs)-1]
	if last.Header.Get(proto.HeaderSource) != string(proto.SourceUser) || last.Header.Get(proto.HeaderTraceParent) != "00-abc" {
		t.Errorf("headers of the issue: %v", last.Header)
	}
	if _, err := time.Parse(time.RFC3339Nano, last.Header.Get(proto.HeaderAcceptedAt)); err != nil {
		t.Errorf("accepted at: %v", err)
	}
	if last.Subject != proto.EventSubjectOf(issue).String() {
		t.Errorf("subject %s", last.Subject)
	}
}

// TestWhatNobodyNeedsLeavesTheLog: a state and an issue of a repository that was given up leave the
// log when purgatory says that it is removed, and what comes later finds no trace of them.
func TestWhatNobodyNeedsLeavesTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "one", nil)
	s := newSender(t, b, "remove")
	alice, bob := newPerson(1), newPerson(2)
	announcement, state, issue := alice.announcement("tree", 100), alice.state("tree", 200), bob.issue(alice, "tree", 1)
	s.ask(proto.LaneUser, announcement)
	s.ask(proto.LaneUser, state)
	s.release(announcement)
	s.release(state)
	s.ask(proto.LaneUser, issue)
	deletion := alice.event(5, 300, "", nostr.Tag{"e", announcement.ID})
	if v := s.ask(proto.LaneUser, deletion); v.Outcome != proto.Accepted {
		t.Fatalf("the deletion request: %+v", v)
	}
	before := r.Index.Seq()
	for i, ev := range []*nostr.Event{state, issue, announcement} {
		v := s.remove(ev)
		if i < 2 && (v.Outcome != proto.Done || v.Seq <= before) || i == 2 && v.Seq != 0 {
			t.Fatalf("%d: the removal: %+v", ev.Kind, v)
		}
	}
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Subject == proto.EventSubjectOf(state).String() && (len(m.Data) > 0 || m.Header.Get(proto.HeaderRemoved) != state.ID) {
			t.Errorf("the log has %q, %v in the place of the state", m.Data, m.Header)
		}
	}
	older := alice.state("tree", 150)
	for _, ev := range []*nostr.Event{alice.announcement("tree", 400), older, state} {
		if v := s.ask(proto.LaneUser, ev); v.Outcome != proto.HeldBack {
			t.Fatalf("kind %d at %d, after the state has left: %+v", ev.Kind, ev.CreatedAt, v)
		}
	}
}

func sameIDs(ids []string, events []*nostr.Event) bool {
	want := make([]string, len(events))
	for i, ev := range events {
		want[i] = ev.ID
	}
	slices.Sort(want)
	return slices.Equal(slices.Sorted(slices.Values(ids)), want)
}

// A crash between the commit of the log and that of the held events: the entry that is left behind
// goes with the next answer, or when the next writer begins.
func TestCrashBetweenCommitsHeals(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("release comes again: %v", again), func(t *testing.T) {
			t.Parallel()
			b := openImpatientBus(t, t.TempDir())
			crashed, dead := make(chan struct{}), make(chan struct{})
			var armed atomic.Bool
			first := standby(t, b, "first", 500, func(w *Writer) {
				w.afterEvents = func() {
					if armed.Load() {
						close(crashed)
						<-dead
					}
				}
			})
			first.running.Go(func() { _ = first.write(first.ctx) })
			s := newSender(t, b, "crash")
			announcement := newPerson(1).announcement("tree", 100)
			if v := s.ask(proto.LaneUser, announcement); v.Outcome != proto.HeldBack {
				t.Fatalf("a new announcement: %+v", v)
			}
			armed.Store(true)
			s.act(proto.ActionRelease, announcement)
			<-crashed
			// The first replica never goes on: its commit of the held events is fenced off by the
			// second one's mark.
			if !again {
				purge(t, b, proto.StreamUser)
				purge(t, b, proto.StreamRelease)
			}
			second := start(t, b, "second", nil)
			eventually(t, "the standby takes over", second.isWriting)
			if again {
				if v := s.wait(2)[1]; v.Outcome != proto.Duplicate {
					t.Errorf("the release, decided again: %+v", v)
				}
			}
			eventually(t, "the entry is dropped", func() bool { return second.Held.Len() == 0 })
			if got := logIDs(t, b); !slices.Equal(got, []string{announcement.ID}) {
				t.Errorf("the log is %v", got)
			}
			armed.Store(false)
			close(dead)
			first.stop()
		})
	}
}

// What an arrival heals is decided again at once, and forgotten by the index of rejected ids.
func TestArrivalHeals(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "one", nil)
	s := newSender(t, b, "heal")
	alice, bob := newPerson(1), newPerson(2)
	announcement, state, issue := alice.announcement("tree", 100), alice.state("tree", 200), bob.issue(alice, "tree", 1)
	comment := bob.event(1111, 300, "a comment", nostr.Tag{"E", issue.ID})
	for _, ev := range []*nostr.Event{comment, issue, state} {
		if v := s.ask(proto.LaneSyncLive, ev); v.Outcome != proto.Rejected {
			t.Fatalf("kind %d before what it belongs to: %+v", ev.Kind, v)
		}
	}
	if len(r.park.byID) != 3 || r.Rejected.Len() != 3 {
		t.Fatalf("%d parked, %d remembered, want 3 and 3", len(r.park.byID), r.Rejected.Len())
	}
	s.ask(proto.LaneUser, announcement)
	eventually(t, "the state is held", func() bool { return r.Held.ByID(state.ID) != nil })
	s.act(proto.ActionRelease, announcement)
	s.act(proto.ActionRelease, state)
	s.wait(6)
	eventually(t, "issue and comment are accepted", func() bool {
		v := r.Index.View()
		defer v.Close()
		_, err := v.Event(comment.ID)
		return err == nil
	})
	if len(r.park.byID) != 0 || r.Rejected.Len() != 0 {
		t.Errorf("%d parked, %d remembered, want none", len(r.park.byID), r.Rejected.Len())
	}
	if got, want := logIDs(t, b), []string{announcement.ID, issue.ID, comment.ID, state.ID}; !slices.Equal(got, want) && !sameIDs(got, []*nostr.Event{announcement, state, issue, comment}) {
		t.Errorf("the log is %v, want %v", got, want)
	}
}

// A graceful stop hands the claim on without waiting for it to lapse, and nothing is lost or done
// twice on the way, wherever the claim goes when another replica comes.
func TestHandOver(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	first := start(t, b, "first", nil)
	eventually(t, "the first replica writes", first.isWriting)
	second := start(t, b, "second", nil)
	s := newSender(t, b, "hand")
	events := manyGrasps(100, 600)
	s.sendAll(proto.LaneSyncLive, events[:300])
	go first.stop()
	s.sendAll(proto.LaneSyncLive, events[300:])
	s.wait(len(events))
	first.stop()
	eventually(t, "the second replica writes", second.isWriting)
	if got := logIDs(t, b); !sameIDs(got, events) {
		t.Errorf("the log has %d events, want %d", len(got), len(events))
	}
}

// queued counts the candidates of all lanes that are not decided.
func queued(t *testing.T, b *bus.Bus) (n uint64) {
	t.Helper()
	for _, stream := range []string{proto.StreamUser, proto.StreamRelease, proto.StreamLive, proto.StreamSync} {
		n += messages(t, b, stream)
	}
	return n
}

func messages(t *testing.T, b *bus.Bus, name string) uint64 {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

func purge(t *testing.T, b *bus.Bus, name string) {
	t.Helper()
	stream, err := b.JS.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}
