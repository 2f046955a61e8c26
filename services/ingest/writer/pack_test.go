package writer

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/ingest/policy"
)

// joined is the events in one message.
func joined(t *testing.T, events []*nostr.Event) []byte {
	var lines [][]byte
	for _, ev := range events {
		lines = append(lines, encode(t, ev))
	}
	return proto.JoinPack(lines)
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

// TestABadEventIsRefusedAlone: one that is none for good, and one that cannot be decided for now.
// The others of the pack are decided. A pack without a good one is answered too.
func TestABadEventIsRefusedAlone(t *testing.T) {
	t.Parallel()
	b, events := openBus(t), manyGrasps(100, 5)
	start(t, b, "a", func(w *Writer) { w.policy = &baffled{w.policy, events[4].ID} })
	s := newSender(t, b)
	lines := bytes.Split(joined(t, events), []byte("\n"))
	lines[1] = []byte(`{"id":"`)
	lines[3] = bytes.Replace(lines[3], []byte("10317"), []byte("10318"), 1)
	s.raw(proto.LaneSyncLive, proto.JoinPack(lines[:5]))
	s.raw(proto.LaneSyncLive, []byte("\n\n"))
	for i, prefix := range []string{"", "invalid: ", "", "invalid: ", "error: ", "invalid: ", "invalid: ", "invalid: "} {
		v := s.wait(8)[i]
		if (v.Outcome == proto.Rejected) != (prefix != "") || !strings.HasPrefix(v.Message, prefix) || prefix == "" && v.ID != events[i].ID || (v.RetryAt != 0) != (i == 4) {
			t.Errorf("line %d: %+v", i, v)
		}
	}
	eventually(t, "the packs are acknowledged", func() bool { return queued(t, b) == 0 })
}

// TestUrgentOvertakesABacklog: what a user or a relay brings now does not wait behind packs of
// older events that were there before it, nor a user behind a flood from relays.
func TestUrgentOvertakesABacklog(t *testing.T) {
	t.Parallel()
	for lane, backlog := range map[proto.Lane]proto.Lane{
		proto.LaneRelease: proto.LaneSyncHistoric, proto.LaneSyncLive: proto.LaneSyncHistoric, proto.LaneUser: proto.LaneSyncLive,
	} {
		t.Run(string(lane), func(t *testing.T) {
			t.Parallel()
			b := openBus(t)
			var commits atomic.Int64
			const packs, size = 60, 50
			history, s := newSender(t, b), newSender(t, b)
			for i := range packs {
				history.raw(backlog, joined(t, manyGrasps(1000+i*size, size)))
			}
			s.raw(lane, encode(t, manyGrasps(1, 1)[0]), proto.HeaderAction, string(proto.ActionExtend))
			start(t, b, "a", func(w *Writer) {
				w.batchSize, w.beforeCommit = 100, func() { commits.Add(1) }
			})
			s.wait(1)
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
		data, err := json.Marshal(proto.Verdicts{Verdicts: slices.Repeat([]proto.Verdict{v}, proto.MaxPackEvents)})
		if err != nil || len(data) > 1<<20 || !strings.HasPrefix(v.Message, "invalid: "+letter) || strings.Contains(v.Message, "\ufffd") {
			t.Errorf("%d bytes of %q, %v", len(data), v.Message, err)
		}
	}
}
