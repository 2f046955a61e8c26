package writer

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
	view := r.Index.View()
	defer view.Close()
	if n, err := view.Len(); err != nil || n != 1 {
		t.Fatalf("%d events are left, want only the deletion request (%v)", n, err)
	}
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Subject == proto.EventSubjectOf(state).String() && (len(m.Data) > 0 || m.Header.Get(proto.HeaderRemoved) != state.ID) {
			t.Errorf("the log has %q, %v in the place of the state", m.Data, m.Header)
		}
	}
	older := alice.state("tree", 150)
	if v := s.ask(proto.LaneUser, alice.announcement("tree", 400)); v.Outcome != proto.HeldBack {
		t.Fatalf("a new announcement: %+v", v)
	}
	if v := s.ask(proto.LaneUser, older); v.Outcome != proto.HeldBack {
		t.Fatalf("an older state than the one that has left: %+v", v)
	}
	if v := s.ask(proto.LaneUser, state); v.Outcome != proto.HeldBack {
		t.Fatalf("the state, submitted again: %+v", v)
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
			first := start(t, b, "first", func(w *Writer) {
				w.afterEvents = func() {
					if armed.Load() {
						close(crashed)
						<-dead
					}
				}
				w.turn.beforePull = func() {
					if armed.Load() {
						<-dead
					}
				}
			})
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
			eventually(t, "the standby takes over", second.Writing)
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

func TestVerdictComesAfterTheCommit(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	proceed := make(chan struct{})
	reached := make(chan struct{}, 1)
	start(t, b, "one", func(w *Writer) {
		w.beforeCommit = func() {
			reached <- struct{}{}
			<-proceed
		}
	})
	s := newSender(t, b, "after")
	ev := newPerson(1).grasps(1)
	s.send(proto.LaneUser, ev)
	<-reached
	if m, err := s.sub.NextMsg(200 * time.Millisecond); err == nil {
		t.Fatalf("a verdict before the commit: %s", m.Data)
	}
	close(proceed)
	v := s.wait(1)[0]
	if v.Outcome != proto.Accepted {
		t.Fatalf("verdict: %+v", v)
	}
	// When the verdict is there, the event is in the log, at the sequence that it names.
	stream, err := b.JS.Stream(t.Context(), proto.StreamEvents)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), v.Seq)
	if err != nil || m.Subject != proto.EventSubjectOf(ev).String() {
		t.Fatalf("at %d: %v, %v", v.Seq, m, err)
	}
}

func TestUserOvertakesASync(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	const batch = 100
	backlog := make([]*nostr.Event, 20*batch)
	for i := range backlog {
		backlog[i] = newPerson(1000 + i).grasps(i)
	}
	synced := newSender(t, b, "sync")
	synced.sendAll(proto.LaneSyncHistoric, backlog)
	reached, proceed := make(chan struct{}), make(chan struct{})
	seen := newWitness()
	startWith(t, b, "one", batch, func(w *Writer) {
		seen.Policy, w.Policy = w.Policy, seen
		w.beforeCommit = func() {
			select {
			case reached <- struct{}{}:
				<-proceed
			case <-proceed: // closed: nobody looks any more
			}
		}
	})
	goOn := sync.OnceFunc(func() { close(proceed) })
	t.Cleanup(goOn)
	<-reached // the writer is at work
	user := newSender(t, b, "user")
	ev := newPerson(1).grasps(1)
	user.send(proto.LaneUser, ev)
	seen.wait(t, ev.ID)
	for range 2 { // what is being committed, and the batch that is decided meanwhile
		proceed <- struct{}{}
		<-reached
	}
	if v := user.wait(1)[0]; v.Outcome != proto.Accepted {
		t.Fatalf("the user's event: %+v", v)
	}
	goOn()
	for _, v := range synced.wait(len(backlog)) {
		if v.Outcome != proto.Accepted {
			t.Fatalf("a synced event: %+v", v)
		}
	}
}

