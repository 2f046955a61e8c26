package writer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/bus"
	"tendril.dev/proto"
)

const (
	// urgentAhead and olderAhead are how many packs of a lane are read and wait for their decision,
	// and fetchBytes how much more of it is on its way. All that is urgent and comes while a batch
	// is committed should fit into the next one.
	urgentAhead, olderAhead = 32, 8
	fetchBytes              = 2 << 20
	// olderShare is which part of a batch older events may fill while urgent ones come.
	olderShare = 4
	// urgentFor is for how long after an urgent event the next one is expected.
	urgentFor = 2 * time.Second
)

// sources are the lanes: their streams and consumers. Those before the last are urgent: someone
// waits for their events as they happen.
var sources = [...]struct{ name, stream, consumer string }{
	{"user", proto.StreamUser, proto.ConsumerUser}, {"release", proto.StreamRelease, proto.ConsumerRelease},
	{"live", proto.StreamLive, proto.ConsumerLive}, {"sync", proto.StreamSync, proto.ConsumerSync},
}

const laneUser, laneOlder = 0, len(sources) - 1

// lanes are the packs that were fetched and wait for their decision. Fetching and reading go on
// while a batch is decided and committed; the bounds of each lane push back into its stream.
//
// A batch holds packs of one class, urgent or older. Where both wait they alternate, so that an
// urgent event waits for one short commit of older ones at most, see [term.full]. Urgent lanes take
// turns, pack by pack.
type lanes struct {
	fetched   [len(sources)]chan *pack
	rest      map[bool]*pack // by class, older or not: what a batch had no room for
	arrived   chan struct{}  // of capacity 1: a lane has a pack
	older     bool           // the class of the batch at hand, or of the last one
	urgentAt  time.Time      // when an urgent pack was taken
	turn      int
	consuming []jetstream.ConsumeContext
	end       context.CancelFunc
}

func newLanes() *lanes {
	l := &lanes{rest: map[bool]*pack{}, arrived: make(chan struct{}, 1), older: true, end: func() {}}
	for i := range l.fetched {
		l.fetched[i] = make(chan *pack, urgentAhead)
	}
	l.fetched[laneOlder] = make(chan *pack, olderAhead)
	return l
}

// openLanes begins to fetch. broken is called when NATS has lost a lane's consumer: the client
// library would ask again after half a minute, if at all.
func openLanes(ctx context.Context, b *bus.Bus, counts *metrics, broken func(error)) (*lanes, error) {
	l := newLanes()
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for lane, source := range sources {
		failed := func(err error) error { return fmt.Errorf("fetch candidates of %s: %w", source.consumer, err) }
		take := func(m jetstream.Msg) {
			p := readPack(m)
			counts.queue.WithLabelValues(source.name).Set(float64(p.behind))
			l.put(ctx, lane, p)
		}
		onError := func(_ jetstream.ConsumeContext, err error) {
			gone := []error{nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDoesNotExist}
			if slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) {
				broken(failed(err))
			}
		}
		consumer, err := b.JS.Consumer(ctx, source.stream, source.consumer)
		var consuming jetstream.ConsumeContext
		if err == nil {
			consuming, err = consumer.Consume(take, jetstream.PullMaxMessagesWithBytesLimit(commitSize, fetchBytes), jetstream.ConsumeErrHandler(onError))
		}
		if err != nil {
			l.close()
			return nil, failed(err)
		}
		l.consuming = append(l.consuming, consuming)
	}
	return l, nil
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
	for _, p := range l.rest {
		p.giveBack()
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

// first chooses the class of a batch and returns its first pack, which it waits for unless other
// older events wait. nil: these are next, ctx has ended, or nothing has come for a while.
func (l *lanes) first(ctx context.Context, others bool) *pack {
	tired := time.After(sweepEvery)
	for {
		for range 2 { // the class that had not the last batch comes first
			if l.older = !l.older; l.older && others {
				return nil
			}
			if p := l.next(); p != nil {
				return p
			}
		}
		select {
		case <-l.arrived:
		case <-tired:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// next returns one more pack for the batch; nil: none of its class waits.
func (l *lanes) next() *pack {
	if p := l.rest[l.older]; p != nil {
		return p
	}
	class := l.fetched[:laneOlder]
	if l.older {
		class = l.fetched[laneOlder:]
	}
	for range class {
		l.turn++
		select {
		case p := <-class[l.turn%len(class)]:
			if !l.older {
				l.urgentAt = time.Now()
			}
			return p
		default:
		}
	}
	return nil
}
