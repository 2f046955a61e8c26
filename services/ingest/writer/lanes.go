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
	// urgentAhead and olderAhead are how many packs of a class are read and wait for their decision,
	// and fetchBytes how much more of a lane is on its way. All that is urgent and comes while a
	// batch is committed should fit into the next one.
	urgentAhead, olderAhead = 64, 8
	fetchBytes              = 2 << 20
)

// sources are the lanes: their streams and consumers. Of all but sync someone waits for the events
// as they happen.
var sources = []struct{ name, stream, consumer string }{
	{"user", proto.StreamUser, proto.ConsumerUser}, {"release", proto.StreamRelease, proto.ConsumerRelease},
	{"live", proto.StreamLive, proto.ConsumerLive}, {"sync", proto.StreamSync, proto.ConsumerSync},
}

// lanes are the packs that were fetched and wait for their decision, in two classes. Fetching and
// reading go on while a batch is decided and committed. Lanes of one class take turns where it is
// full; its bound pushes back into their streams.
//
// A batch holds packs of one class, and where both wait they alternate. So an urgent event waits
// for one commit of older ones at most, and its own is short.
type lanes struct {
	urgent, older chan *pack
	current       chan *pack // the class of the batch at hand
	consuming     []jetstream.ConsumeContext
	end           context.CancelFunc
}

func newLanes() *lanes {
	return &lanes{urgent: make(chan *pack, urgentAhead), older: make(chan *pack, olderAhead), end: func() {}}
}

// openLanes begins to fetch. broken is called when a lane has no consumer any more: NATS has lost
// it, and the client library would not ask again, or only after half a minute.
func openLanes(ctx context.Context, b *bus.Bus, metrics *Metrics, broken func(error)) (*lanes, error) {
	l := newLanes()
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for _, source := range sources {
		failed := func(err error) error { return fmt.Errorf("fetch candidates of %s: %w", source.consumer, err) }
		class := l.urgent
		if source.stream == proto.StreamSync {
			class = l.older
		}
		take := func(m jetstream.Msg) {
			p := readPack(m)
			metrics.queue.WithLabelValues(source.name).Set(float64(p.behind))
			put(ctx, class, p)
		}
		onError := func(_ jetstream.ConsumeContext, err error) {
			gone := []error{nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDoesNotExist}
			if slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) {
				broken(failed(err))
			}
		}
		opening, cancel := context.WithTimeout(ctx, commitTimeout)
		consumer, err := b.JS.Consumer(opening, source.stream, source.consumer)
		cancel()
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

// put waits until a class has room for a pack.
func put(ctx context.Context, class chan<- *pack, p *pack) {
	select {
	case class <- p:
	case <-ctx.Done():
		p.giveBack()
	}
}

// close stops fetching and gives back what was fetched. It is given back only when the server
// knows that nothing is fetched any more, or the server would deliver it to this process again.
func (l *lanes) close() {
	for _, c := range l.consuming {
		c.Drain()
	}
	l.end() // from here on what arrives is given back
	for _, c := range l.consuming {
		<-c.Closed()
	}
	for _, class := range []chan *pack{l.urgent, l.older} {
		for len(class) > 0 {
			(<-class).giveBack()
		}
	}
}

// giveBack lets a pack be delivered again at once. If that fails, it comes back when its time for
// an answer is over.
func (p *pack) giveBack() { _ = p.msg.Nak() }

// first returns the first pack of a batch, which it waits for; nil: ctx has ended, or nothing has
// come for a while.
func (l *lanes) first(ctx context.Context) *pack {
	if l.current == l.urgent {
		l.current = l.older
	} else {
		l.current = l.urgent
	}
	if p := l.next(); p != nil {
		return p
	}
	select {
	case p := <-l.urgent:
		l.current = l.urgent
		return p
	case p := <-l.older:
		l.current = l.older
		return p
	case <-time.After(sweepEvery):
	case <-ctx.Done():
	}
	return nil
}

// next returns one more pack for the batch; nil: none waits.
func (l *lanes) next() *pack {
	select {
	case p := <-l.current:
		return p
	default:
		return nil
	}
}
