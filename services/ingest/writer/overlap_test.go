package writer

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// witness is a policy that says which events were decided.
type witness struct {
	Policy
	mu      sync.Mutex
	decided map[string]int
}

func newWitness() *witness { return &witness{decided: map[string]int{}} }

func (p *witness) Decide(k policy.Knowledge, c *policy.Candidate) (policy.Decision, error) {
	d, err := p.Policy.Decide(k, c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided[c.Event.ID]++
	return d, err
}

func (p *witness) count(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.decided[id]
}

// wait waits until an event was decided.
func (p *witness) wait(t testing.TB, id string) {
	t.Helper()
	eventually(t, "event "+id[:8]+" is decided", func() bool { return p.count(id) > 0 })
}

// gate holds commits: of each it says that it is about to begin, and waits until it may.
type gate struct {
	begun, may chan struct{}
	open       atomic.Bool
}

// heldAtGate starts a writer whose commits wait at a gate, and whose decisions have a witness.
func heldAtGate(t *testing.T, batch int, prepare func(*Writer)) (*replica, *gate, *witness, *sender) {
	t.Helper()
	b := openBus(t, t.TempDir())
	g, seen := &gate{begun: make(chan struct{}, 1), may: make(chan struct{})}, newWitness()
	r := startWith(t, b, "one", batch, func(w *Writer) {
		seen.Policy, w.Policy = w.Policy, seen
		w.beforeCommit = func() {
			if !g.open.Load() {
				g.begun <- struct{}{}
				<-g.may
			}
		}
		if prepare != nil {
			prepare(w)
		}
	})
	t.Cleanup(g.release)
	return r, g, seen, newSender(t, b, "overlap")
}

// release lets this commit and all later ones go on.
func (g *gate) release() {
	if g.open.CompareAndSwap(false, true) {
		close(g.may)
	}
}

// TestTheNextBatchIsDecidedMeanwhile: while an announcement is committed, what needs it is decided
// as if that were done, and nothing of it is told or stored.
func TestTheNextBatchIsDecidedMeanwhile(t *testing.T) {
	t.Parallel()
	r, g, seen, s := heldAtGate(t, 500, nil)
	p := newPerson(1)
	announcement, issue := p.announcement("x", 1000), newPerson(2).issue(p, "x", 1)
	g.open.Store(true)
	s.ask(proto.LaneUser, announcement)
	g.open.Store(false)
	s.act(proto.ActionRelease, announcement)
	<-g.begun
	s.send(proto.LaneSyncLive, issue)
	seen.wait(t, issue.ID)
	if got := logIDs(t, r.Bus); len(got) != 0 || len(s.verdicts) != 1 {
		t.Errorf("%d events in the log, %d verdicts before the commit", len(got), len(s.verdicts))
	}
	g.release()
	verdicts := s.wait(3)
	for i, want := range []*nostr.Event{announcement, issue} {
		if v := verdicts[i+1]; v.ID != want.ID || v.Outcome != proto.Accepted || v.Seq == 0 {
			t.Errorf("verdict %d: %+v", i, v)
		}
	}
	if got := logIDs(t, r.Bus); !sameIDs(got, []*nostr.Event{announcement, issue}) {
		t.Errorf("the log: %v", got)
	}
	if r.Held.Len() != 0 || seen.count(issue.ID) != 1 {
		t.Errorf("%d held; the issue was decided %d times", r.Held.Len(), seen.count(issue.ID))
	}
}

// TestARefusedCommitTakesTheNextAlong: what was decided on a batch that is refused is decided
// again, on what the log has then, and answered once.
func TestARefusedCommitTakesTheNextAlong(t *testing.T) {
	t.Parallel()
	r, g, seen, s := heldAtGate(t, 500, nil)
	p := newPerson(1)
	announcement, issue := p.announcement("x", 1000), newPerson(2).issue(p, "x", 1)
	g.open.Store(true)
	s.ask(proto.LaneUser, announcement)
	g.open.Store(false)
	s.act(proto.ActionRelease, announcement)
	<-g.begun
	s.send(proto.LaneSyncLive, issue)
	seen.wait(t, issue.ID)
	if _, err := r.Bus.JS.Publish(t.Context(), proto.SubjectEventsMark, []byte(`{"writer":"other"}`)); err != nil {
		t.Fatal(err)
	}
	g.release()
	eventually(t, "both are in the log", func() bool { return len(logIDs(t, r.Bus)) == 2 })
	for _, v := range s.wait(3)[1:] {
		// The issue may come again before the announcement: it is parked then, and healed.
		if v.Outcome != proto.Accepted && v.ID != issue.ID {
			t.Errorf("%+v", v)
		}
	}
	if seen.count(issue.ID) < 2 {
		t.Errorf("the issue was decided %d times", seen.count(issue.ID))
	}
}

// TestNothingBelowAFailureIsCommitted: a batch that is to follow one that failed between two of its
// commits is not committed behind what the failure has left.
func TestNothingBelowAFailureIsCommitted(t *testing.T) {
	t.Parallel()
	var failing atomic.Bool
	r, g, seen, s := heldAtGate(t, 500, func(w *Writer) {
		w.afterEvents = func() {
			if failing.CompareAndSwap(true, false) {
				// The head of the held events is another now, and is refused.
				if _, err := w.Bus.JS.Publish(context.Background(), proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey), []byte(`{"writer":"other"}`)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	p := newPerson(1)
	announcement, issue := p.announcement("x", 1000), newPerson(2).issue(p, "x", 1)
	g.open.Store(true)
	s.ask(proto.LaneUser, announcement)
	g.open.Store(false)
	s.act(proto.ActionRelease, announcement)
	<-g.begun
	s.send(proto.LaneSyncLive, issue)
	seen.wait(t, issue.ID)
	failing.Store(true)
	g.release()
	eventually(t, "both are in the log", func() bool { return len(logIDs(t, r.Bus)) == 2 })
	for _, v := range s.wait(3)[1:] {
		want := proto.Accepted
		if v.ID == announcement.ID {
			want = proto.Duplicate // its commit went through before the failure
		}
		if v.Outcome != want {
			t.Errorf("%+v, want %s", v, want)
		}
	}
	eventually(t, "the held entry is gone", func() bool { return r.Held.Len() == 0 })
	if seen.count(issue.ID) != 2 {
		t.Errorf("the issue was decided %d times", seen.count(issue.ID))
	}
}

// TestOneAfterTheOther: many batches, each decided on the one before, with held events, rejections and
// what heals them in each, end as they would one by one, and are answered in order.
func TestOneAfterTheOther(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var commits atomic.Int64
	s := newSender(t, b, "order")
	var events []*nostr.Event
	for i := range 60 {
		p := newPerson(100 + i)
		name := fmt.Sprintf("repo%d", i)
		// Each issue comes before its repository, which replaces the one before it at once.
		events = append(events, newPerson(1).issue(p, name, i), p.elsewhere(name, 1000), p.announcement(name, 1001), p.grasps(i), p.grasps(i+1))
	}
	for pack := range slices.Chunk(events, 5) {
		s.sendPack(proto.LaneSyncHistoric, pack)
	}
	r := startWith(t, b, "one", 7, func(w *Writer) { w.beforeCommit = func() { commits.Add(1) } })
	for i, v := range s.wait(len(events)) {
		if v.ID != events[i].ID {
			t.Fatalf("verdict %d is for %s, want %s", i, v.ID, events[i].ID)
		}
	}
	if n := commits.Load(); n < int64(len(events)/12) {
		t.Errorf("%d commits", n)
	}
	var seqs []uint64
	for _, v := range s.verdicts {
		if v.Outcome == proto.Accepted {
			seqs = append(seqs, v.Seq)
		}
	}
	if !slices.IsSorted(seqs) || len(seqs) == 0 {
		t.Errorf("accepted at %v", seqs)
	}
	if r.Held.Len() != 60 {
		t.Errorf("%d held, want the 60 announcements", r.Held.Len())
	}
}
