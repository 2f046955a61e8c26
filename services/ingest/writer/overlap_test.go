package writer

import (
	"context"
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

// deciding has a writer commit the release of an announcement at the gate, and decide what needs it
// meanwhile.
func deciding(t *testing.T, prepare func(*Writer)) (r *replica, g *gate, seen *witness, s *sender, announcement, issue *nostr.Event) {
	t.Helper()
	r, g, seen, s = heldAtGate(t, 500, prepare)
	p := newPerson(1)
	announcement, issue = p.announcement("x", 1000), newPerson(2).issue(p, "x", 1)
	g.open.Store(true)
	s.ask(proto.LaneUser, announcement)
	g.open.Store(false)
	s.act(proto.ActionRelease, announcement)
	<-g.begun
	s.send(proto.LaneSyncLive, issue)
	seen.wait(t, issue.ID)
	return r, g, seen, s, announcement, issue
}

// TestTheNextBatchIsDecidedMeanwhile: while an announcement is committed, what needs it is decided
// as if that were done, and nothing of it is told or stored.
func TestTheNextBatchIsDecidedMeanwhile(t *testing.T) {
	t.Parallel()
	r, g, seen, s, announcement, issue := deciding(t, nil)
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

// TestAFailedCommitTakesTheNextAlong: what was decided on a batch that is refused, or that fails
// between its two commits, is decided again on what the log has then, and answered once.
func TestAFailedCommitTakesTheNextAlong(t *testing.T) {
	t.Parallel()
	held := proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey)
	for subject, want := range map[string]proto.Outcome{
		proto.SubjectEventsMark: proto.Accepted, held: proto.Duplicate, // the log's commit goes through before the failure
	} {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			var failing atomic.Bool
			fail := func(w *Writer) {
				if _, err := w.Bus.JS.Publish(context.Background(), subject, []byte(`{"writer":"other"}`)); err != nil {
					t.Error(err)
				}
			}
			r, g, seen, s, announcement, issue := deciding(t, func(w *Writer) {
				w.afterEvents = func() {
					if failing.CompareAndSwap(true, false) {
						fail(w)
					}
				}
			})
			if subject == held {
				failing.Store(true)
			} else {
				fail(r.Writer)
			}
			g.release()
			eventually(t, "both are in the log", func() bool { return len(logIDs(t, r.Bus)) == 2 })
			for _, v := range s.wait(3)[1:] {
				// The issue may come again before the announcement: it is parked then, and healed.
				if v.ID == announcement.ID && v.Outcome != want {
					t.Errorf("%+v, want %s", v, want)
				}
			}
			eventually(t, "the held entry is gone", func() bool { return r.Held.Len() == 0 })
			if seen.count(issue.ID) < 2 {
				t.Errorf("the issue was decided %d times", seen.count(issue.ID))
			}
		})
	}
}
