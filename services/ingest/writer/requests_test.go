package writer

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"tendril.dev/lib/eventdb"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// serves checks which events an index serves, as far as these say.
func (r *replica) serves(t *testing.T, want map[*nostr.Event]bool) {
	t.Helper()
	view := r.Index.View()
	defer view.Close()
	for ev, is := range want {
		if _, err := view.Event(ev.ID); (err == nil) != is {
			t.Errorf("kind %d of %d, %s: %v; want it served: %v", ev.Kind, ev.CreatedAt, ev.Content, err, is)
		}
	}
}

// TestVanish: a request to vanish takes all events of its author away up to its time, what is held
// too, and what others wrote for the author's repository alone. Nothing of that comes back: not from
// any sender, not in the same batch, and not with an index that is made again. What is later is
// welcome.
func TestVanish(t *testing.T) {
	t.Parallel()
	alice, bob := newPerson(1), newPerson(2)
	b := openBus(t)
	r, s := start(t, b, "a"), newSender(t, b)
	mine, state, theirs := alice.announcement("x", 1000), alice.state("x", 1001), bob.announcement("y", 1000)
	for _, ev := range []*nostr.Event{mine, theirs} {
		s.serve(ev)
	}
	s.ask(proto.HeldBack, proto.LaneUser, state)
	s.asks(proto.Accepted, proto.ActionRelease, state)
	waits := alice.announcement("z", 1000)
	s.ask(proto.HeldBack, proto.LaneUser, waits)
	ofMine, ofTheirs := bob.issue(alice, "x", 1), alice.issue(bob, "y", 2)
	deletion := alice.event(5, 1500, "", nostr.Tag{"e", fmt.Sprintf("%064x", 9)})
	later := alice.issue(bob, "y", 2000)
	reply := bob.event(1111, 1100, "a reply", nostr.Tag{"E", ofMine.ID})
	for _, ev := range []*nostr.Event{ofMine, ofTheirs, deletion, later, reply} {
		s.ask(proto.Accepted, proto.LaneUser, ev)
	}
	request := alice.event(62, 2000, "", nostr.Tag{"relay", "wss://" + domain})
	again := alice.issue(bob, "y", 3)
	told := len(s.verdicts)
	s.send(proto.LaneUser, request, again) // in one batch, mostly
	if got := s.wait(told + 2)[told:]; got[0].Outcome != proto.Accepted || got[1].Outcome != proto.Rejected {
		t.Fatalf("the request, and what is before it: %+v", got)
	}
	if n := r.Held.Len(); n != 0 {
		t.Errorf("%d events are held", n)
	}
	want := map[*nostr.Event]bool{mine: false, state: false, ofTheirs: false, deletion: false, ofMine: false, reply: false,
		theirs: true, later: true, request: true}
	r.serves(t, want)
	for _, lane := range []proto.Lane{proto.LaneUser, proto.LaneSyncHistoric} {
		for _, ev := range []*nostr.Event{mine, state, ofTheirs, waits, again, deletion} {
			s.ask(proto.Rejected, lane, ev)
		}
	}
	s.ask(proto.Duplicate, proto.LaneUser, request)

	r.stop()
	r = start(t, b, "b") // whose index is made from the log
	s.ask(proto.Rejected, proto.LaneUser, mine)
	must(t, r.Index.Hide(r.Bans))
	r.serves(t, want)
	s.ask(proto.HeldBack, proto.LaneUser, alice.announcement("x", 2001))
}

