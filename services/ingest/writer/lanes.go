package writer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"tendril.dev/proto"
)

// Bounds of what is fetched ahead of its decision.
const (
	maxBatchBytes = 4 << 20
	laneBytes     = 2 << 20
	// shares is the part of a batch that is kept for a lane that comes after others, as a divisor.
	shares = 8
)

// lanes are the packs that were fetched and wait for their decision, by lane, in order of service.
// Fetching and reading go on while a batch is decided and committed, so that the next one is there
// when it ends; the bounds of each lane bound that, and push back into the stream.
type lanes struct {
	all       []*lane
	consuming []jetstream.ConsumeContext
	cancel    context.CancelFunc
	broken    chan error // of capacity 1: a lane has no consumer any more
	small     int        // batches taken, to know every eighth one
}

// lane is one of them: bounded in messages by its channel and in bytes by its room.
type lane struct {
	name    string
	fetched chan *pack
	room    *semaphore.Weighted
	events  atomic.Int64 // in fetched and current

	// Only the writer touches these.
	current *pack // begun; nil: none
	next    int   // of its events
	behind  func(lane string, messages uint64)

	mu   sync.Mutex
	left []*pack // arrived while the lane is closed
}

func newLane(name string, ahead int) *lane {
	return &lane{name: name, fetched: make(chan *pack, ahead), room: semaphore.NewWeighted(laneBytes), behind: func(string, uint64) {}}
}

