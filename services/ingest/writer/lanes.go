package writer

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/proto"
)

// Bounds of what is fetched ahead of its decision.
const (
	maxBatchBytes = 4 << 20
	laneBytes     = 8 << 20
)

// lanes are the candidates that were fetched and wait for their decision, by lane. Fetching goes on while a batch is decided and
// committed, so that the next one is there when it ends; the bound of each lane bounds that, and pushes back into the stream.
type lanes struct {
	user, release, sync chan jetstream.Msg
	close               func() // stops fetching and gives back what was fetched
}

// openLanes begins to fetch. At most ahead messages of each lane are in our hands beside those in its channel.
func openLanes(ctx context.Context, js jetstream.JetStream, ahead int, log *slog.Logger) (*lanes, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &lanes{
		user:    make(chan jetstream.Msg, ahead),
		release: make(chan jetstream.Msg, ahead),
		sync:    make(chan jetstream.Msg, ahead),
	}
	var consuming []jetstream.ConsumeContext
	l.close = func() {
		cancel() // from here on what arrives is given back
		for _, c := range consuming {
			c.Drain()
			<-c.Closed()
		}
		for _, lane := range []chan jetstream.Msg{l.user, l.release, l.sync} {
			for len(lane) > 0 {
				giveBack(<-lane)
			}
		}
	}
	for _, lane := range []struct {
		consumer string
		into     chan jetstream.Msg
	}{{proto.ConsumerUser, l.user}, {proto.ConsumerRelease, l.release}, {proto.ConsumerSync, l.sync}} {
		consumer, err := js.Consumer(ctx, proto.StreamCandidates, lane.consumer)
		if err != nil {
			l.close()
			return nil, fmt.Errorf("open lane %s: %w", lane.consumer, err)
		}
		consume, err := consumer.Consume(func(m jetstream.Msg) {
			select {
			case lane.into <- m:
			case <-ctx.Done():
				giveBack(m)
			}
		}, jetstream.PullMaxMessagesWithBytesLimit(ahead, laneBytes),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
				log.Debug("fetching candidates", "consumer", lane.consumer, "error", err)
			}))
		if err != nil {
			l.close()
			return nil, fmt.Errorf("fetch from lane %s: %w", lane.consumer, err)
		}
		consuming = append(consuming, consume)
	}
	return l, nil
}

// giveBack lets a candidate be delivered again at once. If that fails, it comes back when its time for an answer is over.
func giveBack(m jetstream.Msg) { _ = m.Nak() }

// next waits for candidates, at most until deadline, and takes up to most: users' first, then releases, then synced ones. A share is
// kept for the synced ones, so that users slow a sync down but never stop it. Nothing waits for a batch to become full.
func (l *lanes) next(ctx context.Context, most int, deadline <-chan time.Time) []jetstream.Msg {
	t := taken{most: most}
	if l.waiting() == 0 {
		select {
		case m := <-l.user:
			t.add(m)
		case m := <-l.release:
			t.add(m)
		case m := <-l.sync:
			t.add(m)
		case <-deadline:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	share := min(len(l.sync), most/8)
	t.from(l.user, most-share)
	t.from(l.release, most-share)
	t.from(l.sync, most)
	return t.msgs
}

func (l *lanes) waiting() int { return len(l.user) + len(l.release) + len(l.sync) }

type taken struct {
	most, bytes int
	msgs        []jetstream.Msg
}

func (t *taken) add(m jetstream.Msg) {
	t.msgs = append(t.msgs, m)
	t.bytes += len(m.Data())
}

func (t *taken) from(lane <-chan jetstream.Msg, most int) {
	for len(t.msgs) < most && t.bytes < maxBatchBytes {
		select {
		case m := <-lane:
			t.add(m)
		default:
			return
		}
	}
}
