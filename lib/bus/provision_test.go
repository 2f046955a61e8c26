package bus_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

// TestCatchUpPassesOverWhatIsGone: the last message of a stream has expired; a reader that starts
// now never sees it, and need not.
func TestCatchUpPassesOverWhatIsGone(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{Dir: t.TempDir()})
	put := func(key, ttl string) {
		m := &nats.Msg{Subject: proto.KVSubject(proto.BucketHeld, key), Header: nats.Header{}, Data: []byte("{}")}
		if ttl != "" {
			m.Header.Set(jetstream.MsgTTLHeader, ttl)
		}
		if _, err := b.PublishBatch(t.Context(), []*nats.Msg{m}, nil); err != nil {
			t.Fatal(err)
		}
	}
	stream := proto.KVStream(proto.BucketHeld)
	put("a", "")
	put("b", "1s")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := b.JS.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := s.GetMsg(ctx, 2); errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	read := &bus.Progress{}
	following, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		done <- bus.Follow(following, b.JS, bus.Reading{Stream: stream}, slog.New(slog.DiscardHandler), func(m bus.Message) { read.Advance(m.Seq) })
	}()
	if err := b.CatchUp(ctx, stream, 2, read.WaitFor); err != nil {
		t.Fatal(err)
	}
	if read.Seq() != 1 {
		t.Errorf("read up to %d, want the one message that is there", read.Seq())
	}
	put("c", "")
	if err := b.CatchUp(ctx, stream, 3, read.WaitFor); err != nil || read.Seq() != 3 {
		t.Errorf("read up to %d, %v", read.Seq(), err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
