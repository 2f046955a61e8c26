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
	// ahead is how many packs of a lane are read and wait for their decision, and fetchBytes how
	// much more of it is on its way.
	ahead      = 8
	fetchBytes = 2 << 20
	// urgentFor is for how long after an urgent event the next one is expected.
	urgentFor = 2 * time.Second
)

// The lanes, in order of service. Those before older are urgent: someone waits for their events
// as they happen.
const (
	laneUser = iota
	laneRelease
	laneLive
	laneOlder
	numLanes
)

// sources are the stream and the consumer of each lane.
var sources = [numLanes]struct{ name, stream, consumer string }{
	{"user", proto.StreamUser, proto.ConsumerUser}, {"release", proto.StreamRelease, proto.ConsumerRelease},
	{"live", proto.StreamLive, proto.ConsumerLive}, {"sync", proto.StreamSync, proto.ConsumerSync},
}

// lanes are the packs that were fetched and wait for their decision. Fetching and reading go on
// while a batch is decided and committed; the bounds of each lane push back into its stream.
type lanes struct {
	fetched   [numLanes]chan *pack
	arrived   chan struct{} // of capacity 1: a lane has a pack
	consuming []jetstream.ConsumeContext
	end       context.CancelFunc
}

func newLanes() *lanes {
	l := &lanes{end: func() {}, arrived: make(chan struct{}, 1)}
	for i := range l.fetched {
		l.fetched[i] = make(chan *pack, ahead)
	}
	return l
}

// openLanes begins to fetch. broken is called when a lane has no consumer any more: NATS has lost
// it, and the client library would not ask again, or only after half a minute.
func openLanes(ctx context.Context, b *bus.Bus, broken func(error)) (*lanes, error) {
	l := newLanes()
	ctx, l.end = context.WithCancel(context.WithoutCancel(ctx))
	for i := range sources {
		if err := l.open(ctx, b.JS, i, broken); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

func (l *lanes) open(ctx context.Context, js jetstream.JetStream, lane int, broken func(error)) error {
	failed := func(err error) error { return fmt.Errorf("fetch candidates of %s: %w", sources[lane].consumer, err) }
	opening, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	consumer, err := js.Consumer(opening, sources[lane].stream, sources[lane].consumer)
	if err != nil {
		return failed(err)
	}
	take := func(m jetstream.Msg) { l.put(ctx, lane, readPack(m)) }
	onError := func(_ jetstream.ConsumeContext, err error) {
		gone := []error{nats.ErrNoResponders, jetstream.ErrConsumerDeleted, jetstream.ErrConsumerNotFound, jetstream.ErrConsumerDoesNotExist}
		if slices.ContainsFunc(gone, func(g error) bool { return errors.Is(err, g) }) {
			broken(failed(err))
		}
	}
	consuming, err := consumer.Consume(take,
		jetstream.PullMaxMessagesWithBytesLimit(commitSize, fetchBytes), jetstream.ConsumeErrHandler(onError))
	if err != nil {
		return failed(err)
	}
	l.consuming = append(l.consuming, consuming)
	return nil
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
	for _, lane := range l.fetched {
		for len(lane) > 0 {
			(<-lane).giveBack()
		}
	}
}

// giveBack lets a pack be delivered again at once. If that fails, it comes back when its time for
// an answer is over.
func (p *pack) giveBack() { _ = p.msg.Nak() }

// share says how many events of each lane a batch has, and how many it may have. A quarter of it is
// each lane's own, so that none stops another. While urgent events come, older ones have no more
// than an eighth: an urgent event waits for what is left of a short commit.
type share struct {
	size   int // of the batch
	urgent bool
	taken  [numLanes]int
}

func (s *share) allows(lane int, own bool) bool {
	most := s.size
	switch {
	case lane == laneOlder && s.urgent:
		most /= 2 * numLanes
	case own:
		most /= numLanes
	}
	return s.taken[lane] < max(1, most)
}

// next returns the pack that is next by the lanes' shares; nil: none waits that may be taken.
func (l *lanes) next(s *share) (p *pack, lane int) {
	for _, own := range []bool{true, false} {
		for lane := range l.fetched {
			if !s.allows(lane, own) {
				continue
			}
			select {
			case p := <-l.fetched[lane]:
				return p, lane
			default:
			}
		}
	}
	return nil, 0
}
