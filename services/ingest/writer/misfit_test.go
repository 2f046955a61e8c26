package writer

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/policy"
)

// baffled cannot decide one event.
type baffled struct {
	Policy
	id    string
	times int // 0: never
	tried int
}

func (p *baffled) Decide(k policy.Knowledge, c *candidate.Candidate) (policy.Decision, error) {
	if c.Event.ID == p.id {
		if p.tried++; p.times == 0 || p.tried <= p.times {
			return policy.Decision{}, errors.New("baffled")
		}
	}
	return p.Policy.Decide(k, c)
}

// TestUndecidableEventIsGivenUp: a candidate that cannot be decided is refused alone, whatever it
// stands among, and the writer goes on.
func TestUndecidableEventIsGivenUp(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var events []*nostr.Event
	for i := range 60 {
		events = append(events, newPerson(100+i).grasps(i))
	}
	puzzle := &baffled{id: events[40].ID}
	r := start(t, b, "a", func(w *Writer) { puzzle.Policy, w.Policy = w.Policy, puzzle })
	s := newSender(t, b, "puzzle")
	s.sendAll(proto.LaneUser, events)
	// It is its own fault if others are decided all the while.
	answered := func() bool {
		return slices.ContainsFunc(s.verdicts, func(v proto.Verdict) bool { return v.ID == puzzle.id })
	}
	for i := 0; !answered(); i++ {
		events = append(events, newPerson(1000+i).grasps(i))
		s.send(proto.LaneUser, events[60+i])
		s.wait(len(s.verdicts) + 1)
	}
	for _, v := range s.wait(len(events)) {
		switch {
		case v.ID == puzzle.id && (v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "error: ")):
			t.Errorf("the undecidable one: %+v", v)
		case v.ID != puzzle.id && v.Outcome != proto.Accepted:
			t.Errorf("one of the others: %+v", v)
		}
	}
	if v := s.ask(proto.LaneUser, newPerson(1).grasps(1)); v.Outcome != proto.Accepted || puzzle.tried < tries {
		t.Errorf("after %d tries the next one: %+v", puzzle.tried, v)
	}
	if err := r.Troubled(); err != nil {
		t.Errorf("still in trouble: %v", err)
	}
	if got, want := logIDs(t, b), append(slices.Delete(slices.Clone(events), 40, 41), newPerson(1).grasps(1)); !sameIDs(got, want) {
		t.Errorf("the log has %d events, want %d", len(got), len(want))
	}
}

// outage is a disk that cannot be read for a while.
type outage struct {
	Policy
	over atomic.Bool
}

func (p *outage) Decide(k policy.Knowledge, c *candidate.Candidate) (policy.Decision, error) {
	if !p.over.Load() {
		return policy.Decision{}, errors.New("too many open files")
	}
	return p.Policy.Decide(k, c)
}

// TestNothingIsGivenUpWhileNothingCanBeRead, and the writer says that it is in trouble.
func TestNothingIsGivenUpWhileNothingCanBeRead(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var events []*nostr.Event
	for i := range 20 {
		events = append(events, newPerson(100+i).grasps(i))
	}
	var disk outage
	r := start(t, b, "a", func(w *Writer) { disk.Policy, w.Policy = w.Policy, &disk })
	s := newSender(t, b, "outage")
	s.sendAll(proto.LaneSyncLive, events)
	eventually(t, "more failures than candidates have tries", func() bool {
		r.trouble.mu.Lock()
		defer r.trouble.mu.Unlock()
		return r.trouble.count > 2*tries*len(events)
	})
	if err := r.Troubled(); err == nil {
		t.Error("the writer is content")
	}
	disk.over.Store(true)
	for _, v := range s.wait(len(events)) {
		if v.Outcome != proto.Accepted {
			t.Errorf("%+v", v)
		}
	}
}

