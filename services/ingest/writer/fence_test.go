package writer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/limit"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// The fencing test: a writer stands still between its decision and its commit, another takes over,
// and the first goes on. Of what the first commits the log comes first, so that the fence of the
// held events shows only where nothing is for the log. The stale writer must not answer either: if
// it acknowledged what it rejected, the candidate would be gone.
func TestPausedWriterCannotCommit(t *testing.T) {
	t.Parallel()
	held, orphan := newPerson(1).announcement("tree", 100), newPerson(1).issue(newPerson(2), "tree", 1)
	for name, c := range map[string]struct {
		accepted []*nostr.Event
		other    *nostr.Event
	}{
		"log and held events": {manyGrasps(100, 12), held}, "held events only": {nil, held}, "rejections only": {nil, orphan},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			staleCommit(t, c.accepted, c.other)
		})
	}
}

// staleCommit has a writer decide candidates, of which some must be accepted and one is held or
// rejected, and commit them after another did.
func staleCommit(t *testing.T, accepted []*nostr.Event, other *nostr.Event) {
	b := openBus(t, impatient)
	pause, paused := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	// It writes without a claim: as one that stood still under SIGSTOP until its claim was another's.
	first := standby(t, b, "first", testSettings(), func(w *Writer) {
		w.beforeCommit = func() {
			if once.CompareAndSwap(false, true) {
				close(paused)
				<-pause
			}
		}
	})
	ended := make(chan error, 1)
	go func() { ended <- first.write(first.ctx) }()
	goOn := sync.OnceFunc(func() { close(pause) })
	t.Cleanup(goOn)
	eventually(t, "the first replica writes", first.isWriting)
	s := newSender(t, b)
	s.send(proto.LaneUser, append(slices.Clone(accepted), other)...)
	<-paused

	second := start(t, b, "second")
	eventually(t, "the standby takes over", second.isWriting)
	// The candidates in the first one's hands come back when their time for an answer is over; the
	// second decides them.
	s.wait(len(accepted) + 1)
	if !first.isWriting() {
		t.Fatal("the first replica does not believe any more that it writes: the test proves nothing")
	}
	// Two marks and each event once: a stream would hide a second copy of an event, its sequence
	// does not.
	wantHeads := func(when string) {
		t.Helper()
		for stream, want := range map[string]int{proto.StreamEvents: 2 + len(accepted), proto.KVStream(proto.BucketHeld): 2 + 1} {
			if head, err := bus.LastSeq(t.Context(), b.JS, stream); err != nil || head != uint64(want) {
				t.Errorf("%s the head of %s is %d, want %d (%v)", when, stream, head, want, err)
			}
		}
	}
	wantHeads("after the second writer's commit")
	goOn()
	if err := <-ended; !bus.IsConflict(err) || first.isWriting() {
		t.Errorf("the stale term ended with %v", err)
	}
	wantHeads("after the stale commit")
	if a, b := testutil.ToFloat64(first.metrics.fenced), testutil.ToFloat64(second.metrics.fenced); a != 1 || b != 0 {
		t.Errorf("the first writer was refused %v times, want once, and the second %v times", a, b)
	}
	wantLog(t, b, accepted...)
	if isHeld := second.Held.ByID(other.ID) != nil; isHeld != (other.Kind == 30617) || second.Held.Len() > 1 {
		t.Errorf("%d held", second.Held.Len())
	}
	if n := len(s.wait(len(accepted) + 1)); n != len(accepted)+1 {
		t.Error("the stale writer has answered too")
	}
}

