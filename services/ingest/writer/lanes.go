package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// urgentAhead and bulkAhead are how many packs of a lane are read and wait for their decision,
	// and fetchBytes how much more of it is on its way. All that is urgent and comes while a batch
	// is committed should fit into the next one.
	urgentAhead, bulkAhead = 32, 8
	fetchBytes             = 2 << 20
)

// sources are the lanes: their streams, consumers and classes.
var sources = [...]struct {
	name, stream, consumer string
	class                  class
}{
	{"user", proto.StreamUser, proto.ConsumerUser, urgent}, {"release", proto.StreamRelease, proto.ConsumerRelease,
		urgent},
	{"live", proto.StreamLive, proto.ConsumerLive, urgent}, {"sync", proto.StreamSync, proto.ConsumerSync, bulk},
}

const laneUser, laneRelease, laneLive, laneSync = 0, 1, 2, 3

// lanes are the packs that were fetched and wait for their decision. Fetching and reading go on
// while a batch is decided and committed; the bounds of each lane push back into its stream.
type lanes struct {
	fetched   [len(sources)]chan *pack
	arrived   chan struct{} // of capacity 1: a lane has a pack
	consuming []jetstream.ConsumeContext
	end       context.CancelFunc
}

func newLanes() *lanes {
	l := &lanes{arrived: make(chan struct{}, 1), end: func() {}}
	for i, source := range sources {
		ahead := urgentAhead
		if source.class == bulk {
			ahead = bulkAhead
		}
		l.fetched[i] = make(chan *pack, ahead)
	}
	return l
}

// openLanes begins to fetch. broken is called when NATS has lost a lane's consumer.
func openLanes(ctx context.Context, b *bus.Bus, counts *metrics, broken func(error)) (*lanes, error) {
	l := newLanes()
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for lane, source := range sources {
		consuming, err := consume(ctx, b, source.stream, source.consumer, func(p *pack) {
			counts.queue.WithLabelValues(source.name).Set(float64(p.behind))
			l.put(ctx, lane, p)
		}, broken)
		if err != nil {
			l.close()
			return nil, err
		}
		l.consuming = append(l.consuming, consuming)
	}
	return l, nil
}

// consume begins to fetch from a stream. broken is called when NATS has lost the consumer: the
// client library would ask again after half a minute, if at all.
func consume(ctx context.Context, b *bus.Bus, stream, name string, take func(*pack),
	broken func(error)) (jetstream.ConsumeContext, error) {
	failed := func(err error) error { return fmt.Errorf("fetch candidates of %s: %w", name, err) }
	onError := func(_ jetstream.ConsumeContext, err error) {
		gone := []error{nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound,
			jetstream.ErrConsumerDoesNotExist}
		if slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) {
			broken(failed(err))
		}
	}
	consumer, err := b.JS.Consumer(ctx, stream, name)
	if err != nil {
		return nil, failed(err)
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) { take(readPack(m)) },
		jetstream.PullMaxMessagesWithBytesLimit(commitSize, fetchBytes), jetstream.ConsumeErrHandler(onError))
	if err != nil {
		return nil, failed(err)
	}
	return consuming, nil
}

// put waits until a lane has room for a pack.
func (l *lanes) put(ctx context.Context, lane int, p *pack) {
	select {
	case l.fetched[lane] <- p:
		select {
		case l.arrived <- struct{}{}:
		default:
		}
	case <-ctx.Done():
		p.giveBack()
	}
}

// close stops fetching and then gives back what was fetched: before, the server would deliver it to
// this process again.
func (l *lanes) close() {
	for _, c := range l.consuming {
		c.Drain()
	}
	l.end() // from here on what arrives is given back
	for _, c := range l.consuming {
		<-c.Closed()
	}
	for _, lane := range l.fetched {
		for len(lane) > 0 {
			(<-lane).giveBack()
		}
	}
}

// giveBack lets a pack be delivered again at once. If that fails, it comes back when its time for
// an answer is over.
func (p *pack) giveBack() { _ = p.msg.Nak() }

// take returns the next pack of a class; nil: none waits. Lanes of one class take turns by chance,
// so that none of them holds the others back.
func (l *lanes) take(c class) *pack {
	if c == bulk {
		select {
		case p := <-l.fetched[laneSync]:
			return p
		default:
			return nil
		}
	}
	select {
	case p := <-l.fetched[laneUser]:
		return p
	case p := <-l.fetched[laneRelease]:
		return p
	case p := <-l.fetched[laneLive]:
		return p
	default:
		return nil
	}
}

// waits reports whether a pack of a class has been fetched.
func (l *lanes) waits(c class) bool {
	for i, source := range sources {
		if source.class == c && len(l.fetched[i]) > 0 {
			return true
		}
	}
	return false
}