// TestParkedEventSurvivesAFencedBatch: an issue that came by sync before its repository is accepted
// with it, though the first batch that would have done so was refused.
func TestParkedEventSurvivesAFencedBatch(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	p := newPerson(1)
	var armed atomic.Bool
	start(t, b, "a", func(w *Writer) {
		w.beforeCommit = func() {
			if armed.CompareAndSwap(true, false) {
				if _, err := b.JS.Publish(t.Context(), proto.SubjectEventsMark, []byte(`{"writer":"other"}`)); err != nil {
					t.Error(err)
				}
			}
		}
	})
	parkedThenReleased(t, b, p, func(s *sender, announcement *nostr.Event) {
		armed.Store(true)
		if v := s.release(announcement); v.Outcome != proto.Accepted {
			t.Fatalf("%+v", v)
		}
	})
}

// TestParkedEventSurvivesAnUndecidedNeighbour: the same with a batch that was taken back.
func TestParkedEventSurvivesAnUndecidedNeighbour(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	neighbour := newPerson(9).grasps(1)
	puzzle := &baffled{id: neighbour.ID, times: 1}
	var armed, released atomic.Bool
	hold := make(chan struct{})
	start(t, b, "a", func(w *Writer) {
		puzzle.Policy, w.Policy = w.Policy, puzzle
		w.beforeCommit = func() {
			if armed.CompareAndSwap(true, false) {
				<-hold // until both are waiting, so that they come into one batch
				released.Store(true)
			}
		}
	})
	parkedThenReleased(t, b, newPerson(1), func(s *sender, announcement *nostr.Event) {
		armed.Store(true)
		s.send(proto.LaneUser, newPerson(8).grasps(1))
		eventually(t, "the writer holds", func() bool { return !armed.Load() })
		s.act(proto.ActionRelease, announcement)
		s.send(proto.LaneSyncLive, neighbour)
		close(hold)
		s.wait(5)
		if !released.Load() || puzzle.tried != 2 {
			t.Errorf("the neighbour was tried %d times", puzzle.tried)
		}
	})
}

// parkedThenReleased holds an announcement, parks an issue of it, does what releases the
// announcement, and waits for the issue in the log.
func parkedThenReleased(t *testing.T, b *bus.Bus, p person, release func(*sender, *nostr.Event)) {
	t.Helper()
	s := newSender(t, b, "parked")
	announcement, issue := p.announcement("x", 1000), newPerson(2).issue(p, "x", 1)
	if v := s.ask(proto.LaneUser, announcement); v.Outcome != proto.HeldBack {
		t.Fatalf("%+v", v)
	}
	if v := s.ask(proto.LaneSyncLive, issue); v.Outcome != proto.Rejected {
		t.Fatalf("%+v", v)
	}
	release(s, announcement)
	eventually(t, "the parked issue is accepted", func() bool { return slices.Contains(logIDs(t, b), issue.ID) })
}

// TestUndecidedForAMoment: what fails once is tried again, and the sender does not notice.
func TestUndecidedForAMoment(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	ev := newPerson(1).grasps(1)
	puzzle := &baffled{id: ev.ID, times: tries - 1}
	start(t, b, "a", func(w *Writer) { puzzle.Policy, w.Policy = w.Policy, puzzle })
	if v := newSender(t, b, "moment").ask(proto.LaneUser, ev); v.Outcome != proto.Accepted {
		t.Errorf("%+v", v)
	}
}

// TestTroubledWriterSaysSo: a writer that only ever fails is not ready.
func TestTroubledWriterSaysSo(t *testing.T) {
	t.Parallel()
	var w Writer
	for range manyTroubles {
		if err := w.Troubled(); err != nil {
			t.Errorf("too early: %v", err)
		}
		w.trouble.note(errors.New("the disk"))
	}
	if err := w.Troubled(); err == nil || !strings.Contains(err.Error(), "the disk") {
		t.Errorf("%d failures in a row: %v", manyTroubles, err)
	}
	w.trouble.over()
	if err := w.Troubled(); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
