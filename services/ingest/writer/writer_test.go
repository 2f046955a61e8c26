package writer

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/held"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// TestStoryOfARepository: it waits for git data, is released, and is given up. Its state and an
// issue leave the log when purgatory says that it is removed, and what comes later finds no trace
// of them.
func TestStoryOfARepository(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r, s := start(t, b, "one"), newSender(t, b)
	alice, bob := newPerson(1), newPerson(2)
	announcement, state, issue := alice.announcement("tree", 100), alice.state("tree", 200), bob.issue(alice, "tree", 1)
	if v := s.ask(proto.HeldBack, proto.LaneUser, announcement); v.Message != proto.MessagePurgatory {
		t.Errorf("a new announcement: %+v", v)
	}
	s.ask(proto.HeldBack, proto.LaneUser, state)
	s.ask(proto.Rejected, proto.LaneUser, issue)
	s.act(proto.ActionRelease, announcement) // purgatory releases both; they come together and in order
	s.act(proto.ActionRelease, state)
	if vs := s.wait(5)[3:]; vs[0].Outcome != proto.Accepted || vs[1].Outcome != proto.Accepted || vs[1].Seq != vs[0].Seq+1 {
		t.Fatalf("releases: %+v", vs)
	}
	s.ask(proto.Accepted, proto.LaneUser, issue, proto.HeaderTraceParent, "00-abc")
	msgs := readStream(t, b, proto.StreamEvents)
	last := msgs[len(msgs)-1]
	if last.Header.Get(proto.HeaderSource) != string(proto.SourceUser) || last.Header.Get(proto.HeaderTraceParent) != "00-abc" {
		t.Errorf("headers of the issue: %v", last.Header)
	}
	s.asks(proto.Duplicate, proto.ActionRelease, state)
	if v := s.asks(proto.Done, proto.ActionRemove, issue); v.Seq != 0 || r.Held.Len() != 0 {
		t.Fatalf("the removal of what is needed: %+v; %d are held", v, r.Held.Len())
	}
	s.ask(proto.Accepted, proto.LaneUser, alice.event(5, 300, "", nostr.Tag{"e", announcement.ID}))
	before := r.Index.Seq()
	for i, ev := range []*nostr.Event{state, issue, announcement} {
		if v := s.asks(proto.Done, proto.ActionRemove, ev); (v.Seq > before) != (i < 2) {
			t.Fatalf("%d: the removal: %+v", ev.Kind, v)
		}
	}
	for _, m := range readStream(t, b, proto.StreamEvents) {
		if m.Subject == proto.EventSubjectOf(state).String() && (len(m.Data) > 0 || m.Header.Get(proto.HeaderRemoved) != state.ID) {
			t.Errorf("the log has %q, %v in the place of the state", m.Data, m.Header)
		}
	}
	for _, ev := range []*nostr.Event{alice.announcement("tree", 400), alice.state("tree", 150), state} {
		s.ask(proto.HeldBack, proto.LaneUser, ev)
	}
}

// What an arrival heals is decided again at once, and forgotten by the index of rejected ids.
func TestArrivalHeals(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r, s := start(t, b, "one"), newSender(t, b)
	alice, bob := newPerson(1), newPerson(2)
	announcement, state, issue := alice.announcement("tree", 100), alice.state("tree", 200), bob.issue(alice, "tree", 1)
	comment := bob.event(1111, 300, "a comment", nostr.Tag{"E", issue.ID})
	remembers := func(want int) {
		t.Helper()
		if len(r.park.byID) != want || r.Rejected.Len() != want {
			t.Errorf("%d parked, %d remembered, want %d", len(r.park.byID), r.Rejected.Len(), want)
		}
	}
	for _, ev := range []*nostr.Event{comment, issue, state} { // each before what it belongs to
		s.ask(proto.Rejected, proto.LaneSyncLive, ev)
	}
	remembers(3)
	s.ask(proto.HeldBack, proto.LaneUser, announcement)
	eventually(t, "the state is held", func() bool { return r.Held.ByID(state.ID) != nil })
	s.act(proto.ActionRelease, announcement)
	s.act(proto.ActionRelease, state)
	s.wait(6)
	eventually(t, "issue and comment are accepted", func() bool { return len(logIDs(t, b)) == 4 })
	s.ask(proto.Duplicate, proto.LaneUser, comment)
	remembers(0)
	wantLog(t, b, announcement, state, issue, comment)
}

