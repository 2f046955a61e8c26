package candidates

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

var must, eventually = fixture.Must, fixture.Await

// never is longer than any test lives.
const never = 24 * time.Hour

// start makes a bus and a sender that pauses briefly and does not give up. It sends again what has
// no verdict only where change gives it a time for that, or a test says that it has passed. Nothing
// decides anything until a test does.
func start(t *testing.T, queueBytes int64, change func(*Sender)) (b *bus.Bus, s *Sender, stop func()) {
	t.Parallel()
	sizing := proto.DefaultSizing()
	sizing.CandidateBytes = queueBytes
	b, err := bus.Open(context.Background(), bus.Options{Dir: t.TempDir(), Sizing: sizing, Name: t.Name()})
	must(t, err)
	t.Cleanup(b.Close)
	s, err = New(b.Conn, slog.New(slog.DiscardHandler))
	must(t, err)
	s.resendAfter, s.giveUpAfter, s.refusedPause = never, 100*never, 10*time.Millisecond
	if change != nil {
		change(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		must(t, <-done)
	})
	t.Cleanup(stop)
	return b, s, stop
}

// ending is how a candidate ended: that of event n.
type ending struct {
	n       int
	verdict proto.Verdict
	err     error
}

// nothingLeft waits until a sender has finished all, and its room is free.
func nothingLeft(t *testing.T, s *Sender) {
	t.Helper()
	eventually(t, "the sender has nothing left", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := int64(len(s.waiting))
		for _, l := range s.lanes {
			taken, _, _ := l.room.Counts(0)
			left += taken + int64(len(l.open))
		}
		return left == 0
	})
}

func event(n int) *nostr.Event {
	return fixture.Unsigned(strings.Repeat("ab", 32)).At(nostr.Timestamp(n+1)).Sign(1, strings.Repeat("x", 200))
}

// offer offers one live candidate, see offerTo.
func offer(t *testing.T, s *Sender, n int) <-chan ending { return offerTo(t, s, proto.LaneSyncLive, n) }

// offerTo offers one candidate and gives the channel that its end comes on. A second end would fail
// the test.
func offerTo(t *testing.T, s *Sender, lane proto.Lane, n int) <-chan ending {
	t.Helper()
	ends := make(chan ending, 1)
	c := Candidate{Event: event(n), Lane: lane, Source: proto.SourceLive, Relay: "wss://r.example", Done: func(v proto.Verdict, err error) {
		select {
		case ends <- ending{n, v, err}:
		default:
			t.Errorf("candidate %d ended twice", n)
		}
	}}
	if lane == proto.LaneUser {
		c.Client = fmt.Sprint("client ", n)
	}
	must(t, s.Offer(t.Context(), c))
	return ends
}

func ended(t *testing.T, ends <-chan ending) ending { return fixture.Receive(t, "an end", ends) }

// ingest takes live packs from their queue and answers those that decide says yes to. It returns
// how many it has taken.
func ingest(t *testing.T, b *bus.Bus, decide func(m jetstream.Msg) bool) (taken *atomic.Int64) {
	return ingestFrom(t, b, proto.StreamLive, proto.ConsumerLive, decide)
}