// TestWhatHangsOnADeletedAnnouncement is hidden with it, comes back with it, and leaves the log when
// the grace period is over. What something else needs stays.
func TestWhatHangsOnADeletedAnnouncement(t *testing.T) {
	t.Parallel()
	alice, bob, carol := newPerson(1), newPerson(2), newPerson(3)
	b := openBus(t)
	settings := testSettings()
	settings.DeletionGrace = time.Hour
	r, s := startWith(t, b, "a", settings), newSender(t, b)
	mine, other := alice.announcement("x", 1000), bob.announcement("y", 1000)
	s.serve(mine)
	s.serve(other)
	issue, listed := carol.issue(alice, "x", 1), carol.issue(alice, "x", 2)
	comment := bob.event(1111, 1100, "on the issue", nostr.Tag{"E", issue.ID}, nostr.Tag{"A", alice.repo("x")[1]})
	reply := bob.event(1111, 1101, "on the comment", nostr.Tag{"e", comment.ID})
	shared := carol.event(1111, 1102, "of both", nostr.Tag{"A", alice.repo("x")[1]}, bob.repo("y"))
	list := carol.event(30003, 1103, "a list", nostr.Tag{"d", "issues"}, bob.repo("y"), nostr.Tag{"e", listed.ID})
	for _, ev := range []*nostr.Event{issue, listed, comment, reply, shared, list} {
		s.ask(proto.Accepted, proto.LaneUser, ev)
	}
	hidden := map[*nostr.Event]bool{mine: false, issue: false, comment: false, reply: false, listed: true, shared: true, list: true}
	request := alice.event(5, 1200, "", alice.repo("x"))
	s.ask(proto.Accepted, proto.LaneUser, request)
	r.serves(t, hidden)
	s.ask(proto.Rejected, proto.LaneUser, bob.event(1111, 1300, "late", nostr.Tag{"e", issue.ID}))

	back := alice.announcement("x", 1300)
	s.serve(back)
	r.serves(t, map[*nostr.Event]bool{back: true, issue: true, comment: true, reply: true, listed: true, shared: true})

	s.ask(proto.Accepted, proto.LaneUser, alice.event(5, 1400, "", nostr.Tag{"e", back.ID}))
	hidden[back] = false
	r.serves(t, hidden)
	r.stop()
	settings.DeletionGrace = 0 // it is over
	r = startWith(t, b, "b", settings, func(w *Writer) {
		// What is hidden when the process starts is for the node to say.
		must(t, eventdb.Bind(t.Context(), b.JS, w.Index, quiet))
	})
	s.ask(proto.Rejected, proto.LaneUser, mine)
	must(t, r.Index.Hide(r.Bans))
	eventually(t, "what hangs on it leaves the log", func() bool {
		ids := logIDs(t, b)
		return !slices.ContainsFunc([]*nostr.Event{issue, comment, reply}, func(ev *nostr.Event) bool { return slices.Contains(ids, ev.ID) })
	})
	for _, ev := range []*nostr.Event{listed, shared, list, other} {
		if !slices.Contains(logIDs(t, b), ev.ID) {
			t.Errorf("kind %d, %s, has left the log", ev.Kind, ev.Content)
		}
	}
	r.serves(t, hidden)
}

// TestExpiredEventsLeaveTheLog, and the indexes, and are not taken again; so it is with a version
// that is replaced by one that expires.
func TestExpiredEventsLeaveTheLog(t *testing.T) {
	t.Parallel()
	alice, bot := newPerson(1), newPerson(2)
	b := openBus(t)
	r, s := start(t, b, "a"), newSender(t, b)
	s.serve(alice.announcement("x", 1000))
	soon := nostr.Tag{"expiration", fmt.Sprint(time.Now().Unix() + 2)}
	progress := func(at int64, tags ...nostr.Tag) *nostr.Event { // of a CI run
		return bot.event(39842, at, "", append(tags, nostr.Tag{"d", "run"}, alice.repo("x"))...)
	}
	first, last, note := progress(1000), progress(1001, soon), bot.event(1111, 1000, "", alice.repo("x"), soon)
	for _, ev := range []*nostr.Event{first, last, note} {
		s.ask(proto.Accepted, proto.LaneUser, ev)
	}
	eventually(t, "they leave the log", func() bool {
		ids := logIDs(t, b)
		return slices.Contains(ids, "removed "+last.ID) && slices.Contains(ids, "removed "+note.ID)
	})
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Header.Get(proto.HeaderRemoved) != "" && m.Header.Get("Nats-TTL") != "720h0m0s" {
			t.Errorf("what says so has the headers %v", m.Header)
		}
	}
	eventually(t, "they leave the index", func() bool { // which follows the log
		view := r.Index.View()
		defer view.Close()
		return !slices.ContainsFunc([]*nostr.Event{first, last, note}, func(ev *nostr.Event) bool {
			_, err := view.Entry(ev.ID)
			return err != eventdb.ErrNotFound
		})
	})
	s.ask(proto.Rejected, proto.LaneUser, last)
}

