package writer

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/candidate"
	"tendril.dev/services/ingest/policy"
)

// manyGrasps makes events that are accepted as they come.
func manyGrasps(from, n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, newPerson(from+i).grasps(i))
	}
	return events
}

// TestAPackIsDecidedInSeveralBatches, and answered once, in its order, when the last one is
// committed.
func TestAPackIsDecidedInSeveralBatches(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var commits atomic.Int64
	startWith(t, b, "a", 10, func(w *Writer) { w.beforeCommit = func() { commits.Add(1) } })
	s := newSender(t, b, "split")
	events := manyGrasps(100, 25)
	s.sendPack(proto.LaneSyncHistoric, events, proto.HeaderRef, "7")
	m, err := s.sub.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	var vs proto.Verdicts
	if err := json.Unmarshal(m.Data, &vs); err != nil {
		t.Fatal(err)
	}
	if vs.Ref != "7" || len(vs.Verdicts) != len(events) {
		t.Fatalf("%d verdicts on %q", len(vs.Verdicts), vs.Ref)
	}
	for i, v := range vs.Verdicts {
		if v.ID != events[i].ID || v.Kind != 10317 || v.Outcome != proto.Accepted || v.Seq == 0 {
			t.Errorf("verdict %d: %+v", i, v)
		}
	}
	if n := commits.Load(); n != 3 {
		t.Errorf("%d commits, want 3", n)
	}
	if got := logIDs(t, b); !sameIDs(got, events) {
		t.Errorf("the log has %d events", len(got))
	}
	eventually(t, "the pack is acknowledged", func() bool { return queued(t, b) == 0 })
}

// TestACrashInTheMiddleOfAPack: the pack comes again, what was decided is a duplicate then, and the
// rest is decided for the first time.
func TestACrashInTheMiddleOfAPack(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var commits atomic.Int64
	second, gone := make(chan struct{}), make(chan struct{})
	first := startWith(t, b, "one", 10, func(w *Writer) {
		w.beforeCommit = func() {
			if commits.Add(1) == 2 {
				close(second)
				<-gone // and then nothing is stored: the head has moved
			}
		}
	})
	s := newSender(t, b, "crash")
	events := manyGrasps(100, 25)
	s.sendPack(proto.LaneSyncHistoric, events)
	<-second
	if _, err := b.JS.Publish(t.Context(), proto.SubjectEventsMark, []byte(`{"writer":"other"}`)); err != nil {
		t.Fatal(err)
	}
	close(gone)
	for i, v := range s.wait(len(events)) {
		want := proto.Accepted
		if i < 10 {
			want = proto.Duplicate
		}
		if v.ID != events[i].ID || v.Outcome != want {
			t.Errorf("verdict %d: %+v, want %s", i, v, want)
		}
	}
	if s.messages != 1 {
		t.Errorf("%d messages of verdicts, want 1", s.messages)
	}
	if got := logIDs(t, b); !sameIDs(got, events) {
		t.Errorf("the log has %d events", len(got))
	}
	first.stop()
}

// TestABadLineIsRefusedAlone, whatever is wrong with it.
func TestABadLineIsRefusedAlone(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	start(t, b, "a", nil)
	s := newSender(t, b, "bad")
	events := manyGrasps(100, 5)
	var lines [][]byte
	for _, ev := range events {
		lines = append(lines, encode(t, ev))
	}
	lines[1] = []byte(`{"id":"`)
	lines[3] = bytes.Replace(lines[3], []byte("10317"), []byte("10318"), 1)
	s.raw(proto.LaneSyncLive, proto.JoinPack(lines))
	for i, v := range s.wait(5) {
		if bad := i == 1 || i == 3; bad != (v.Outcome == proto.Rejected && strings.HasPrefix(v.Message, "invalid: ")) || !bad && (v.ID != events[i].ID || v.Outcome != proto.Accepted) {
			t.Errorf("line %d: %+v", i, v)
		}
	}
	eventually(t, "the pack is acknowledged", func() bool { return queued(t, b) == 0 })
	// A pack without one good line is answered too, and does not come again.
	s.raw(proto.LaneSyncLive, []byte("\n\n"))
	for _, v := range s.wait(8)[5:] {
		if v.Outcome != proto.Rejected {
			t.Errorf("%+v", v)
		}
	}
	eventually(t, "it is acknowledged", func() bool { return queued(t, b) == 0 })
}

// TestAnUndecidableEventOfAPack is refused alone, after some tries, and the others are decided.
func TestAnUndecidableEventOfAPack(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	events := manyGrasps(100, 30)
	puzzle := &baffled{id: events[20].ID}
	startWith(t, b, "a", 7, func(w *Writer) { puzzle.Policy, w.Policy = w.Policy, puzzle })
	s := newSender(t, b, "puzzle")
	s.sendPack(proto.LaneSyncHistoric, events)
	// It is its own fault if others are decided all the while.
	more := newSender(t, b, "more")
	for i := 0; len(s.verdicts) == 0; i++ {
		more.ask(proto.LaneUser, newPerson(1000+i).grasps(i))
		if n, _, err := s.sub.Pending(); err != nil {
			t.Fatal(err)
		} else if n > 0 {
			s.wait(1)
		}
	}
	for i, v := range s.wait(len(events)) {
		switch {
		case v.ID != events[i].ID:
			t.Errorf("verdict %d is on %s", i, v.ID)
		case i == 20 && (v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "error: ")):
			t.Errorf("the undecidable one: %+v", v)
		case i != 20 && !v.OK():
			t.Errorf("one of the others: %+v", v)
		}
	}
	if s.messages != 1 || puzzle.tried < tries {
		t.Errorf("%d messages after %d tries", s.messages, puzzle.tried)
	}
	eventually(t, "the pack is acknowledged", func() bool { return queued(t, b) == 0 })
}