func ingestFrom(t *testing.T, b *bus.Bus, stream, consumer string, decide func(m jetstream.Msg) bool) (taken *atomic.Int64) {
	lane, err := b.JS.Consumer(t.Context(), stream, consumer)
	must(t, err)
	taken = new(atomic.Int64)
	running, err := lane.Consume(func(m jetstream.Msg) {
		taken.Add(1)
		err := m.Ack()
		if decide(m) {
			err = errors.Join(err, answer(b.Conn, m))
		}
		if err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	t.Cleanup(func() {
		running.Stop()
		<-running.Closed() // what is being decided is answered while there is a bus
	})
	return taken
}

// answer accepts all events of a pack, and sends verdicts for an unknown pack besides.
func answer(conn *nats.Conn, m jetstream.Msg) error {
	vs := proto.Verdicts{Ref: m.Headers().Get(proto.HeaderRef)}
	lines, err := proto.SplitPack(m.Data())
	for _, line := range lines {
		ev, bad := nostr.Parse(line)
		if bad != nil {
			return bad
		}
		vs.Verdicts = append(vs.Verdicts, proto.Verdict{ID: ev.ID, Outcome: proto.Accepted})
	}
	payload, badVerdicts := json.Marshal(vs)
	to := m.Headers().Get(proto.HeaderReply)
	return errors.Join(err, badVerdicts, conn.Publish(to, []byte(`{"ref":"unknown","verdicts":[{"id":"another"}]}`)), conn.Publish(to, payload))
}

// accepted waits until candidates have ended, each as accepted.
func accepted(t *testing.T, all ...<-chan ending) {
	t.Helper()
	for _, ends := range all {
		if e := ended(t, ends); e.err != nil || e.verdict.Outcome != proto.Accepted || e.verdict.ID != event(e.n).ID {
			t.Fatalf("ended as %+v", e)
		}
	}
}

func always(jetstream.Msg) bool { return true }

func TestWithoutVerdictItIsSentAgain(t *testing.T) {
	b, s, _ := start(t, 1<<20, nil)
	var seen sync.Map
	taken := ingest(t, b, func(m jetstream.Msg) bool {
		if h := m.Headers(); h.Get(proto.HeaderSource) != "live" || h.Get(proto.HeaderRelay) != "wss://r.example" || h.Get(proto.HeaderClient)+h.Get(proto.HeaderAction) != "" {
			t.Errorf("sent with %v", h)
		}
		n, _ := seen.LoadOrStore(m.Headers().Get(proto.HeaderRef), new(atomic.Int64))
		return n.(*atomic.Int64).Add(1) == 3 // only the third is answered
	})
	a, c := offer(t, s, 1), offer(t, s, 2)
	for round := range 2 {
		eventually(t, "both arrive", func() bool { return taken.Load() == int64(2*round+2) })
		s.resend(time.Now().Add(never*time.Duration(4*round+2)), false)
	}
	accepted(t, a, c)
	if n := taken.Load(); n != 6 {
		t.Fatalf("sent %d times, want each of two three times", n)
	}
}

// TestAfterAReconnectItIsSentAgain: a verdict that came while the connection was broken
// is lost, and its candidate is sent again as soon as the connection is back.
func TestAfterAReconnectItIsSentAgain(t *testing.T) {
	b, s, _ := start(t, 1<<20, nil) // by itself it would never send again
	var times atomic.Int64
	ingest(t, b, func(jetstream.Msg) bool { return times.Add(1) > 1 })
	end := offer(t, s, 1)
	eventually(t, "it arrives", func() bool { return times.Load() == 1 })
	must(t, b.Conn.ForceReconnect())
	accepted(t, end)
}

// TestAFullQueueLosesNothing: the queue holds some twenty candidates, and none are taken until
// all that fit are in.
func TestAFullQueueLosesNothing(t *testing.T) {
	b, s, _ := start(t, 16<<10, nil)
	const n = 300
	var ends []<-chan ending
	for i := range n {
		ends = append(ends, offerTo(t, s, proto.LaneUser, i))
	}
	stream, err := b.JS.Stream(t.Context(), proto.StreamUser)
	must(t, err)
	var full uint64
	eventually(t, "the queue is full", func() bool {
		info, err := stream.Info(t.Context())
		must(t, err)
		full = info.State.Msgs
		return full > 5
	})
	if full > n/2 {
		t.Fatalf("the queue took %d of %d: the test needs a smaller one", full, n)
	}
	ingestFrom(t, b, proto.StreamUser, proto.ConsumerUser, always)
	accepted(t, ends...)
	nothingLeft(t, s)
}

// TestTheRoomIsBoundedInBytes: of events of almost 1 MB no more are under way than fit, other lanes
// are not full for that, and one that is decided makes room for one.
func TestTheRoomIsBoundedInBytes(t *testing.T) {
	_, s, _ := start(t, 256<<20, nil)
	large := bytes.Repeat([]byte{'x'}, 1_000_000)
	first := make(chan bool, 100)
	refused := func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // where there is room, it does not wait
		defer cancel()
		err := s.Offer(ctx, Candidate{Raw: large, Lane: proto.LaneUser, Done: func(proto.Verdict, error) { first <- true }})
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		return err != nil
	}
	fit := 0
	for !refused(t.Context()) {
		fit++
	}
	if fit != laneBytes/1_000_000 {
		t.Fatalf("%d events are under way", fit)
	}
	offerTo(t, s, proto.LaneSyncHistoric, 0)
	s.mu.Lock()
	var ref string
	for name, p := range s.waiting {
		if p.lane == proto.LaneUser {
			ref = name
		}
	}
	s.mu.Unlock()
	for range 2 { // the second is another's
		s.onVerdicts(&nats.Msg{Data: fmt.Appendf(nil, `{"ref":%q,"verdicts":[{}]}`, ref)})
	}
	<-first
	if refused(t.Context()) || !refused(t.Context()) {
		t.Fatal("one verdict does not make room for one event")
	}
}

// TestEndsWithoutAVerdict: what is too large ends at once, what nothing decides is given up, and
// the rest ends with the sender.
func TestEndsWithoutAVerdict(t *testing.T) {
	b, s, stop := start(t, 64<<20, func(s *Sender) { s.giveUpAfter, s.resendAfter = 300*time.Millisecond, 20*time.Millisecond })
	taken := ingest(t, b, func(jetstream.Msg) bool { return false })
	ends := make(chan error, 1)
	offered := func(ev *nostr.Event) error {
		return s.Offer(t.Context(), Candidate{Event: ev, Lane: proto.LaneUser, Done: func(_ proto.Verdict, err error) { ends <- err }})
	}
	large := event(1)
	large.Content = strings.Repeat("x", 2<<20)
	must(t, offered(large))
	if err := <-ends; !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("a large one ended with %v", err)
	}
	if e := ended(t, offer(t, s, 1)); !errors.Is(e.err, ErrNoVerdict) || taken.Load() < 2 {
		t.Errorf("sent %d times, and ended as %+v", taken.Load(), e)
	}
	nothingLeft(t, s)
	waits := offer(t, s, 2)
	stop()
	if e := ended(t, waits); !errors.Is(e.err, ErrEnded) {
		t.Errorf("at the end: %+v", e)
	}
	if err := offered(event(3)); !errors.Is(err, ErrEnded) || len(ends) > 0 {
		t.Errorf("after the end: %v", err)
	}
	nothingLeft(t, s)
}