// A crash between the commit of the log and that of the held events: the entry that is left behind
// goes with the next answer, or when the next writer begins.
func TestCrashBetweenCommitsHeals(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("release comes again: %v", again), func(t *testing.T) {
			t.Parallel()
			b := openBus(t, impatient)
			crashed, dead := make(chan struct{}), make(chan struct{})
			var armed atomic.Bool
			first := standby(t, b, "first", testSettings(), func(w *Writer) {
				w.afterEvents = func() {
					if armed.Load() {
						close(crashed)
						<-dead
					}
				}
			})
			first.running.Go(func() { _ = first.write(first.ctx) })
			s, announcement := newSender(t, b), newPerson(1).announcement("tree", 100)
			s.ask(proto.HeldBack, proto.LaneUser, announcement)
			armed.Store(true)
			s.act(proto.ActionRelease, announcement)
			<-crashed
			// The first replica never goes on: its commit of the held events is fenced off by the
			// second one's mark.
			for _, name := range []string{proto.StreamUser, proto.StreamRelease} {
				stream, err := b.JS.Stream(t.Context(), name)
				must(t, err)
				if !again {
					must(t, stream.Purge(t.Context()))
				}
			}
			second := start(t, b, "second")
			eventually(t, "the standby takes over", second.isWriting)
			if again {
				if v := s.wait(2)[1]; v.Outcome != proto.Duplicate {
					t.Errorf("the release, decided again: %+v", v)
				}
			}
			eventually(t, "the entry is dropped", func() bool { return second.Held.Len() == 0 })
			wantLog(t, b, announcement)
			armed.Store(false)
			close(dead)
			first.stop()
		})
	}
}

// TestAFencedBatchIsDecidedAgain: a commit that another writer's mark refuses, before the log's
// part or between that and the held events', is decided again with all that it has healed, and
// answered once.
func TestAFencedBatchIsDecidedAgain(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]proto.Outcome{
		proto.SubjectEventsMark:                              proto.Accepted,
		proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey): proto.Duplicate, // the log has it before the failure
	} {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			var armed atomic.Bool
			r := start(t, b, "one", func(w *Writer) {
				other := func() {
					if armed.CompareAndSwap(true, false) {
						if _, err := b.JS.Publish(t.Context(), subject, []byte(`{"writer":"other"}`)); err != nil {
							t.Error(err)
						}
					}
				}
				if w.afterEvents = other; want == proto.Accepted {
					w.beforeCommit = other
				}
			})
			s, alice := newSender(t, b), newPerson(1)
			announcement, issue := alice.announcement("x", 100), newPerson(2).issue(alice, "x", 1)
			s.ask(proto.Rejected, proto.LaneSyncLive, issue)
			s.ask(proto.HeldBack, proto.LaneUser, announcement)
			armed.Store(true)
			s.asks(want, proto.ActionRelease, announcement)
			eventually(t, "both are in the log", func() bool { return len(logIDs(t, b)) == 2 && r.Held.Len() == 0 })
			if n := testutil.ToFloat64(r.metrics.fenced); n != 1 || len(s.wait(3)) != 3 {
				t.Errorf("%v commits were refused, %d verdicts", n, len(s.verdicts))
			}
			armed.Store(true)
			list := manyGrasps(9, 1)[0]
			s.ask(proto.Accepted, proto.LaneUser, list)
			if left, _, _ := r.Usage.Left(1, limit.Charge{Party: limit.Party{What: limit.Events, Kind: limit.Author, Name: list.PubKey}, Most: 1000}); left != 1000-int64(len(nostr.Encode(list))) {
				t.Errorf("%d of 1000 bytes are left", left)
			}
		})
	}
}

// TestTwoWritersBegin: another writer begins between the two marks of one that begins. One of them
// has both heads afterwards, and the other has neither.
func TestTwoWritersBegin(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	second := &term{Writer: standby(t, b, "second", testSettings()).Writer}
	first := &term{Writer: standby(t, b, "first", testSettings(), func(w *Writer) {
		w.betweenMarks = func() { must(t, second.begin(t.Context())) }
	}).Writer}
	if err := first.begin(t.Context()); !errors.Is(err, errOvertaken) {
		t.Errorf("the first began: %v", err)
	}
	for stream, head := range map[string]uint64{proto.StreamEvents: second.head, proto.KVStream(proto.BucketHeld): second.heldHead} {
		if last, err := bus.LastSeq(t.Context(), b.JS, stream); err != nil || last != head {
			t.Errorf("the head of %s is %d, and the second's is %d; %v", stream, last, head, err)
		}
	}
}

