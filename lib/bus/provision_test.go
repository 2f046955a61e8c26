package bus_test

import (
	"context"
	"errors"
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
	f, _ := follow(t, b, bus.Reading{Stream: stream}, func([]bus.Message) error { return nil })
	if err := f.CatchUp(ctx); err != nil {
		t.Fatal(err)
	}
	put("c", "")
	if err := f.CatchUp(ctx); err != nil || f.Seq() != 3 {
		t.Errorf("read up to %d, %v", f.Seq(), err)
	}
}
