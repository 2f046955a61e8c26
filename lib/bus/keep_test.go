package bus_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
	"tendril.dev/test/fixture"
	"tendril.dev/test/fixture/nettest"
)

// complete reports whether everything is there that proto declares.
func complete(ctx context.Context, b *bus.Bus) bool {
	for _, cfg := range proto.Streams(b.Sizing()) {
		if _, err := b.JS.Stream(ctx, cfg.Name); err != nil {
			return false
		}
	}
	for stream, cfg := range proto.Consumers(b.Sizing()) {
		if _, err := b.JS.Consumer(ctx, stream, cfg.Durable); err != nil {
			return false
		}
	}
	return true
}

// TestMemoryIsMadeAgain: a NATS server that was restarted has lost what was in its memory. A
// process that provisions makes it again, no bus is lost, and followers of the streams on
// disk miss nothing.
func TestMemoryIsMadeAgain(t *testing.T) {
	t.Parallel()
	nats := nettest.NewNATS(t, "")
	sizing := proto.DefaultSizing()
	maker := open(t, bus.Options{URL: nats.URL, Provisions: true, Sizing: sizing})
	user := open(t, bus.Options{URL: nats.URL, Needs: []string{proto.StreamEvents, proto.StreamUser}, Sizing: sizing})
	f := follow(t, user, bus.Reading{Stream: proto.StreamEvents}, nil)
	publish := func(slot string) (seq uint64) {
		fixture.Await(t, "an event is stored", func() bool {
			ack, err := maker.JS.PublishMsg(t.Context(), event(slot))
			if err == nil {
				seq = ack.Sequence
			}
			return err == nil
		})
		return seq
	}
	publish("a")
	nats.Stop()
	nats.Start()
	last := publish("b")
	fixture.Await(t, "all is there again", func() bool { return complete(t.Context(), maker) })
	must(t, f.Wait(t.Context(), last))
	if f.stop(); len(f.seqs) != 2 {
		t.Errorf("%d messages were read, want 2", len(f.seqs))
	}
	for _, b := range []*bus.Bus{maker, user} {
		select {
		case err := <-b.Lost():
			t.Errorf("a restart is taken for a loss: %v", err)
		default:
		}
	}
}

// TestWhoDoesNotProvisionWaits until what it needs is there, says what for, and makes nothing.
func TestWhoDoesNotProvisionWaits(t *testing.T) {
	t.Parallel()
	nats := nettest.NewNATS(t, "")
	nats.Stop() // it waits for the server too
	var said atomic.Value
	waiting := func(what string) { said.Store(what) }
	says := func(part string) func() bool {
		return func() bool { what, _ := said.Load().(string); return strings.Contains(what, part) }
	}
	needs := []string{proto.StreamEvents, proto.StreamUser, proto.KVStream(proto.BucketClaims)}
	opened := make(chan error, 1)
	go func() {
		b, err := bus.Open(t.Context(), bus.Options{URL: nats.URL, Sizing: proto.DefaultSizing(), Needs: needs, Waiting: waiting})
		if err == nil {
			t.Cleanup(b.Close)
		}
		opened <- err
	}()
	fixture.Await(t, "it waits for the server", says("connect to NATS"))
	nats.Start()
	fixture.Await(t, "it waits for the log", says(proto.StreamEvents))
	maker := open(t, bus.Options{URL: nats.URL, Provisions: true})
	must(t, <-opened)
	if !complete(t.Context(), maker) {
		t.Error("something is missing")
	}
}

// TestLostDiskIsTold: a server with other data is no restart.
func TestLostDiskIsTold(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, b *bus.Bus){
		"made again": func(t *testing.T, b *bus.Bus) {
			must(t, b.JS.DeleteStream(t.Context(), proto.StreamEvents))
			_, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: proto.StreamEvents})
			must(t, err)
		},
		"gone": func(t *testing.T, b *bus.Bus) {
			must(t, b.JS.DeleteStream(t.Context(), proto.StreamEvents), b.JS.DeleteStream(t.Context(), proto.StreamUser))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, bus.Options{Dir: t.TempDir(), Needs: []string{proto.StreamEvents}})
			lose(t, b)
			must(t, b.Conn.ForceReconnect())
			if err := fixture.Receive(t, "it is told", b.Lost()); !strings.Contains(err.Error(), proto.StreamEvents) {
				t.Errorf("told %v", err)
			}
			if _, err := b.JS.Stream(t.Context(), proto.StreamUser); name == "gone" && !errors.Is(err, jetstream.ErrStreamNotFound) {
				t.Errorf("a stream in memory was made beside a log that is lost: %v", err)
			}
		})
	}
}

// TestNoLogIsMadeAgainstTheIndex: who knows that there was a log does not begin an empty one, and
// makes nothing else either.
func TestNoLogIsMadeAgainstTheIndex(t *testing.T) {
	t.Parallel()
	nats := nettest.NewNATS(t, "")
	missed := errors.New("there was a log")
	_, err := bus.Open(t.Context(), bus.Options{URL: nats.URL, Sizing: proto.DefaultSizing(), Provisions: true, NewLog: func() error { return missed }})
	if !errors.Is(err, missed) {
		t.Fatalf("%v", err)
	}
	b := open(t, bus.Options{URL: nats.URL})
	for name := range b.JS.StreamNames(t.Context()).Name() {
		t.Errorf("%s was made", name)
	}
}
