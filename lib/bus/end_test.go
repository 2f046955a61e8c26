package bus_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/test/fixture"
)

// through is JetStream whose answers pass through a function, by the subject of the question.
func through(t *testing.T, b *bus.Bus, change func(subject string, answer []byte) []byte) jetstream.JetStream {
	t.Helper()
	sub, err := b.Conn.Subscribe("altered.>", func(m *nats.Msg) {
		go func() {
			subject := strings.TrimPrefix(m.Subject, "altered.")
			if reply, err := b.Conn.Request(jetstream.DefaultAPIPrefix+subject, m.Data, fixture.Patience); err == nil {
				_ = m.Respond(change(subject, reply.Data))
			}
		}()
	})
	must(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	js, err := jetstream.NewWithAPIPrefix(b.Conn, "altered")
	must(t, err)
	return js
}

// TestAnEndThatIsTooEarlyIsAskedTwice: a server answers once with an earlier end of the stream than
// was read. The follower goes on.
func TestAnEndThatIsTooEarlyIsAskedTwice(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{})
	publish(t, b, "grasp.target.a.example", 5, 1)
	var early, asked atomic.Int64
	js := through(t, b, func(subject string, answer []byte) []byte {
		if strings.HasPrefix(subject, "STREAM.INFO.") {
			if asked.Add(1); early.Load() > 0 && early.Add(-1) == 0 {
				return []byte(strings.Replace(string(answer), `"last_seq":5`, `"last_seq":3`, 1))
			}
		}
		return answer
	})
	ctx, cancel := context.WithCancel(t.Context())
	f := bus.NewFollower(js, targets, slog.New(slog.DiscardHandler), func([]bus.Message) error { return nil })
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	must(t, f.Wait(t.Context(), 5))
	early.Store(1)
	before := asked.Load()
	fixture.Await(t, "the end was asked for twice more", func() bool { return asked.Load() > before+1 || len(ended) > 0 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAStreamThatWasMadeAgainEndsTheFollower, although the new one is longer than what was read of
// the old one.
func TestAStreamThatWasMadeAgainEndsTheFollower(t *testing.T) {
	t.Parallel()
	b := open(t, bus.Options{})
	config := jetstream.StreamConfig{Name: "again", Subjects: []string{"again"}, Storage: jetstream.MemoryStorage}
	made := func(messages int) {
		_, err := b.JS.CreateStream(t.Context(), config)
		must(t, err)
		for n := range messages {
			_, err := b.JS.Publish(t.Context(), "again", fmt.Appendf(nil, "%d", n))
			must(t, err)
		}
	}
	config.AllowDirect = true
	made(5)
	f := bus.NewFollower(b.JS, bus.Reading{Stream: "again"}, slog.New(slog.DiscardHandler), func([]bus.Message) error { return nil })
	ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	must(t, f.Wait(ctx, 5))
	fixture.Await(t, "the follower has looked at the stream", func() bool { return f.CaughtUp() == nil })
	must(t, b.JS.DeleteStream(t.Context(), "again"))
	made(10)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "an earlier state of it now, or another stream") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(fixture.Patience):
		t.Error("it follows the new stream")
	}
}