func TestMalformedCandidatesDoNotStandInTheWay(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	start(t, b, "one", nil)
	s := newSender(t, b, "malformed")
	good := newPerson(1).grasps(1)
	forged := *good
	forged.Content = "something else"
	huge := newPerson(2).event(1, 100, strings.Repeat("x", 1<<20-32<<10))
	for i, data := range [][]byte{nil, []byte("{"), []byte("null"), []byte(`{"kind":-1}`), []byte("\xff\xfe"), encode(t, &forged), encode(t, huge)} {
		s.raw(proto.LaneUser, data, proto.HeaderRef, fmt.Sprint(i))
	}
	s.raw(proto.LaneSyncLive, encode(t, good), proto.HeaderSource, "hearsay", proto.HeaderRef, "7")
	s.raw(proto.LaneRelease, encode(t, good), proto.HeaderAction, "explode", proto.HeaderRef, "8")
	s.raw(proto.LaneUser, encode(t, good), proto.HeaderReply, "grasp.event.1.x.y") // nobody may be made to hear verdicts there
	for _, v := range s.wait(9) {
		if v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "invalid: ") {
			t.Errorf("malformed: %+v", v)
		}
	}
	if v := s.ask(proto.LaneUser, good); v.Outcome != proto.Duplicate {
		t.Fatalf("the good one, sent again: %+v", v)
	}
	eventually(t, "the queue is empty", func() bool { return queued(t, b) == 0 })
}

func TestRestartGoesOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := openBus(t, dir)
	r := start(t, b, "before", nil)
	s := newSender(t, b, "before")
	alice, bob := newPerson(1), newPerson(2)
	announcement := alice.announcement("tree", 100)
	orphan := bob.state("tree", 100)
	s.ask(proto.LaneUser, announcement)
	if v := s.ask(proto.LaneSyncLive, orphan); v.Outcome != proto.Rejected || v.Message != "invalid: author not authorized for this repository" {
		t.Fatalf("a stranger's state: %+v", v)
	}
	s.ask(proto.LaneUser, bob.grasps(1))
	r.stop()
	b.Close()

	b = openBus(t, dir)
	start(t, b, "after", nil)
	s = newSender(t, b, "after")
	if v := s.ask(proto.LaneUser, announcement); v.Outcome != proto.Duplicate || v.Message != proto.MessagePurgatory {
		t.Errorf("the held announcement: %+v", v)
	}
	if v := s.ask(proto.LaneUser, bob.grasps(1)); v.Outcome != proto.Duplicate {
		t.Errorf("the accepted event: %+v", v)
	}
	before := messages(t, b, proto.StreamRejected)
	if v := s.ask(proto.LaneSyncLive, orphan); v.Outcome != proto.Rejected || before != 1 {
		t.Errorf("the rejected event: %+v; %d remembered", v, before)
	}
	if v := s.release(announcement); v.Outcome != proto.Accepted {
		t.Errorf("the release: %+v", v)
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
	if r.Park.Len() != 3 || r.Rejected.Len() != 3 {
		t.Fatalf("%d parked, %d remembered, want 3 and 3", r.Park.Len(), r.Rejected.Len())
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
	if r.Park.Len() != 0 || r.Rejected.Len() != 0 {
		t.Errorf("%d parked, %d remembered, want none", r.Park.Len(), r.Rejected.Len())
	}
	if got, want := logIDs(t, b), []string{announcement.ID, issue.ID, comment.ID, state.ID}; !slices.Equal(got, want) && !sameIDs(got, []*nostr.Event{announcement, state, issue, comment}) {
		t.Errorf("the log is %v, want %v", got, want)
	}
}

func TestIdleWritesNothing(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var pulls atomic.Int64
	r := start(t, b, "one", func(w *Writer) { w.turn.beforePull = func() { pulls.Add(1) } })
	eventually(t, "the replica writes", r.Writing)
	streams := []string{proto.StreamEvents, proto.StreamRejected, proto.KVStream(proto.BucketHeld)}
	var before [3]uint64
	for i, name := range streams {
		before[i], _ = b.LastSeq(t.Context(), name)
	}
	begun := pulls.Load()
	eventually(t, "the turn is confirmed a few times", func() bool { return pulls.Load() > begun+3 })
	if !r.Writing() {
		t.Error("the turn was lost while idle")
	}
	for i, name := range streams {
		if after, _ := b.LastSeq(t.Context(), name); after != before[i] {
			t.Errorf("%s grew from %d to %d", name, before[i], after)
		}
	}
}

// A graceful stop hands the turn on without waiting for the pin to lapse, and nothing is lost or
// done twice on the way.
func TestHandOver(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	first := start(t, b, "first", nil)
	eventually(t, "the first replica writes", first.Writing)
	second := start(t, b, "second", nil)
	s := newSender(t, b, "hand")
	var events []*nostr.Event
	for i := range 2000 {
		events = append(events, newPerson(100+i).grasps(i))
	}
	s.sendAll(proto.LaneSyncLive, events[:1000])
	if second.Writing() {
		t.Fatal("two replicas write")
	}
	go first.stop()
	s.sendAll(proto.LaneSyncLive, events[1000:])
	s.wait(len(events))
	first.stop()
	eventually(t, "the second replica writes", second.Writing)
	if got := logIDs(t, b); !sameIDs(got, events) {
		t.Errorf("the log has %d events, want %d", len(got), len(events))
	}
}

// One event that the log refuses to store does not keep the others out.
func TestUnstorableEventIsLeftOut(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	for _, cfg := range proto.Streams(b.Sizing()) {
		if cfg.Name == proto.StreamEvents {
			cfg.MaxMsgSize = 4000
			if _, err := b.JS.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := newSender(t, b, "large")
	var events []*nostr.Event
	for i := range 30 {
		events = append(events, newPerson(100+i).grasps(i))
	}
	large := newPerson(1).event(10317, 100, strings.Repeat("x", 8000))
	s.sendAll(proto.LaneUser, slices.Insert(slices.Clone(events), 15, large))
	start(t, b, "one", nil)
	outcomes := map[proto.Outcome]int{}
	for _, v := range s.wait(31) {
		outcomes[v.Outcome]++
		if v.ID == large.ID && (v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "error: ")) {
			t.Errorf("the large one: %+v", v)
		}
	}
	if outcomes[proto.Accepted] != 30 || outcomes[proto.Rejected] != 1 {
		t.Errorf("%v", outcomes)
	}
	if got := logIDs(t, b); !sameIDs(got, events) {
		t.Errorf("the log has %d events", len(got))
	}
	eventually(t, "the queue is empty", func() bool { return queued(t, b) == 0 })
}

// testLanes are lanes that nothing is fetched for.
func testLanes() (l *lanes, user, release, live, sync *lane) {
	user, release, live, sync = newLane("user", 100), newLane("release", 100), newLane("live", 100), newLane("sync", 100)
	return &lanes{all: []*lane{user, release, live, sync}}, user, release, live, sync
}

// count takes a batch and counts its events by the subjects of their packs.
func (l *lanes) count(t *testing.T, most int, counts map[string]int) {
	t.Helper()
	items, err := l.next(t.Context(), room{most, most}, time.After(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		counts[it.pack.msg.Subject()]++
	}
}

// A lane in flood leaves a share to each that comes after it, whether candidates come alone or in
// packs.
func TestLanesAreServedInOrder(t *testing.T) {
	t.Parallel()
	for _, lines := range []int{1, 50} {
		l, user, _, _, _ := testLanes()
		for range 100 / lines {
			for _, lane := range l.all {
				lane.put(t.Context(), &message{subject: lane.name, data: bytes.Repeat([]byte("\n"), lines-1)})
			}
		}
		for i, want := range []map[string]int{
			{"user": 50, "release": 10, "live": 10, "sync": 10}, {"user": 50, "release": 10, "live": 10, "sync": 10},
			{"release": 60, "live": 10, "sync": 10}, {"release": 20, "live": 50, "sync": 10}, {"live": 20, "sync": 60}, {},
		} {
			got := map[string]int{}
			if l.count(t, 80, got); !maps.Equal(got, want) {
				t.Errorf("packs of %d, batch %d: %v, want %v", lines, i, got, want)
			}
		}
		for _, lane := range l.all {
			if lane.events.Load() != 0 || lane.current != nil {
				t.Errorf("%d events are left in %s", lane.events.Load(), lane.name)
			}
		}
		if !user.room.TryAcquire(laneBytes) {
			t.Error("room is not given back")
		}
	}
}

// Neither few large candidates of users nor a batch that is too small to be shared keep the other
// lanes out.
func TestUsersNeverFillEveryBatch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		most, bytes int
		batches     int
	}{
		{"large", 500, 1 << 19, 1},
		{"small batches", 1, 100, 24},
	} {
		l, user, release, live, sync := testLanes()
		for _, lane := range []*lane{release, live, sync} {
			lane.put(t.Context(), &message{subject: lane.name, data: make([]byte, 100)})
		}
		counts := map[string]int{}
		for range tc.batches {
			for len(user.fetched) < 4 {
				user.put(t.Context(), &message{subject: "user", data: make([]byte, tc.bytes)})
			}
			l.count(t, tc.most, counts)
		}
		if counts["release"] != 1 || counts["live"] != 1 || counts["sync"] != 1 || counts["user"] == 0 {
			t.Errorf("%s: %v after %d batches", tc.name, counts, tc.batches)
		}
	}
}

// A lane of synced events that is full keeps out neither users' events nor releases, and both are
// decided before most of it.
func TestAFullSyncLaneKeepsNobodyElseOut(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	s := newSender(t, b, "full")
	first := start(t, b, "one", nil)
	held, issue := newPerson(2).announcement("tree", 100), newPerson(1).issue(newPerson(2), "tree", 1)
	if v := s.ask(proto.LaneUser, held); v.Outcome != proto.HeldBack {
		t.Fatalf("a new announcement: %+v", v)
	}
	first.stop()
	// Nobody decides until the lane takes no more.
	synced := 0
	for size := 900 << 10; size > 0; {
		ev := newPerson(1000+synced).event(10317, 100, strings.Repeat("x", size))
		_, err := b.JS.PublishMsg(t.Context(), s.message(proto.LaneSyncHistoric, encode(t, ev)))
		switch {
		case err == nil:
			synced++
		case strings.Contains(err.Error(), "maximum bytes exceeded"):
			size /= 4 // until there is no room for the smallest
		default:
			t.Fatal(err)
		}
	}
	if synced < 30 {
		t.Fatalf("the lane is full after %d candidates: the test needs more", synced)
	}
	s.act(proto.ActionRelease, held)
	grasps := newPerson(3).grasps(1)
	s.send(proto.LaneUser, grasps)
	judge := newWitness()
	start(t, b, "two", func(w *Writer) {
		judge.Policy, w.Policy = w.Policy, judge
		// However slow the server is to hand them out, both are there before much has been decided.
		w.beforeCommit = func() {
			eventually(t, "both are fetched", func() bool {
				user, release := w.lanes.all[0], w.lanes.all[1]
				return user.events.Load()+release.events.Load()+int64(judge.count(held.ID)+judge.count(grasps.ID)) >= 2
			})
		}
	})
	// What was fetched first may be decided first, which is no more than two batches of 4 MiB.
	seen := map[string]proto.Outcome{}
	for _, v := range s.wait(1 + synced + 2)[1:20] {
		seen[v.ID] = v.Outcome
	}
	if seen[held.ID] != proto.Accepted || seen[grasps.ID] != proto.Accepted {
		t.Errorf("decided at first: %v", seen)
	}
	if v := s.ask(proto.LaneUser, issue); v.Outcome != proto.Accepted {
		t.Errorf("an issue of what was released: %+v", v)
	}
}

// Large candidates fill a lane before many of them do.
func TestLaneIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	l := newLane("user", 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		put := 0
		for ; ctx.Err() == nil; put++ {
			l.put(ctx, &message{data: make([]byte, 1<<20)})
		}
		ended <- put
	}()
	eventually(t, "the lane is full", func() bool { return len(l.fetched) == laneBytes>>20 })
	cancel()
	if put, left := <-ended, len(l.takeLeft()); left != 1 || put != laneBytes>>20+1 {
		t.Errorf("of %d that were put %d are left to be given back, want the one that found no room", put, left)
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