// TestHeldEventsStayPaidFor: where only the rejections of a batch cannot be stored, what is held by
// then stays paid for.
func TestHeldEventsStayPaidFor(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	var armed atomic.Bool
	r := start(t, b, "one", func(w *Writer) {
		w.afterHeld = func() {
			if armed.CompareAndSwap(true, false) {
				must(t, b.JS.DeleteStream(t.Context(), proto.StreamRejected))
			}
		}
	})
	s, alice := newSender(t, b), newPerson(1)
	s.ask(proto.HeldBack, proto.LaneUser, newPerson(9).announcement("other", 100)) // it writes
	announcement, orphan := alice.announcement("tree", 100), newPerson(2).issue(newPerson(3), "tree", 1)
	armed.Store(true)
	s.raw(proto.LaneSyncLive, joined(t, []*nostr.Event{announcement, orphan}))
	eventually(t, "the rejection cannot be stored", func() bool { return r.trouble.Load() != nil })
	alices := limit.Charge{Party: limit.Party{What: limit.Events, Kind: limit.Author, Name: string(alice)}, Most: 10_000}
	left, _, _ := r.Usage.Left(1, alices)
	if want := 10_000 - int64(len(nostr.Encode(announcement))); left != want {
		t.Errorf("%d bytes are left to the author, want %d", left, want)
	}
}

// TestLateRejectionsOfAnEarlierWriterAreRead: no head keeps a writer that was overtaken from storing
// its last rejections. The next writer heals them too.
func TestLateRejectionsOfAnEarlierWriterAreRead(t *testing.T) {
	t.Parallel()
	b := openBus(t)
	alice, bob := newPerson(1), newPerson(2)
	announcement, own, late := alice.announcement("x", 100), bob.issue(alice, "x", 1), bob.issue(alice, "x", 2)
	var once sync.Once
	r := start(t, b, "second", func(w *Writer) {
		w.afterHeld = func() {
			once.Do(func() {
				rejected := proto.RejectedEvent{ID: late.ID, Kind: late.Kind, PubKey: late.PubKey, Missing: []string{alice.repo("x")[1]}}
				subject := proto.RejectedSubject{Kind: late.Kind, ShortID: proto.ShortID(late.ID)}.String()
				_, err := b.JS.Publish(t.Context(), subject, w.Rejected.Encode(rejected))
				if err != nil {
					t.Error(err)
				}
			})
		}
	})
	s := newSender(t, b)
	s.ask(proto.Rejected, proto.LaneSyncLive, own)
	if r.Rejected.Len() != 2 {
		t.Errorf("%d rejections are known, want both writers'", r.Rejected.Len())
	}
	s.serve(announcement)
	eventually(t, "both are healed", func() bool { return r.Rejected.Len() == 0 })
}

// TestNotReadyWithoutClaims: a replica whose heartbeat does not get through could not write.
func TestNotReadyWithoutClaims(t *testing.T) {
	t.Parallel()
	b := openBus(t, func(s *proto.Sizing) { s.WorkerTTL = 2 * time.Second })
	r := start(t, b, "one")
	eventually(t, "the heartbeat is there", func() bool {
		_, found, err := bus.Last(t.Context(), b.JS, proto.KVStream(proto.BucketWorkers), proto.KVSubject(proto.BucketWorkers, ">"))
		return err == nil && found
	})
	must(t, b.JS.DeleteStream(t.Context(), proto.KVStream(proto.BucketWorkers)))
	eventually(t, "it is not ready", func() bool { return r.Ready.Failing()["claims"] != "" })
}
