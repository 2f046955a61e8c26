package candidates

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
)

// inPacks reads what is in a lane's queue without taking it: the lines of each message.
func inPacks(t *testing.T, stream jetstream.Stream) (packs [][][]byte) {
	t.Helper()
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := proto.SplitPack(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		packs = append(packs, lines)
	}
	return packs
}

func total(packs [][][]byte) (n int) {
	for _, lines := range packs {
		n += len(lines)
	}
	return n
}

// TestHistoricEventsTravelInPacks: in few messages, in their order, a relay's own, within the
// bounds.
func TestHistoricEventsTravelInPacks(t *testing.T) {
	t.Parallel()
	b := openBus(t, 64<<20)
	s, _ := start(t, b, func(s *Sender) { s.fillFor = never }) // a pack waits until it is full
	const n = 2500
	var ends atomic.Int64
	for i := range n {
		relay := []string{"wss://a.example", "wss://b.example"}[i%2]
		raw, err := event(i).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		c := Candidate{Event: event(i), Lane: proto.LaneSyncHistoric, Source: proto.SourceStartup, Relay: relay, Done: func(v proto.Verdict, err error) {
			if err != nil || v.ID != event(i).ID {
				t.Errorf("candidate %d ended with %+v, %v", i, v, err)
			}
			ends.Add(1)
		}}
		if i%3 > 0 { // it came so, and is sent so
			c.Raw = raw
		}
		if err := s.Offer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	for _, p := range s.lanes[proto.LaneSyncHistoric].open { // the last two are not full
		s.send(p)
	}
	s.mu.Unlock()
	stream, err := b.JS.Stream(t.Context(), proto.StreamSync)
	if err != nil {
		t.Fatal(err)
	}
	var packs [][][]byte
	eventually(t, "all are in the queue", func() bool {
		packs = inPacks(t, stream)
		return total(packs) == n
	})
	if len(packs) > 2+n/proto.MaxPackEvents+busyWith {
		t.Errorf("%d packs for %d events of two relays", len(packs), n)
	}
	last := map[int]int{0: -1, 1: -1}
	for _, lines := range packs {
		of := -1
		for _, line := range lines {
			var ev nostr.Event
			if err := ev.UnmarshalJSON(line); err != nil {
				t.Fatal(err)
			}
			i := int(ev.CreatedAt)
			if of < 0 {
				of = i % 2
			}
			if i%2 != of || i <= last[of] {
				t.Fatalf("event %d follows %d in a pack of relay %d", i, last[of], of)
			}
			last[of] = i
		}
	}
	ingestFrom(t, b, proto.StreamSync, proto.ConsumerSync, always)
	eventually(t, "all are judged", func() bool { return ends.Load() == n })
	nothingLeft(t, s)
}

// TestALiveEventIsSentAtOnce: while few packs are under way nothing is waited for; then others
// gather, and a verdict sends them.
func TestALiveEventIsSentAtOnce(t *testing.T) {
	t.Parallel()
	b := openBus(t, 1<<20)
	s, _ := start(t, b, func(s *Sender) { s.fillFor = never })
	gate := make(chan struct{})
	var sizes sync.Map
	var n atomic.Int64
	ingest(t, b, func(m jetstream.Msg) bool {
		sizes.Store(n.Add(1), 1+bytes.Count(m.Data(), []byte("\n")))
		<-gate
		return true
	})
	var ends []<-chan ending
	for i := range busyWith + 9 {
		ends = append(ends, offer(t, s, i))
	}
	eventually(t, "the first comes alone", func() bool { return n.Load() == 1 })
	close(gate)
	for i, e := range ends {
		if e := ended(t, e); e.err != nil || e.verdict.ID != event(i).ID {
			t.Fatalf("candidate %d ended as %+v", i, e)
		}
	}
	for i := range int64(busyWith + 1) {
		want := 1
		if i == busyWith {
			want = 9
		}
		if size, _ := sizes.Load(i + 1); size != want {
			t.Errorf("pack %d is of %v, want %d", i, size, want)
		}
	}
	if n.Load() != busyWith+1 {
		t.Errorf("%d packs, want %d", n.Load(), busyWith+1)
	}
}