// TestWhatWasTakenAwayLeavesTheLog a day after the grace period is over.
func TestWhatWasTakenAwayLeavesTheLog(t *testing.T) {
	t.Parallel()
	alice := newPerson(1)
	b := openBus(t)
	settings := testSettings()
	settings.DeletionGrace = -takenMargin // a day ago
	_, s := startWith(t, b, "a", settings, func(w *Writer) { w.takenEvery = 0 }), newSender(t, b)
	s.serve(alice.announcement("x", 1000))
	note, moved := alice.issue(alice, "x", 1), alice.announcement("y", 1000)
	s.serve(moved)
	s.ask(proto.Accepted, proto.LaneUser, note)
	s.ask(proto.Accepted, proto.LaneUser, alice.event(5, 1100, "", nostr.Tag{"e", note.ID}, alice.repo("y")))
	newer := alice.announcement("y", 1200)
	s.serve(newer)
	eventually(t, "it leaves the log", func() bool { return slices.Contains(logIDs(t, b), "removed "+note.ID) })
	if ids := logIDs(t, b); !slices.Contains(ids, newer.ID) || slices.Contains(ids, "removed "+moved.ID) {
		t.Errorf("what came in its place is gone: %q", ids)
	}
	s.ask(proto.Rejected, proto.LaneUser, note)
}

// TestIdleRequests: a request that has changed nothing has an end, when it leaves the log and keeps
// nothing out any more. It stays, and every index knows that, when it keeps something out before.
func TestIdleRequests(t *testing.T) {
	t.Parallel()
	alice := newPerson(1)
	b := openBus(t)
	r, s := start(t, b, "a"), newSender(t, b)
	s.serve(alice.announcement("x", 1000))
	issue, used := alice.issue(alice, "x", 1), alice.issue(alice, "x", 2)
	s.ask(proto.Accepted, proto.LaneUser, used)
	requests := []*nostr.Event{alice.event(5, 1100, "idle", nostr.Tag{"e", issue.ID}), alice.event(5, 1100, "used", nostr.Tag{"e", used.ID}),
		alice.event(62, 500, "idle", nostr.Tag{"relay", "ALL_RELAYS"})}
	ends := func(r *replica) (ends []bool) {
		view := r.Index.View()
		defer view.Close()
		for _, request := range requests {
			e, err := view.Entry(request.ID)
			must(t, err)
			in := time.Until(e.Expires.Time())
			if e.Expires != 0 && (in < 30*24*time.Hour-time.Hour || in > 30*24*time.Hour) {
				t.Errorf("%s goes after %s", request.Content, in)
			}
			ends = append(ends, e.Expires != 0)
		}
		return ends
	}
	for _, request := range requests {
		s.ask(proto.Accepted, proto.LaneUser, request)
	}
	if got := ends(r); !slices.Equal(got, []bool{true, false, true}) {
		t.Errorf("which requests have an end: %v", got)
	}
	s.ask(proto.Rejected, proto.LaneUser, issue)
	eventually(t, "the request that kept it out stays", func() bool { return slices.Equal(ends(r), []bool{false, false, true}) })
	r.stop()
	r = start(t, b, "b")
	s.ask(proto.Rejected, proto.LaneUser, issue)
	if got := ends(r); !slices.Equal(got, []bool{false, false, true}) {
		t.Errorf("which requests have an end for a new index: %v", got)
	}
}

// TestNobodyWaitsForWhatMustLeaveTheLog: while it is looked for, users have their answers.
func TestNobodyWaitsForWhatMustLeaveTheLog(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	searching, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	start(t, b, "a", func(w *Writer) {
		w.beforeSearch = func() {
			once.Do(func() { close(searching) })
			<-goOn
		}
	})
	defer close(goOn)
	<-searching
	newSender(t, b).ask(proto.Accepted, proto.LaneUser, manyGrasps(1, 1)[0])
}

// TestDeletionsOfManyAreCommittedApart: an index takes away at once what one of them names.
func TestDeletionsOfManyAreCommittedApart(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	commits := 0
	r, s := start(t, b, "a", func(w *Writer) { w.beforeCommit = func() { commits++ } }), newSender(t, b)
	var lines [][]byte
	for n := range 3 {
		var tags nostr.Tags
		for i := range mostDeleted {
			tags = append(tags, nostr.Tag{"e", fmt.Sprintf("%064x", n*mostDeleted+i)})
		}
		lines = append(lines, encode(t, newPerson(n).event(5, 1000, "", tags...)))
	}
	s.raw(proto.LaneUser, bytes.Join(lines, []byte("\n")))
	s.wait(3)
	r.stop()
	if commits != 3 {
		t.Errorf("%d commits, want 3", commits)
	}
}
