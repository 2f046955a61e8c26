package writer

import (
	"errors"
	"strings"
	"testing"

	"github.com/nbd-wtf/go-nostr"

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

// TestUndecidableEventIsGivenUp: a candidate that cannot be decided is refused alone, whatever it stands among, and the writer goes on.
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
	for _, v := range s.wait(len(events)) {
		switch {
		case v.ID == puzzle.id && (v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "error: ")):
			t.Errorf("the undecidable one: %+v", v)
		case v.ID != puzzle.id && v.Outcome != proto.Accepted:
			t.Errorf("one of the others: %+v", v)
		}
	}
	if v := s.ask(proto.LaneUser, newPerson(1).grasps(1)); v.Outcome != proto.Accepted {
		t.Errorf("the next one: %+v", v)
	}
	if err := r.Troubled(); err != nil {
		t.Errorf("still in trouble: %v", err)
	}
	if got, want := logIDs(t, b), append(append(events[:40:40], events[41:]...), newPerson(1).grasps(1)); !sameIDs(got, want) {
		t.Errorf("the log has %d events, want %d", len(got), len(want))
	}
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
