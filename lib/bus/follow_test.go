package bus_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
)

// reader is a follower and the sequences that it has read.
type reader struct {
	*bus.Follower
	stop func()
	seqs []uint64
}

// caughtUp waits until what was there at the start was read.
func (r *reader) caughtUp(t testing.TB) {
	t.Helper()
	fixture.Await(t, "what was there is read", func() bool { return r.CaughtUp() == nil })
}

// follow runs a follower until the test ends, or stop is called. Before a batch is noted, first is
// called, unless it is nil.
func follow(t *testing.T, b *bus.Bus, what bus.Reading, first func()) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{}
	r.Follower = bus.NewFollower(b.JS, what, slog.New(slog.DiscardHandler), func(messages []bus.Message) error {
		if first != nil {
			first()
		}
		for _, m := range messages {
			r.seqs = append(r.seqs, m.Seq)
		}
		return nil
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	r.stop = func() { cancel(); running.Wait() }
	t.Cleanup(r.stop)
	return r
}

// has waits until everything is read that there is, and compares.
func (r *reader) has(t *testing.T, want []uint64) {
	t.Helper()
	must(t, r.CatchUp(t.Context()))
	if !slices.Equal(r.seqs, want) {
		t.Errorf("it has read %d messages, want %d", len(r.seqs), len(want))
	}
}

var targets = bus.Reading{Stream: proto.StreamTargets}

// stream is the stream of targets.
func stream(t *testing.T, b *bus.Bus) jetstream.Stream {
	t.Helper()
	s, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	must(t, err)
	return s
}

// publish stores messages on subjects of their own below prefix: the stream keeps one of each.
func publish(t *testing.T, b *bus.Bus, prefix string, count, size int) {
	t.Helper()
	for range count {
		_, err := b.JS.PublishAsync(prefix+"."+rand.Text(), make([]byte, size))
		must(t, err)
	}
	<-b.JS.PublishAsyncComplete()
}

// TestFollowHandsOnEveryMessageInOrder: those that are there, however many and large, and those
// that come, of some subjects or of all.
func TestFollowHandsOnEveryMessageInOrder(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.a", 1500, 10)
	publish(t, b, "grasp.target.b", 1470, 10)
	publish(t, b, "grasp.target.b", 30, 900<<10)
	var all []*reader
	for _, what := range []bus.Reading{{}, {After: 2500}, {Filter: "grasp.target.a.*"}, {Filter: "grasp.target.none.*"}} {
		what.Stream = proto.StreamTargets
		f := follow(t, b, what, nil)
		if f.caughtUp(t); f.Seq() != 3000 {
			t.Errorf("it has read up to %d, want 3000", f.Seq())
		}
		all = append(all, f)
	}
	for _, subject := range []string{"grasp.target.a", "grasp.target.b", "grasp.target.c"} {
		publish(t, b, subject, 1, 10)
	}
	for i, want := range [][]uint64{seqs(1, 3003), seqs(2501, 3003), append(seqs(1, 1500), 3001), nil} {
		all[i].has(t, want)
	}
}

func seqs(from, to uint64) (all []uint64) {
	for s := from; s <= to; s++ {
		all = append(all, s)
	}
	return all
}

// TestAPauseEndsWithTheFollower: what a reader does while nothing is there to be read ends when the
// follower is stopped.
func TestAPauseEndsWithTheFollower(t *testing.T) {
	t.Parallel()
	what, paused := targets, make(chan struct{}, 1)
	what.Idle = func(ctx context.Context) {
		select {
		case paused <- struct{}{}:
		default:
		}
		<-ctx.Done()
	}
	r := follow(t, open(t, bus.Options{Dir: t.TempDir()}), what, nil)
	fixture.Receive(t, "the reader pauses", paused)
	r.stop()
}

// TestWhatIsPushedIsNotTold: a follower to which a writer pushes listens to no notices, and reads what
// another has stored when no more is pushed.
func TestWhatIsPushedIsNotTold(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	f := follow(t, b, targets, nil)
	publish(t, b, "grasp.target.a.example", 1, 10)
	must(t, f.Wait(t.Context(), 1))
	told := b.Conn.NumSubscriptions()
	fixture.Await(t, "it does not listen", func() bool {
		f.Advance(0)
		return b.Conn.NumSubscriptions() < told
	})
	publish(t, b, "grasp.target.a.example", 1, 10)
	fixture.Await(t, "it has read what was not pushed", func() bool { return f.Seq() == 2 })
}

// TestFollowDoesNotWaitForWhatIsGone: messages that leave the stream before they are read, those
// at its end too, keep no one waiting.
func TestFollowDoesNotWaitForWhatIsGone(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.stays.example", 1000, 10)
	publish(t, b, "grasp.target.goes.example", 500, 10)
	f := follow(t, b, targets, sync.OnceFunc(func() {
		if err := stream(t, b).Purge(t.Context(), jetstream.WithPurgeSubject("grasp.target.goes.example.*")); err != nil {
			t.Error(err)
		}
	}))
	must(t, f.Wait(t.Context(), 1500))
	f.has(t, seqs(1, 1000))
}

// TestFollowBehind another: a message is handed on only after that one has read it.
func TestFollowBehind(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	goOn := make(chan struct{})
	first := follow(t, b, bus.Reading{Stream: proto.StreamTargets, Filter: "grasp.target.a.>"}, func() { <-goOn })
	second := follow(t, b, bus.Reading{Stream: proto.StreamTargets, Filter: "grasp.target.b.>", Wait: first.Wait}, func() {
		if first.Seq() < 2 {
			t.Error("it does not wait")
		}
	})
	publish(t, b, "grasp.target.a", 1, 10)
	publish(t, b, "grasp.target.b", 1, 10)
	time.AfterFunc(100*time.Millisecond, func() { close(goOn) })
	second.has(t, []uint64{2})
	first.has(t, []uint64{1})
}

// TestFollowOfAStreamThatLacks something: a message is read although no notice of it came, and
// from the leader where no replica answers requests that any may answer.
func TestFollowOfAStreamThatLacks(t *testing.T) {
	t.Parallel()
	for name, without := range map[string]func(*jetstream.StreamConfig){
		"notices":        func(cfg *jetstream.StreamConfig) { cfg.RePublish.Destination = "grasp.elsewhere.>" },
		"direct answers": func(cfg *jetstream.StreamConfig) { cfg.AllowDirect = false },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, bus.Options{Dir: t.TempDir()})
			cfg := stream(t, b).CachedInfo().Config
			without(&cfg)
			if _, err := b.JS.UpdateStream(t.Context(), cfg); err != nil {
				t.Fatal(err)
			}
			f := follow(t, b, targets, nil)
			f.caughtUp(t)
			publish(t, b, "grasp.target.a.example", 5, 10)
			fixture.Await(t, "it is read", func() bool { return f.Seq() >= 5 })
			f.has(t, seqs(1, 5))
		})
	}
}