// TestEveryCandidateEndsOnce races verdicts, resends, refusals and many senders.
func TestEveryCandidateEndsOnce(t *testing.T) {
	// not much more than one pack of all of them
	b, s, _ := start(t, 96<<10, func(s *Sender) {
		s.resendAfter, s.refusedPause = 3*time.Millisecond, 2*time.Millisecond
	})
	var n atomic.Int64
	ingest(t, b, func(m jetstream.Msg) bool {
		switch n.Add(1) % 3 {
		case 0:
			return false
		case 1:
			if err := answer(b.Conn, m); err != nil { // and once more
				t.Error(err)
			}
		}
		return true
	})
	var senders sync.WaitGroup
	all := make([]<-chan ending, 120)
	for sender := range 8 {
		senders.Go(func() {
			for i := sender; i < len(all); i += 8 {
				all[i] = offer(t, s, i)
			}
		})
	}
	senders.Wait()
	accepted(t, all...)
	nothingLeft(t, s)
}

// TestHistoricEventsTravelInPacks: in few messages, in their order, a relay's own, within the
// bounds, each with its own trace context if it has one.
func TestHistoricEventsTravelInPacks(t *testing.T) {
	b, s, _ := start(t, 64<<20, func(s *Sender) { s.fillFor = never }) // a pack waits until it is full
	const n = 2500
	trace := func(i int) string { return strings.Repeat("x", i%5*13) }
	var ends sync.WaitGroup
	for i := range n {
		ends.Add(1)
		c := Candidate{Event: event(i), Lane: proto.LaneSyncHistoric, Relay: []string{"wss://a.example", "wss://b.example"}[i%2], Trace: trace(i), Done: func(v proto.Verdict, err error) {
			if err != nil || v.ID != event(i).ID {
				t.Errorf("candidate %d ended with %+v, %v", i, v, err)
			}
			ends.Done()
		}}
		if i%3 > 0 { // it came so, and is sent so
			c.Raw = nostr.Encode(event(i))
		}
		must(t, s.Offer(t.Context(), c))
	}
	s.mu.Lock()
	for _, p := range s.lanes[proto.LaneSyncHistoric].open { // the last two are not full
		s.send(p)
	}
	s.mu.Unlock()
	last := map[int]int{0: -1, 1: -1}
	packs := ingestFrom(t, b, proto.StreamSync, proto.ConsumerSync, func(m jetstream.Msg) bool {
		lines, err := proto.SplitPack(m.Data())
		relay, traces := -1, strings.Split(m.Headers().Get(proto.HeaderTraceParent)+",", ",")
		for at, line := range lines {
			ev, bad := nostr.Parse(line)
			i := int(ev.CreatedAt) - 1
			if err = errors.Join(err, bad); err != nil || i <= last[i%2] || relay >= 0 && relay != i%2 || traces[at] != trace(i) {
				t.Errorf("event %d follows %d in a pack of relay %d, %v", i, last[i%2], relay, err)
			}
			relay, last[i%2] = i%2, i
		}
		return true
	})
	ends.Wait()
	if got := packs.Load(); got > 2+n/proto.MaxPackEvents+busyWith {
		t.Errorf("%d packs for %d events of two relays", got, n)
	}
	nothingLeft(t, s)
}