// TestMaintainersAreReleasedWithTheirOwner: announcements that wait with another's are released
// with it, and their own maintainers' with them.
func TestMaintainersAreReleasedWithTheirOwner(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r, s := start(t, b, "writer"), newSender(t, b)
	alice, bob, carol := newPerson(1), newPerson(2), newPerson(3)
	owners, bobs, carols := alice.announcement("tree", 100, bob), bob.elsewhere("tree", 100, carol), carol.elsewhere("tree", 100)
	s.ask(proto.Rejected, proto.LaneSyncLive, bobs) // it is parked until an announcement names him
	s.ask(proto.HeldBack, proto.LaneUser, owners)
	eventually(t, "the maintainer's is held with it", func() bool { return r.Held.ByID(bobs.ID) != nil })
	s.ask(proto.HeldBack, proto.LaneUser, carols)
	wantLog(t, b)
	for _, ev := range []*nostr.Event{bobs, carols} { // vouched for by held ones only
		s.asks(proto.Done, proto.ActionRelease, ev)
	}
	s.asks(proto.Accepted, proto.ActionRelease, owners)
	eventually(t, "all are released", func() bool { return r.Held.Len() == 0 })
	wantLog(t, b, owners, bobs, carols)
}

// TestANewWriterReleasesWhatACrashLeft: the owner's announcement was released, and the process
// ended before the maintainer's was.
func TestANewWriterReleasesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	alice, bob, carol := newPerson(1), newPerson(2), newPerson(3)
	first, s := start(t, b, "first"), newSender(t, b)
	owners, bobs, carols := alice.announcement("tree", 100, bob), bob.elsewhere("tree", 100), carol.elsewhere("tree", 100)
	s.serve(owners)
	first.stop()
	for _, ev := range []*nostr.Event{bobs, carols} { // carol's has lost its voucher
		e, err := held.NewEntry(proto.Held{Event: ev, Identifier: "tree", Source: proto.SourceUser, Phase: proto.PhaseVouched, HeldAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)})
		must(t, err)
		data, err := e.Encode()
		must(t, err)
		_, err = b.JS.PublishMsg(t.Context(), &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, e.Key), Data: data})
		must(t, err)
	}
	second := start(t, b, "second")
	eventually(t, "nothing is held any more", func() bool { return second.isWriting() && second.Held.Len() == 0 })
	wantLog(t, b, owners, bobs)
}

// TestAnImportLeavesNothingBehind: what an import brings is decided as everything else, but what is
// rejected is neither remembered nor parked, and a rejection that was remembered of a relay's copy
// is no answer to it.
func TestAnImportLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	r, s := start(t, b, "a"), newSender(t, b)
	owner, guest := newPerson(1), newPerson(2)
	announcement, issue, state := owner.announcement("tree", 100), guest.issue(owner, "tree", 1), owner.state("tree", 200)
	imports := func(want proto.Outcome, ev *nostr.Event, retry bool) {
		t.Helper()
		if v := s.ask(want, proto.LaneImport, ev); v.Retry != retry {
			t.Errorf("%+v, want retry %v", v, retry)
		}
	}
	s.ask(proto.Rejected, proto.LaneSyncHistoric, issue) // an orphan from a relay
	imports(proto.Rejected, state, true)
	imports(proto.Rejected, guest.event(30617, 100, ""), false) // no d: wrong for good
	if got := readStream(t, b, proto.StreamRejected); len(got) != 1 || len(r.park.byID) != 1 || !strings.Contains(string(got[0].Data), r.Settings.RulesHash()) {
		t.Errorf("%d are remembered and %d parked, want the relay's orphan alone", len(got), len(r.park.byID))
	}
	imports(proto.HeldBack, announcement, false)
	imports(proto.Rejected, issue, true) // held announcements speak for nothing
	s.asks(proto.Accepted, proto.ActionRelease, announcement)
	eventually(t, "the relay's orphan is accepted", func() bool { return len(logIDs(t, b)) == 2 })
	imports(proto.Duplicate, issue, false)
	imports(proto.HeldBack, state, false)
}