// TestReadWithin: what cannot be read ends a read with a sentence.
func TestReadWithin(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	must(t, b.JS.DeleteStream(t.Context(), proto.StreamTargets))
	err := bus.Read(t.Context(), b.JS, bus.Reading{Stream: proto.StreamTargets, Within: 50 * time.Millisecond}, func(bus.Message) {})
	if err == nil || !strings.HasPrefix(err.Error(), "read stream GRASP_TARGETS: nothing came after sequence 0 for 50ms (") {
		t.Errorf("it says %v", err)
	}
}

// TestWaitSaysWhatItWaitedFor: a wait for a message that does not come ends with a sentence.
func TestWaitSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.a.example", 3, 10)
	f := follow(t, b, targets, nil)
	f.caughtUp(t)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := f.Wait(ctx, 4)
	if err == nil || !strings.Contains(err.Error(), "for sequence 4 of stream GRASP_TARGETS: read up to 3") {
		t.Errorf("it says %v", err)
	}
}

// A follower hands on every message of a stream, in order, until its reader has an error.
func ExampleFollower() {
	sizing := proto.DefaultSizing()
	sizing.MemoryOnly = true
	b, err := bus.Open(context.Background(), bus.Options{Sizing: sizing})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	for _, name := range []string{"a.example", "b.example"} {
		if _, err := b.JS.Publish(context.Background(), "grasp.target."+name, nil); err != nil {
			fmt.Println(err)
		}
	}
	what := bus.Reading{Stream: proto.StreamTargets, Filter: proto.AnyTarget}
	f := bus.NewFollower(b.JS, what, slog.New(slog.DiscardHandler), func(messages []bus.Message) error {
		for _, m := range messages {
			fmt.Println(m.Seq, m.Subject)
		}
		return errors.New("the disk is full")
	})
	fmt.Println(f.Run(context.Background()))
	// Output:
	// 1 grasp.target.a.example
	// 2 grasp.target.b.example
	// the disk is full
}
