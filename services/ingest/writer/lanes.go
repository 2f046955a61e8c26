package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"tendril.dev/proto"
)

// Bounds of what is fetched ahead of its decision.
const (
	maxBatchBytes = 4 << 20
	laneBytes     = 8 << 20
	// shares is the part of a batch that is kept for a lane that comes after others, as a divisor.
	shares = 8
)

// lanes are the candidates that were fetched and wait for their decision, by lane. Fetching goes on while a batch is decided and
// committed, so that the next one is there when it ends; the bounds of each lane bound that, and push back into the stream.
type lanes struct {
	user, release, sync *lane
	consuming           []jetstream.ConsumeContext
	cancel              context.CancelFunc
	broken              chan error // of capacity 1: a lane has no consumer any more
	small               int        // batches taken, to know every eighth one
}

// lane is one of them: bounded in messages by its channel and in bytes by its room.
type lane struct {
	fetched chan jetstream.Msg
	room    *semaphore.Weighted

	mu   sync.Mutex
	left []jetstream.Msg // arrived while the lane is closed
}

func newLane(ahead int) *lane {
	return &lane{fetched: make(chan jetstream.Msg, ahead), room: semaphore.NewWeighted(laneBytes)}
}

// openLanes begins to fetch. At most ahead messages of each lane are in its channel, and as many again on their way there.
func openLanes(ctx context.Context, js jetstream.JetStream, ahead int, log *slog.Logger) (*lanes, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &lanes{user: newLane(ahead), release: newLane(ahead), sync: newLane(ahead), cancel: cancel, broken: make(chan error, 1)}
	for _, lane := range []struct {
		stream, consumer string
		*lane
	}{
		{proto.StreamUser, proto.ConsumerUser, l.user},
		{proto.StreamRelease, proto.ConsumerRelease, l.release},
		{proto.StreamSync, proto.ConsumerSync, l.sync},
	} {
		consumer, err := js.Consumer(ctx, lane.stream, lane.consumer)
		if err != nil {
			giveBack(l.close()...)
			return nil, fmt.Errorf("open lane %s: %w", lane.consumer, err)
		}
		consume, err := consumer.Consume(func(m jetstream.Msg) { lane.put(ctx, m) },
			jetstream.PullMaxMessagesWithBytesLimit(ahead, laneBytes),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
				log.Debug("fetching candidates", "consumer", lane.consumer, "error", err)
				l.heed(lane.consumer, err)
			}))
		if err != nil {
			giveBack(l.close()...)
			return nil, fmt.Errorf("fetch from lane %s: %w", lane.consumer, err)
		}
		l.consuming = append(l.consuming, consume)
	}
	return l, nil
}

// heed notes that a lane is broken: its consumer was in NATS's memory and is lost. The library
// would give it up, or ask again only after half a minute.
func (l *lanes) heed(consumer string, err error) {
	for _, gone := range []error{nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDoesNotExist} {
		if errors.Is(err, gone) {
			select {
			case l.broken <- fmt.Errorf("fetch from lane %s: %w", consumer, err):
			default:
			}
			return
		}
	}
}

// close stops fetching and returns what was fetched, to be given back. It may be given back only
// now: before, the server would deliver it once more to those who stop listening, and it would be
// in nobody's hands until its time for an answer is over.
func (l *lanes) close() (fetched []jetstream.Msg) {
	l.cancel() // from here on what arrives is left
	for _, c := range l.consuming {
		c.Drain()
	}
	for _, c := range l.consuming {
		<-c.Closed()
	}
	for _, lane := range []*lane{l.user, l.release, l.sync} {
		for len(lane.fetched) > 0 {
			fetched = append(fetched, <-lane.fetched)
		}
		fetched = append(fetched, lane.takeLeft()...)
	}
	return fetched
}

// put waits until there is room, or leaves the candidate to [lanes.close].
func (l *lane) put(ctx context.Context, m jetstream.Msg) {
	if l.room.Acquire(ctx, int64(len(m.Data()))) != nil {
		l.leave(m)
		return
	}
	select {
	case l.fetched <- m:
	case <-ctx.Done():
		l.leave(m)
	}
}

func (l *lane) leave(m jetstream.Msg) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = append(l.left, m)
}

func (l *lane) takeLeft() []jetstream.Msg {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left
}

// giveBack lets candidates be delivered again at once. If that fails, they come back when their
// time for an answer is over.
func giveBack(msgs ...jetstream.Msg) {
	for _, m := range msgs {
		_ = m.Nak()
	}
}

// next waits for candidates, at most until deadline, and takes up to most: users' first, then
// releases, then synced ones. An eighth of a batch, in candidates and in bytes, is kept for
// releases and another for synced ones, so that users slow them down but never stop them. Of
// batches that are too small for shares, every eighth begins with one of these two. Nothing waits
// for a batch to become full. An error says that a lane is broken.
func (l *lanes) next(ctx context.Context, most int, deadline <-chan time.Time) ([]jetstream.Msg, error) {
	t := taken{}
	select {
	case err := <-l.broken:
		return nil, err
	default:
	}
	if l.waiting() == 0 {
		select {
		case err := <-l.broken:
			return nil, err
		case m := <-l.user.fetched:
			t.add(l.user, m)
		case m := <-l.release.fetched:
			t.add(l.release, m)
		case m := <-l.sync.fetched:
			t.add(l.sync, m)
		case <-deadline:
			return nil, nil
		case <-ctx.Done():
			return nil, nil
		}
	}
	if l.small++; most < shares && l.small%shares == 0 {
		t.from(l.late(), most, maxBatchBytes)
	}
	forSync, forRelease := l.sync.share(most), l.release.share(most)
	t.from(l.user, most-forSync.msgs-forRelease.msgs, maxBatchBytes-forSync.bytes-forRelease.bytes)
	t.from(l.release, most-forSync.msgs, maxBatchBytes-forSync.bytes)
	t.from(l.sync, most, maxBatchBytes)
	return t.msgs, nil
}

// late is the lane that comes first in a small batch that is not filled in the usual order:
// releases and synced ones by turns.
func (l *lanes) late() *lane {
	if l.small/shares%2 == 0 {
		return l.release
	}
	return l.sync
}

// share is what is kept of a batch for a lane: nothing if nothing waits in it.
type share struct{ msgs, bytes int }

func (l *lane) share(most int) share {
	waiting := len(l.fetched)
	if waiting == 0 {
		return share{}
	}
	return share{min(waiting, most/shares), maxBatchBytes / shares}
}

func (l *lanes) waiting() int {
	return len(l.user.fetched) + len(l.release.fetched) + len(l.sync.fetched)
}

type taken struct {
	bytes int
	msgs  []jetstream.Msg
}

func (t *taken) add(l *lane, m jetstream.Msg) {
	l.room.Release(int64(len(m.Data())))
	t.msgs = append(t.msgs, m)
	t.bytes += len(m.Data())
}

// from takes from a lane until so many candidates, or so many bytes, are taken in all.
func (t *taken) from(l *lane, most, mostBytes int) {
	for len(t.msgs) < most && t.bytes < mostBytes {
		select {
		case m := <-l.fetched:
			t.add(l, m)
		default:
			return
		}
	}
}