// TestRejectedByOtherSettings: what was rejected by settings that have changed since is decided
// again when a relay brings it once more.
func TestRejectedByOtherSettings(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	s, announcement := newSender(t, b), newPerson(1).announcement("tree", 100)
	listing := testSettings()
	listing.RepositoryWhitelist = []string{"bush"}
	before := startWith(t, b, "before", listing)
	s.ask(proto.Rejected, proto.LaneSyncHistoric, announcement)
	before.stop()
	start(t, b, "after")
	s.ask(proto.HeldBack, proto.LaneSyncHistoric, announcement)
}

// TestForgedEventsDecideNothing: a login that may publish synced events cannot make up events of
// others. Each of these would change what is served of the owner's repository.
func TestForgedEventsDecideNothing(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	start(t, b, "writer")
	s, owner := newSender(t, b), newPerson(1)
	served := owner.announcement("tree", 100)
	s.serve(served)
	for _, ev := range []*nostr.Event{
		owner.event(5, 300, "", owner.repo("tree")), owner.elsewhere("tree", 200), owner.state("tree", 300),
		owner.event(1618, 300, "", owner.repo("tree"), nostr.Tag{"c", strings.Repeat("b", 40)}),
		owner.event(1619, 300, "", owner.repo("tree"), nostr.Tag{"c", strings.Repeat("b", 40)}, nostr.Tag{"E", served.ID}),
	} {
		ev.Sig = strings.Repeat("0", 128)
		for _, lane := range []proto.Lane{proto.LaneUser, proto.LaneSyncLive, proto.LaneSyncHistoric, proto.LaneSyncDaily} {
			n := len(s.verdicts)
			s.send(lane, ev)
			if v := s.wait(n + 1)[n]; v.Outcome != proto.Rejected || !strings.Contains(v.Message, "signature") {
				t.Errorf("kind %d on lane %s: %+v", ev.Kind, lane, v)
			}
		}
	}
	wantLog(t, b, served)
}

// TestPark: a park gives back what came, in that order, until its time is over; when it is full the
// oldest goes; and what one arrival sets off is bounded.
func TestPark(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	p, began := newPark(2*time.Minute, newParkMetrics(registry)), time.Unix(1_800_000_000, 0)
	large := strings.Repeat("x", 10<<10)
	add := func(at time.Time, ids ...int) {
		for _, id := range ids {
			p.add(&policy.Candidate{Event: &nostr.Event{ID: fmt.Sprint(id), Kind: nostr.KindAnnouncement, Content: large}}, at)
		}
	}
	var all []int
	var ids []string
	for n := range 5000 {
		all, ids = append(all, n), append(ids, fmt.Sprint(n))
	}
	want := func(count int, first ...string) {
		t.Helper()
		taken := p.take(ids, func(string) int { return nostr.KindState })
		for i, id := range first {
			if len(taken) != count || taken[i].Event.ID != id {
				t.Errorf("taken: %d, want %d, %q first", len(taken), count, first)
			}
		}
	}
	add(began, 2, 1)
	add(began.Add(time.Minute), 2) // it stays as it is
	p.expire(began.Add(2*time.Minute - 1))
	want(2, "2", "1")
	want(0)
	add(began, 1)
	p.expire(began.Add(2 * time.Minute))
	want(0)
	add(began, all...)
	want(1024, "1880", "1881")
	for name, count := range map[string]float64{"hits": 2 + 1024, "misses": 5000 - 1880 - 1024, "expired": 1 + 1880} {
		vec := map[string]*prometheus.CounterVec{"hits": p.metrics.hits, "misses": p.metrics.misses, "expired": p.metrics.expired}[name]
		if got := testutil.ToFloat64(vec.WithLabelValues("announcement")); got != count {
			t.Errorf("%v %s, want %v", got, name, count)
		}
	}
	if n := testutil.ToFloat64(p.metrics.current.WithLabelValues("announcement")); n != 0 {
		t.Errorf("%v are still parked", n)
	}
	if n := testutil.ToFloat64(p.metrics.misses.WithLabelValues("state")); n != 4998+5000+5000+1880 {
		t.Errorf("%v misses of what is not parked", n)
	}
}
