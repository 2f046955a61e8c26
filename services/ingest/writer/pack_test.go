package writer

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// manyGrasps makes events that are accepted as they come.
func manyGrasps(from, n int) (events []*nostr.Event) {
	for i := range n {
		events = append(events, newPerson(from+i).grasps(i))
	}
	return events
}

// TestABadLineIsRefusedAlone.
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

// TestUrgentOvertakesHistoric: what a user or a relay brings now does not wait behind packs of older
// events that were there before it.
func TestUrgentOvertakesHistoric(t *testing.T) {
	t.Parallel()
	for _, lane := range []proto.Lane{proto.LaneUser, proto.LaneSyncLive} {
		t.Run(string(lane), func(t *testing.T) {
			t.Parallel()
			b := openBus(t, t.TempDir())
			var commits atomic.Int64
			const packs, size = 40, 50
			history := newSender(t, b, "history")
			for i := range packs {
				history.sendPack(proto.LaneSyncHistoric, manyGrasps(1000+i*size, size))
			}
			s := newSender(t, b, "urgent")
			ev := newPerson(1).grasps(1)
			s.send(lane, ev)
			startWith(t, b, "a", 100, func(w *Writer) { w.beforeCommit = func() { commits.Add(1) } })
			if v := s.wait(1)[0]; v.ID != ev.ID || v.Outcome != proto.Accepted {
				t.Fatalf("%+v", v)
			}
			// What was fetched before the urgent lane was open may come first: a few batches.
			if n := commits.Load(); n > packs*size/100/2 {
				t.Errorf("the urgent event was decided after %d commits", n)
			}
			history.wait(packs * size)
		})
	}
}

// TestVerdictsStaySendable: the verdicts on the largest pack fit one message of the bus.
func TestVerdictsStaySendable(t *testing.T) {
	t.Parallel()
	for _, letter := range []string{"ü", "\x00"} {
		v := proto.Verdict{ID: strings.Repeat("a", 64), Outcome: proto.Rejected, Message: sentence("invalid: " + strings.Repeat(letter, 2000))}
		if !strings.HasPrefix(v.Message, "invalid: "+letter) || len(v.Message) > maxSentence || strings.Contains(v.Message, "\ufffd") {
			t.Fatalf("%q", v.Message)
		}
		data, err := json.Marshal(proto.Verdicts{Verdicts: slices.Repeat([]proto.Verdict{v}, proto.MaxPackEvents)})
		if err != nil || len(data) > 1<<20 {
			t.Errorf("%d bytes, %v", len(data), err)
		}
	}
}

// baffled cannot decide some events.
type baffled struct {
	Policy
	id string
}

func (p *baffled) Decide(k policy.Knowledge, c *policy.Candidate) policy.Decision {
	if c.Event.ID == p.id {
		k.(*draft).err = errors.New("too many open files")
		return policy.Decision{}
	}
	return p.Policy.Decide(k, c)
}

// TestAnUndecidableEventOfAPack is refused alone, for now, and the others are decided.
func TestAnUndecidableEventOfAPack(t *testing.T) {
	t.Parallel()
	b := openBus(t, t.TempDir())
	events := manyGrasps(100, 30)
	start(t, b, "a", func(w *Writer) { w.policy = &baffled{w.policy, events[20].ID} })
	s := newSender(t, b, "puzzle")
	s.sendPack(proto.LaneSyncHistoric, events)
	for i, v := range s.wait(len(events)) {
		switch {
		case v.ID != events[i].ID:
			t.Errorf("verdict %d is on %s", i, v.ID)
		case i == 20 && (v.Outcome != proto.Rejected || !strings.HasPrefix(v.Message, "error: ") || v.RetryAt == 0):
			t.Errorf("the undecidable one: %+v", v)
		case i != 20 && v.Outcome != proto.Accepted:
			t.Errorf("one of the others: %+v", v)
		}
	}
	eventually(t, "the pack is acknowledged", func() bool { return queued(t, b) == 0 })
}

// TestAFencedBatchIsDecidedAgain: a commit that another writer's mark refuses, before the log's part
// or between that and the held events', is decided again with all that it has healed, and answered
// once.
func TestAFencedBatchIsDecidedAgain(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]proto.Outcome{
		proto.SubjectEventsMark:                              proto.Accepted,
		proto.KVSubject(proto.BucketHeld, proto.HeldMarkKey): proto.Duplicate, // the log has it before the failure
	} {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			b := openBus(t, t.TempDir())
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
			s, alice := newSender(t, b, "fenced"), newPerson(1)
			announcement, issue := alice.announcement("x", 100), newPerson(2).issue(alice, "x", 1)
			s.ask(proto.LaneSyncLive, issue)
			s.ask(proto.LaneUser, announcement)
			armed.Store(true)
			if v := s.release(announcement); v.Outcome != want {
				t.Errorf("%+v, want %s", v, want)
			}
			eventually(t, "both are in the log", func() bool { return len(logIDs(t, b)) == 2 && r.Held.Len() == 0 })
			if n := testutil.ToFloat64(r.metrics.fenced); n != 1 || len(s.wait(3)) != 3 {
				t.Errorf("%v commits were refused, %d verdicts", n, len(s.verdicts))
			}
		})
	}
}

// TestLanesTakeTurns: urgent packs and older ones alternate, batch by batch, and each batch has one
// class. Within it a lane in flood does not hold up another.
func TestLanesTakeTurns(t *testing.T) {
	t.Parallel()
	l := newLanes()
	for lane, n := range []int{2, 1, 5, 4} {
		for range n {
			l.put(t.Context(), lane, &pack{ref: sources[lane].name})
		}
	}
	var got []string
	for range 3 {
		for p := l.first(t.Context()); p != nil; p = l.next() {
			if got = append(got, p.ref); len(got)%5 == 4 { // a batch is full
				break
			}
		}
		got = append(got, "|")
	}
	want := "release live user live | sync sync sync sync | live user live live |"
	if strings.Join(got, " ") != want {
		t.Errorf("%q, want %q", strings.Join(got, " "), want)
	}
}
