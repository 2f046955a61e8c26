package bus_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// announcedAndGone is a stream with more than is sent at once on one subject, and then messages on
// another, which leave it when the first message is read: the server has announced them to whoever
// reads, and they never come.
func announcedAndGone(t *testing.T) (b *bus.Bus, gone func()) {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	for n := range 1500 {
		subject := "grasp.target.stays.example"
		if n >= 1000 {
			subject = "grasp.target.goes.example"
		}
		if _, err := b.JS.PublishAsync(subject, fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-b.JS.PublishAsyncComplete():
	case <-time.After(time.Minute):
		t.Fatal("the messages are not stored")
	}
	return b, sync.OnceFunc(func() {
		stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("grasp.target.goes.example")); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWhatWasAnnouncedAndIsGoneIsNotWaitedFor: whoever follows a stream is told that all was read,
// although the last message said that more were behind it. So it is with who reads what there is.
func TestWhatWasAnnouncedAndIsGoneIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	t.Run("follow", func(t *testing.T) {
		t.Parallel()
		b, gone := announcedAndGone(t)
		all, idle := make(chan struct{}), make(chan int, 10)
		n := 0
		reading := bus.Reading{Stream: proto.StreamTargets, Read: func() { close(all) }, Idle: func() { idle <- n }}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- bus.Follow(ctx, b.JS, reading, slog.New(slog.DiscardHandler), func(bus.Message) {
				gone()
				n++
			})
		}()
		for _, want := range []int{1000, 1001} {
			select {
			case got := <-idle:
				if got != want {
					t.Errorf("all was read after %d messages, want %d", got, want)
				}
			case <-time.After(time.Minute):
				t.Fatal("it waits for messages that never come")
			}
			if _, err := b.JS.Publish(t.Context(), "grasp.target.more.example", nil); err != nil {
				t.Fatal(err)
			}
		}
		<-all
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("read", func(t *testing.T) {
		t.Parallel()
		b, gone := announcedAndGone(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		n := 0
		err := bus.Read(ctx, b.JS, bus.Reading{Stream: proto.StreamTargets}, func(bus.Message) {
			gone()
			n++
		})
		if err != nil || n != 1000 {
			t.Errorf("%d messages, %v; want 1000", n, err)
		}
	})
}

// TestReadReadsWhatThereIs: all messages of a subject in order, however large, and none of another.
func TestReadReadsWhatThereIs(t *testing.T) {
	t.Parallel()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	var want, got []int
	for n := range 30 {
		for _, subject := range []string{"grasp.target.a.example", "grasp.target.b.example"} {
			if _, err := b.JS.Publish(t.Context(), subject, make([]byte, 900<<10-n)); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, 900<<10-n)
	}
	for subject, want := range map[string][]int{"grasp.target.a.example": want, "grasp.target.none.example": nil} {
		got = nil
		err := bus.Read(t.Context(), b.JS, bus.Reading{Stream: proto.StreamTargets, Filters: []string{subject}}, func(m bus.Message) {
			if m.Subject != subject {
				t.Errorf("a message of %s", m.Subject)
			}
			got = append(got, len(m.Data))
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d messages, %v; want %d", subject, len(got), err, len(want))
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := bus.Read(ended, b.JS, bus.Reading{Stream: proto.StreamTargets}, func(bus.Message) {}); err == nil {
		t.Error("it ends well though it was ended")
	}
}

// TestReadOutlivesItsConsumer: where NATS loses the consumer, as it does with the server that has
// it, and has nobody to tell of it, another one reads on. Nothing is read twice or missed.
func TestReadOutlivesItsConsumer(t *testing.T) {
	t.Parallel()
	b, err := bus.Open(t.Context(), bus.Options{Dir: t.TempDir(), Sizing: proto.DefaultSizing(), Name: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	const all = 1200
	for n := range all {
		if _, err := b.JS.PublishAsync("grasp.target.a.example", fmt.Append(nil, n)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-b.JS.PublishAsyncComplete():
	case <-time.After(time.Minute):
		t.Fatal("the messages are not stored")
	}
	stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
	if err != nil {
		t.Fatal(err)
	}
	// lose removes the consumer when it has sent all that it was asked for: nobody waits for it
	// then.
	lose := func() {
		for t.Context().Err() == nil {
			for c := range stream.ListConsumers(t.Context()).Info() {
				if c.NumWaiting == 0 && c.Delivered.Consumer > 0 {
					if err := stream.DeleteConsumer(t.Context(), c.Name); err != nil {
						t.Error(err)
					}
					return
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var got []uint64
	err = bus.Read(ctx, b.JS, bus.Reading{Stream: proto.StreamTargets}, func(m bus.Message) {
		if got = append(got, m.Seq); len(got) == 1 {
			lose()
		}
	})
	if err != nil || len(got) != all {
		t.Errorf("%d messages, %v; want %d", len(got), err, all)
	}
	for n, seq := range got {
		if seq != uint64(n+1) {
			t.Fatalf("message %d comes in place of %d", seq, n+1)
		}
	}
}
