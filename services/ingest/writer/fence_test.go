package writer

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// The fencing test: a writer stands still between its decision and its commit, another takes over,
// and the first goes on. Of what the first commits the log comes first, so that the fence of the
// held events shows only where nothing is for the log.
func TestPausedWriterCannotCommit(t *testing.T) {
	t.Parallel()
	var accepted []*nostr.Event
	for i := range 6 {
		accepted = append(accepted, newPerson(100+i).grasps(i))
	}
	held, orphan := newPerson(1).announcement("tree", 100), newPerson(1).issue(newPerson(2), "tree", 1)
	for name, c := range map[string]struct {
		accepted []*nostr.Event
		other    *nostr.Event
	}{
		"log and held events": {accepted, held}, "held events only": {nil, held}, "rejections only": {nil, orphan},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			staleCommit(t, c.accepted, c.other)
		})
	}
}

// staleCommit has a writer decide candidates, of which some must be accepted and one is held or
// rejected, and commit them after another did. The stale writer must not answer either: if it
// acknowledged what it rejected, the candidate would be gone.
func staleCommit(t *testing.T, accepted []*nostr.Event, other *nostr.Event) {
	b := openImpatientBus(t, t.TempDir())
	pause, paused := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	// It writes without a claim: as one that stood still under SIGSTOP until its claim was another's.
	first := standby(t, b, "first", 500, func(w *Writer) {
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
	s := newSender(t, b, "fence")
	s.sendAll(proto.LaneUser, append(slices.Clone(accepted), other))
	<-paused

	second := start(t, b, "second", nil)
	eventually(t, "the standby takes over", second.isWriting)
	// The candidates in the first one's hands come back when their time for an answer is over; the
	// second decides them.
	s.wait(len(accepted) + 1)
	if !first.isWriting() {
		t.Fatal("the first replica does not believe any more that it writes: the test proves nothing")
	}
	// Two marks and each event once: a stream would hide a second copy of an event, its sequence
	// does not.
	heads := map[string]uint64{proto.StreamEvents: uint64(2 + len(accepted)), proto.KVStream(proto.BucketHeld): 2 + 1}
	wantHeads := func(when string) {
		t.Helper()
		for stream, want := range heads {
			if head, err := bus.LastSeq(t.Context(), b.JS, stream); err != nil || head != want {
				t.Errorf("%s the head of %s is %d, want %d (%v)", when, stream, head, want, err)
			}
		}
	}
	wantHeads("after the second writer's commit")

	goOn()
	if err := <-ended; !errors.Is(err, bus.ErrHeadMoved) || first.isWriting() {
		t.Errorf("the stale term ended with %v", err)
	}
	wantHeads("after the stale commit")
	if n := testutil.ToFloat64(first.metrics.fenced); n != 1 {
		t.Errorf("the first writer was refused %v times, want once", n)
	}
	if n := testutil.ToFloat64(second.metrics.fenced); n != 0 {
		t.Errorf("the new writer was refused %v times", n)
	}
	if got := logIDs(t, b); !sameIDs(got, accepted) {
		t.Errorf("the log has %d events, want exactly the %d that were to be accepted", len(got), len(accepted))
	}
	if isHeld := second.Held.ByID(other.ID) != nil; isHeld != (other.Kind == 30617) || second.Held.Len() > 1 {
		t.Errorf("%d held", second.Held.Len())
	}
	if len(s.wait(len(accepted)+1)) != len(accepted)+1 {
		t.Error("the stale writer has answered too")
	}
}
