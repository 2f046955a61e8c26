package bus_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// follow runs a follower until the test ends, or stop is called.
func follow(t *testing.T, b *bus.Bus, r bus.Reading, read func([]bus.Message) error) (f *bus.Follower, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f = bus.NewFollower(b.JS, r, slog.New(slog.DiscardHandler), read)
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	var ended error
	stop = func() error {
		cancel()
		if err, open := <-done; open {
			ended = err
			close(done)
		}
		return ended
	}
	t.Cleanup(func() { stop() })
	return f, stop
}

// publish stores messages on subjects of their own below prefix: the stream keeps one of each.
func publish(t *testing.T, b *bus.Bus, prefix string, count, size int) {
	t.Helper()
	for range count {
		if _, err := b.JS.PublishAsync(prefix+"."+rand.Text(), make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-b.JS.PublishAsyncComplete():
	case <-time.After(time.Minute):
		t.Fatal("the messages are not stored")
	}
}

// TestFollowHandsOnEveryMessageInOrder: those that are there, however many and large, and those
// that come, of some subjects or of all.
func TestFollowHandsOnEveryMessageInOrder(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		filters []string
		after   uint64
		want    []uint64
	}{
		{"all", nil, 0, seqs(1, 3003)},
		{"from the middle", nil, 2500, seqs(2501, 3003)},
		{"one subject", []string{"grasp.target.a.example.*"}, 0, append(seqs(1, 1500), 3001)},
		{"two subjects", []string{"grasp.target.a.example.*", "grasp.target.c.example.*"}, 0, append(append(seqs(1, 1500), 3001), 3003)},
		{"a subject without messages", []string{"grasp.target.none.example.*"}, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := open(t, bus.Options{Dir: t.TempDir()})
			publish(t, b, "grasp.target.a.example", 1500, 10)
			publish(t, b, "grasp.target.b.example", 1470, 10)
			publish(t, b, "grasp.target.b.example", 30, 900<<10)
			var got []uint64
			f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets, Filters: c.filters, After: c.after}, func(messages []bus.Message) error {
				for _, m := range messages {
					got = append(got, m.Seq)
				}
				return nil
			})
			select {
			case <-f.Ready():
			case <-time.After(time.Minute):
				t.Fatal("it does not read what there is")
			}
			if f.Seq() != 3000 {
				t.Errorf("it has read up to %d, want 3000", f.Seq())
			}
			for _, subject := range []string{"grasp.target.a.example", "grasp.target.b.example", "grasp.target.c.example"} {
				publish(t, b, subject, 1, 10)
			}
			if err := f.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("it has read %d messages, want %d", len(got), len(c.want))
			}
		})
	}
}

func seqs(from, to uint64) (all []uint64) {
	for s := from; s <= to; s++ {
		all = append(all, s)
	}
	return all
}

// TestFollowDoesNotWaitForWhatIsGone: messages that have left the stream keep no one waiting.
func TestFollowDoesNotWaitForWhatIsGone(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.stays.example", 1000, 10)
	publish(t, b, "grasp.target.goes.example", 500, 10)
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func(messages []bus.Message) error {
		if count == 0 {
			if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("grasp.target.goes.example.*")); err != nil {
				return err
			}
		}
		count += len(messages)
		return nil
	})
	if err := f.Wait(t.Context(), 1500); err != nil {
		t.Fatal(err)
	}
	if count != 1000 {
		t.Errorf("%d messages, want 1000", count)
	}
}

// TestFollowForgetsWhatItWasToldOf: a message that is stored and removed again before it is read
// does not leave the follower behind.
func TestFollowForgetsWhatItWasToldOf(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, b, "grasp.target.stays.example", 1, 10)
	reads, goOn := make(chan struct{}), make(chan struct{})
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func([]bus.Message) error {
		close(reads)
		<-goOn
		return nil
	})
	<-reads
	publish(t, b, "grasp.target.goes.example", 1, 10)
	if err := stream.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := b.Conn.Flush(); err != nil { // the follower was told of it on this connection
		t.Fatal(err)
	}
	close(goOn)
	if err := f.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestFollowNoticesWhatItWasNotTold: a message is read although no notice of it came.
func TestFollowNoticesWhatItWasNotTold(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.RePublish.Destination = "grasp.elsewhere.>"
	if _, err := b.JS.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	got := make(chan uint64, 10)
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func(messages []bus.Message) error {
		got <- messages[0].Seq
		return nil
	})
	<-f.Ready()
	publish(t, b, "grasp.target.a.example", 1, 10)
	select {
	case <-got:
	case <-time.After(time.Minute):
		t.Fatal("it is not read")
	}
}

// TestFollowReadsFromTheLeader: where no replica answers requests that any may answer, the leader
// is asked.
func TestFollowReadsFromTheLeader(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.AllowDirect = false
	if _, err := b.JS.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	publish(t, b, "grasp.target.a.example", 5, 10)
	var got []uint64
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func(messages []bus.Message) error {
		for _, m := range messages {
			got = append(got, m.Seq)
		}
		return nil
	})
	if err := f.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, seqs(1, 5)) {
		t.Errorf("read %v", got)
	}
}

// TestWaitSaysWhatItWaitedFor: a wait for a message that does not come ends with a sentence.
func TestWaitSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.a.example", 3, 10)
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func([]bus.Message) error { return nil })
	<-f.Ready()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	err := f.Wait(ctx, 4)
	if err == nil || !strings.Contains(err.Error(), "for sequence 4 of stream GRASP_TARGETS: read up to 3") {
		t.Errorf("it says %v", err)
	}
}

// TestFollowEndsWithTheReadersError: what cannot be taken ends the following.
func TestFollowEndsWithTheReadersError(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	publish(t, b, "grasp.target.a.example", 1, 10)
	full := fmt.Errorf("the disk is full")
	f := bus.NewFollower(b.JS, bus.Reading{Stream: proto.StreamTargets}, slog.New(slog.DiscardHandler), func([]bus.Message) error { return full })
	if err := f.Run(t.Context()); err != full {
		t.Errorf("it ends with %v", err)
	}
}

// TestAFedReaderReadsOnlyWhatItIsNotFed: a reader that another part of the process feeds reads what
// that part does not give it in time.
func TestAFedReaderReadsOnlyWhatItIsNotFed(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	var got []uint64
	f, _ := follow(t, b, bus.Reading{Stream: proto.StreamTargets}, func(messages []bus.Message) error {
		for _, m := range messages {
			got = append(got, m.Seq)
		}
		return nil
	})
	<-f.Ready()
	f.Advance(0) // it is fed from now on
	for range 10 {
		ack, err := b.JS.PublishMsg(t.Context(), nats.NewMsg("grasp.target.a.example"))
		if err != nil {
			t.Fatal(err)
		}
		f.Advance(ack.Sequence)
	}
	publish(t, b, "grasp.target.a.example", 1, 10)
	if err := f.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []uint64{11}) {
		t.Errorf("it has read %v, want 11", got)
	}
}