// openLanes begins to fetch. At most ahead messages of each lane are in its channel, and as many
// again on their way there.
func openLanes(ctx context.Context, js jetstream.JetStream, ahead int, log *slog.Logger, behind func(lane string, messages uint64)) (*lanes, error) {
	ctx, cancel := context.WithCancel(ctx)
	l := &lanes{cancel: cancel, broken: make(chan error, 1)}
	for _, from := range []struct{ name, stream, consumer string }{
		{"user", proto.StreamUser, proto.ConsumerUser},
		{"release", proto.StreamRelease, proto.ConsumerRelease},
		{"live", proto.StreamLive, proto.ConsumerLive},
		{"sync", proto.StreamSync, proto.ConsumerSync},
	} {
		lane := newLane(from.name, ahead)
		lane.behind = behind
		l.all = append(l.all, lane)
		consumer, err := js.Consumer(ctx, from.stream, from.consumer)
		if err != nil {
			giveBack(l.close()...)
			return nil, fmt.Errorf("open lane %s: %w", from.consumer, err)
		}
		consume, err := consumer.Consume(func(m jetstream.Msg) { lane.put(ctx, m) },
			jetstream.PullMaxMessagesWithBytesLimit(ahead, laneBytes),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
				log.Debug("fetching candidates", "consumer", from.consumer, "error", err)
				l.heed(from.consumer, err)
			}))
		if err != nil {
			giveBack(l.close()...)
			return nil, fmt.Errorf("fetch from lane %s: %w", from.consumer, err)
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
func (l *lanes) close() (fetched []*pack) {
	l.cancel() // from here on what arrives is left
	for _, c := range l.consuming {
		c.Drain()
	}
	for _, c := range l.consuming {
		<-c.Closed()
	}
	for _, lane := range l.all {
		if lane.current != nil {
			fetched = append(fetched, lane.current)
			lane.current = nil
		}
		for len(lane.fetched) > 0 {
			fetched = append(fetched, <-lane.fetched)
		}
		fetched = append(fetched, lane.takeLeft()...)
	}
	return fetched
}

// put reads a message and waits until there is room for it, or leaves it to [lanes.close].
func (l *lane) put(ctx context.Context, m jetstream.Msg) {
	p := readPack(m)
	if l.room.Acquire(ctx, int64(len(m.Data()))) != nil {
		l.leave(p)
		return
	}
	l.events.Add(int64(len(p.Events)))
	select {
	case l.fetched <- p:
	case <-ctx.Done():
		l.leave(p)
	}
}

func (l *lane) leave(p *pack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left = append(l.left, p)
}

func (l *lane) takeLeft() []*pack {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left
}

// begin makes a pack the one that events are taken from.
func (l *lane) begin(p *pack) {
	l.room.Release(int64(len(p.msg.Data())))
	l.behind(l.name, p.behind)
	l.current, l.next = p, 0
}

// take returns the next event that waits in the lane, if there is one.
func (l *lane) take() (item, bool) {
	if l.current == nil {
		select {
		case p := <-l.fetched:
			l.begin(p)
		default:
			return item{}, false
		}
	}
	it := item{l.current, l.next}
	if l.next++; l.next == len(l.current.Events) {
		l.current = nil
	}
	l.events.Add(-1)
	return it, true
}

// room is how much a batch still takes: so many events, and of these so many from the last lane.
type room struct{ events, late int }

// next waits for candidates, at most until deadline or until stop is closed, and takes as many as
// there is room for: users' first, then releases, then live ones, then older ones. An eighth of a
// batch, in candidates and in bytes, is kept for each lane but the first, so that those before it
// slow it down but never stop it. Of batches that are too small for shares, every eighth begins
// with one of these lanes, by turns. Nothing waits for a batch to become full. An error says that a
// lane is broken.
func (l *lanes) next(ctx context.Context, r room, deadline <-chan time.Time, stop <-chan struct{}) ([]item, error) {
	select {
	case err := <-l.broken:
		return nil, err
	default:
	}
	all := l.of(r)
	if !l.wait(r) {
		if more, err := l.await(ctx, len(all) == len(l.all), deadline, stop); !more {
			return nil, err
		}
	}
	t := taken{}
	if l.small++; r.events < shares && l.small%shares == 0 {
		late := all[1:]
		t.from(late[l.small/shares%len(late)], r.events, maxBatchBytes)
	}
	kept := make([]share, len(l.all)+1) // for the lanes behind each
	for i := len(all) - 1; i > 0; i-- {
		own := all[i].share(r.events)
		kept[i] = share{kept[i+1].events + own.events, kept[i+1].bytes + own.bytes}
	}
	for i, lane := range all {
		most := r.events - kept[i+1].events
		if i == len(l.all)-1 {
			most = min(most, len(t.items)+r.late)
		}
		t.from(lane, most, maxBatchBytes-kept[i+1].bytes)
	}
	return t.items, nil
}

// of returns the lanes that a batch with so much room is filled from.
func (l *lanes) of(r room) []*lane {
	if r.late <= 0 {
		return l.all[:len(l.all)-1]
	}
	return l.all
}

// wait reports whether candidates wait for which there is room.
func (l *lanes) wait(r room) bool { return slices.ContainsFunc(l.of(r), (*lane).waits) }

// await waits for a pack of any lane, or of any but the last. It gives false if there is none
// before the deadline or before stop is closed.
func (l *lanes) await(ctx context.Context, last bool, deadline <-chan time.Time, stop <-chan struct{}) (more bool, err error) {
	user, release, live, sync := l.all[0], l.all[1], l.all[2], l.all[3]
	older := sync.fetched
	if !last {
		older = nil
	}
	select {
	case err := <-l.broken:
		return false, err
	case p := <-user.fetched:
		user.begin(p)
	case p := <-release.fetched:
		release.begin(p)
	case p := <-live.fetched:
		live.begin(p)
	case p := <-older:
		sync.begin(p)
	case <-deadline:
		return false, nil
	case <-stop:
		return false, nil
	case <-ctx.Done():
		return false, nil
	}
	return true, nil
}

// waits reports whether something waits in the lane.
func (l *lane) waits() bool { return l.current != nil || len(l.fetched) > 0 }

// urgent reports whether a user's or live candidate waits.
func (l *lanes) urgent() bool {
	user, live := l.all[0], l.all[2]
	return user.waits() || live.waits()
}

// events is how many candidates wait, in the lane of older events or not.
func (l *lanes) events(older bool) (n int) {
	all := l.all
	if !older {
		all = all[:len(all)-1]
	}
	for _, lane := range all {
		n += int(lane.events.Load())
	}
	return n
}

// share is what is kept of a batch for a lane: nothing if nothing waits in it.
type share struct{ events, bytes int }

func (l *lane) share(most int) share {
	if !l.waits() {
		return share{}
	}
	return share{min(int(l.events.Load()), most/shares), maxBatchBytes / shares}
}

type taken struct {
	bytes int
	items []item
}

// from takes from a lane until so many events, or so many bytes, are taken in all.
func (t *taken) from(l *lane, most, mostBytes int) {
	for len(t.items) < most && t.bytes < mostBytes {
		it, ok := l.take()
		if !ok {
			return
		}
		t.items = append(t.items, it)
		t.bytes += it.pack.Events[it.n].Bytes
	}
}
