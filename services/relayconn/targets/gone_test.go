package targets_test

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
	"tendril.dev/lib/progress"
	"tendril.dev/proto"
	"tendril.dev/services/relayconn/targets"
)

// onError calls a function when something is logged as an error.
type onError struct {
	slog.Handler
	fn func()
}

func (h onError) Enabled(context.Context, slog.Level) bool { return true }

func (h onError) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		h.fn()
	}
	return nil
}

// announced writes a message that cannot be read, others of one relay until there are as many as
// are sent at once, and then further ones of another relay. The log that it gives makes the others
// leave the stream when the first message is read: the server has announced them by then.
func announced(t *testing.T, b *bus.Bus, first, one, other string) *slog.Logger {
	t.Helper()
	send := func(subject, data string) {
		if _, err := b.JS.PublishAsync(subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	send(first, "no change")
	for n := range 999 {
		send(one, fmt.Sprintf(`{"url":"wss://one.example","repos":[{"ref":"30617:aa:x%d","level":"full"}]}`, n))
	}
	for range 500 {
		send(other, `{"url":"wss://other.example"}`)
	}
	select {
	case <-b.JS.PublishAsyncComplete():
	case <-time.After(patience):
		t.Fatal("the messages are not stored")
	}
	return slog.New(onError{slog.DiscardHandler, sync.OnceFunc(func() {
		stream, err := b.JS.Stream(t.Context(), proto.StreamTargets)
		if err == nil {
			err = stream.Purge(t.Context(), jetstream.WithPurgeSubject(other))
		}
		if err != nil {
			t.Error(err)
		}
	})})
}

// TestWhatIsGoneIsNotWaitedFor: messages that the server has announced to a worker leave the stream
// before they are sent, as those do that withdraw a target. The worker hears of its relays, and
// knows that it has read a target, without waiting for the next message.
func TestWhatIsGoneIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	const one = "grasp.target.one.example"
	b, other := openBus(t), openBus(t)
	log := announced(t, b, "grasp.target.=", one, "grasp.target.other.example")
	names := make(chan []string, 1)
	while(t, func(ctx context.Context) error {
		return targets.Relays(ctx, b.JS, log, names, &targets.Less{}, new(progress.Progress))
	})
	log = announced(t, other, one, one, one)
	f := targets.NewFollower(0, nil)
	while(t, func(ctx context.Context) error { return f.Run(ctx, other.JS, "one.example", nil, log) })
	select {
	case got := <-names:
		if !slices.Equal(got, []string{"one.example"}) {
			t.Errorf("relays: %q", got)
		}
	case <-time.After(patience):
		t.Error("the relays are not told")
	}
	select {
	case <-f.Read():
		// How many of them came before they had gone is chance.
	case <-time.After(patience):
		t.Error("the target is never read")
	}
}