// TestAPackDuringAnOutage is not tried event by event, and not given up.
func TestAPackDuringAnOutage(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var disk counted
	start(t, b, "a", func(w *Writer) { disk.Policy, w.Policy = w.Policy, &disk })
	s := newSender(t, b, "outage")
	events := manyGrasps(100, 500)
	s.sendPack(proto.LaneSyncHistoric, events)
	eventually(t, "the pack has come again", func() bool { return disk.first.Load() > 2 })
	if n := disk.all.Load(); n > 20 {
		t.Errorf("%d tries of a pack of %d that came %d times", n, len(events), disk.first.Load())
	}
	disk.over.Store(true)
	for i, v := range s.wait(len(events)) {
		// When the outage ended, some of it may have been tried already: the rest of the pack was
		// accepted then, and is a duplicate when the pack comes again for these.
		if v.ID != events[i].ID || v.Outcome != proto.Accepted && v.Outcome != proto.Duplicate {
			t.Fatalf("verdict %d: %+v", i, v)
		}
	}
	if got := logIDs(t, b); len(got) != len(events) {
		t.Errorf("the log has %d events, want %d", len(got), len(events))
	}
}

// counted is an outage that counts how often it was met, in all and by the first event of a pack.
type counted struct {
	outage
	first, all atomic.Int64
}

func (p *counted) Decide(k policy.Knowledge, c *candidate.Candidate) (policy.Decision, error) {
	if !p.over.Load() {
		p.all.Add(1)
		if c.Event.PubKey == string(newPerson(100)) {
			p.first.Add(1)
		}
		return policy.Decision{}, errors.New("too many open files")
	}
	return p.Policy.Decide(k, c)
}

// TestLiveOvertakesHistoric: a live event does not wait behind packs of older ones that were there
// before it.
func TestLiveOvertakesHistoric(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	var commits atomic.Int64
	const packs, size = 40, 50
	history := newSender(t, b, "history")
	for i := range packs {
		history.sendPack(proto.LaneSyncHistoric, manyGrasps(1000+i*size, size))
	}
	s := newSender(t, b, "live")
	ev := newPerson(1).grasps(1)
	s.send(proto.LaneSyncLive, ev)
	startWith(t, b, "a", 100, func(w *Writer) { w.beforeCommit = func() { commits.Add(1) } })
	if v := s.wait(1)[0]; v.ID != ev.ID || v.Outcome != proto.Accepted {
		t.Fatalf("%+v", v)
	}
	// What was fetched before the live lane was open may come first: a few batches of twenty.
	if n := commits.Load(); n > packs*size/100/2 {
		t.Errorf("the live event was decided after %d commits", n)
	}
	history.wait(packs * size)
}

// TestVerdictsStaySendable: sentences are cut before a message of verdicts is larger than the bus
// takes.
func TestVerdictsStaySendable(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "a", nil)
	s := newSender(t, b, "long")
	p := &pack{Pack: candidate.Pack{Reply: s.sub.Subject, Ref: "1"}}
	for range 1000 {
		p.verdicts = append(p.verdicts, proto.Verdict{ID: strings.Repeat("a", 64), Outcome: proto.Rejected, Message: "invalid: " + strings.Repeat("ü", 2000)})
	}
	r.tell(p)
	for _, v := range s.wait(1000) {
		if !strings.HasPrefix(v.Message, "invalid: ü") || len(v.Message) > maxSentence || strings.Contains(v.Message, "\ufffd") {
			t.Fatalf("%q", v.Message)
		}
	}
}

// TestWhatIsParkedKeepsNoPack: an event that waits in memory does not hold the rest of its message.
func TestWhatIsParkedKeepsNoPack(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	r := start(t, b, "a", func(w *Writer) { w.turn.beforePull = func() { <-t.Context().Done() } })
	if err := r.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer r.lanes.close()
	data := encode(t, newPerson(2).issue(newPerson(1), "x", 1))
	p := readPack(&message{subject: proto.LaneSyncLive.Subject(), data: data, header: map[string][]string{proto.HeaderSource: {string(proto.SourceLive)}}})
	r.fetched = itemsOf(p)
	r.advance(t)
	c := p.Events[0].Candidate
	if r.Park.Len() != 1 || !bytes.Equal(c.Raw, data) || &c.Raw[0] == &data[0] {
		t.Errorf("%d parked, with %d bytes of the message's own", r.Park.Len(), len(c.Raw))
	}
}
